package docs_test

import (
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	ratelimit "github.com/caddy-rate-limit/caddy-rate-limit"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// No example gives each IPv6 address a separate budget, because one customer has many.
func TestExamplesHavePrefixes(t *testing.T) {
	examples, _ := filepath.Glob("examples/*/Caddyfile")
	texts := make(map[string]string)
	for _, file := range caddytest.Pages(t) {
		texts[file] = strings.Join(caddytest.Fences(t, file, "caddyfile"), "")
	}
	for _, file := range append(examples, "Caddyfile.example") {
		texts[file] = caddytest.ReadFile(t, file)
	}
	address := regexp.MustCompile(`(?m)^(?:\t+ipv6_prefix .*\n)?\t+key .*\{(client_ip|remote_host)\}\n(.*\n)?(.*)$`)
	found := 0
	for file, text := range texts {
		for _, lines := range address.FindAllString(text, -1) {
			found++
			if !strings.Contains(lines, "ipv6_prefix") {
				t.Errorf("%s: no ipv6_prefix before, nor in the two lines after\n%s", file, lines)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d keys found", found)
	}
}

// A configuration whose key is a header field also limits addresses, or asks before who sent the request.
// Otherwise its page says that clients can choose the key.
func TestExamplesOfClientText(t *testing.T) {
	written := regexp.MustCompile(`(?m)^\t+key .*\{header\.`)
	safe, link := regexp.MustCompile(`(?m)^\t+(key \{client_ip\}$|forward_auth )`), regexp.MustCompile(`\(\S*#text-from-clients\)`)
	found := 0
	for _, page := range caddytest.Pages(t) {
		for _, text := range caddytest.Fences(t, page, "caddyfile") {
			if written.MatchString(text) {
				found++
				if !safe.MatchString(text) && !link.MatchString(caddytest.ReadFile(t, page)) {
					t.Errorf("%s: nothing limits addresses or checks the key, and no link leads to #text-from-clients\n%s", page, text)
				}
			}
		}
	}
	if found < 19 {
		t.Errorf("only %d configurations found", found)
	}
}

// docs/json.md has every field there is, where it belongs, and no other.
func TestJSONReference(t *testing.T) {
	const file = "docs/json.md"
	var blocks [][]string
	for _, v := range []any{ratelimit.Handler{}, ratelimit.Zone{}, ratelimit.Limit{}, ratelimit.LimitSet{}, ratelimit.Plan{}, ratelimit.Share{}, ratelimit.Delay{}, ratelimit.Settle{}, ratelimit.Ban{}, ratelimit.Hold{}, ratelimit.Options{}, ratelimit.Redis{}, ratelimit.RedisTLS{}, ratelimit.App{}, ratelimit.MemoryOptions{}} {
		caddytest.WantRows(t, file, reflect.TypeOf(v).Name(), caddytest.JSONFields(v))
		blocks = append(blocks, caddytest.JSONFields(v))
	}
	caddytest.WantOneRowEach(t, file, blocks...)
}

// docs/clients.md and the comment of Handler have every placeholder that the module provides, and
// no other.
func TestPlaceholderReference(t *testing.T) {
	code := caddytest.ReadFile(t, "internal/limiter/placeholders.go")
	var provided []string
	function := regexp.MustCompile(`(?ms)^func [^\n]* (\w+)\(field string\) \(value any, ok bool\) {$(.*?)^}$`)
	for _, f := range function.FindAllStringSubmatch(code, -1) {
		owner := "<zone>."
		if f[1] == "exceededField" {
			owner = "exceeded."
		}
		for _, names := range regexp.MustCompile(`(?m)^\tcase ("\w+"(, "\w+")*):$`).FindAllStringSubmatch(f[2], -1) {
			for _, name := range regexp.MustCompile(`\w+`).FindAllString(names[1], -1) {
				provided = append(provided, owner+name)
			}
		}
	}
	for _, name := range regexp.MustCompile(`if field == "(\w+)" {`).FindAllStringSubmatch(code, -1) {
		provided = append(provided, "<zone>."+name[1])
	}
	for _, name := range regexp.MustCompile(`= responsePrefix \+ "(\w+)(\.?)"`).FindAllStringSubmatch(caddytest.ReadFile(t, "internal/bodies/response.go"), -1) {
		if name[2] != "" {
			name[1] += ".<path>"
		}
		provided = append(provided, "response."+name[1])
	}
	for _, kind := range regexp.MustCompile(`"http\.rate_limit\.(request\.(\w+))\."`).FindAllStringSubmatch(caddytest.ReadFile(t, "internal/bodies/fields.go"), -1) {
		provided = append(provided, kind[1]+map[string]string{"json": ".<path>", "form": ".<field>"}[kind[2]])
	}
	for _, name := range regexp.MustCompile(`rest == "\.([\w.]+)"`).FindAllStringSubmatch(code, -1) {
		provided = append(provided, name[1])
	}
	slices.Sort(provided)
	if provided = slices.Compact(provided); len(provided) < 12 {
		t.Fatalf("only these placeholders found: %q", provided)
	}
	for file, row := range map[string]string{
		"docs/clients.md": "(?m)^\\| `{http\\.rate_limit\\.([^}`]*)}` \\|",
		"module.go":       "(?m)^// `{http\\.rate_limit\\.([^}`]*)}` \\|",
	} {
		text := caddytest.ReadFile(t, file)
		var documented []string
		for _, name := range regexp.MustCompile(row).FindAllStringSubmatch(text, -1) {
			documented = append(documented, name[1])
		}
		if slices.Sort(documented); !slices.Equal(documented, provided) {
			t.Errorf("%s has rows about the placeholders %q, want %q", file, documented, provided)
		}
		for _, name := range regexp.MustCompile(`{http\.rate_limit\.(\S*)\.(\w+)}`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(provided, "<zone>."+name[2]) && !slices.Contains(provided, name[1]+"."+name[2]) {
				t.Errorf("%s uses %s, which the module doesn't provide", file, name[0])
			}
		}
	}
}

// Caddyfile.example does what the README shows.
func TestExample(t *testing.T) {
	t.Parallel()
	example := caddytest.ReadFile(t, "Caddyfile.example")
	config := strings.NewReplacer("\n{\n", "\n{\n\tadmin {$ADMIN}\n", "\n:8080 {\n", "\n{$SITE} {\n").Replace(example)
	c := caddytest.Start(t, config)
	r := c.Get(t, "/")
	r.Want(t, 200, "RateLimit-Policy", `"everybody";q=20;w=2`)
	if r.Text != "Hello." || !regexp.MustCompile(`^"everybody";r=1\d;t=1$`).MatchString(r.Field("RateLimit")) {
		t.Errorf("RateLimit: %s, body %q", r.Field("RateLimit"), r.Text)
	}
	for i := range 6 {
		r, err := c.Do("POST", "http://"+c.Site+"/login", "")
		errtest.None(t, err)
		if want := map[bool]int{true: 200, false: 429}[i < 5]; r.StatusCode != want {
			t.Errorf("attempt %d to log in: %d, want %d", i+1, r.StatusCode, want)
		}
		if i == 5 {
			if !strings.Contains(r.Field("RateLimit"), `, "login";r=0;t=`) {
				t.Errorf("RateLimit: %s", r.Field("RateLimit"))
			}
			r.WantWait(t, 60)
			caddytest.WantText(t, "body", r.Text, "Too many requests. Try again in "+r.Field("Retry-After")+" s.")
		}
	}
	c.Get(t, "/health").Want(t, 200, "RateLimit", "") // exempt
	if !strings.Contains(caddytest.ReadFile(t, "README.md"), "go run ./cmd/caddy run --config Caddyfile.example") {
		t.Error("the README no longer says how to run the example")
	}
}
