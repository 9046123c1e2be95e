package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
)

// No example gives each IPv6 address a separate budget, because one customer has many.
func TestExamplesHavePrefixes(t *testing.T) {
	examples, _ := filepath.Glob("examples/*/Caddyfile")
	texts := make(map[string]string)
	for _, file := range pages(t) {
		texts[file] = strings.Join(fences(t, file, "caddyfile"), "")
	}
	for _, file := range append(examples, "Caddyfile.example") {
		texts[file] = readFile(t, file)
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
	for _, page := range pages(t) {
		for _, text := range fences(t, page, "caddyfile") {
			if written.MatchString(text) {
				found++
				if !safe.MatchString(text) && !link.MatchString(readFile(t, page)) {
					t.Errorf("%s: nothing limits addresses or checks the key, and no link leads to #text-from-clients\n%s", page, text)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d configurations found", found)
	}
}

// validateExample validates a configuration of a page, which names each warning of this module about it.
func validateExample(t *testing.T, config, page string) error {
	t.Helper()
	warnings, err := warningsAtLoad(t, config)
	if err != nil {
		return err
	}
	for line := range strings.Lines(warnings) {
		var entry struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			return err
		}
		if message, _, _ := strings.Cut(entry.Msg, ":"); !strings.Contains(page, message) {
			return fmt.Errorf("a warning that the page doesn't name: %s", line)
		}
	}
	return nil
}

// validateFence loads JSON of a page as its first field says: a whole configuration, a handler, the
// body of a denial, or what the admin API answers.
func validateFence(t *testing.T, text, page string) error {
	t.Helper()
	first := regexp.MustCompile(`^(?:\[\s*)?\{\s*("\w+")`).FindStringSubmatch(text)
	config := string(caddy.RemoveMetaFields([]byte(text)))
	switch {
	case first == nil:
	case first[1] == `"apps"`:
		return validateExample(t, config, page)
	case first[1] == `"handler"`:
		return validateExample(t, handlerConfig(config), page)
	case first[1] == `"type"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(httpfields.Problem))
	case first[1] == `"version"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(adminapi.Status))
	case first[1] == `"name"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new([]adminapi.Zone))
	case first[1] == `"key"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new([]adminapi.DeniedKey))
	case first[1] == `"zone"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(adminapi.Key))
	}
	return errors.New("no configuration, which begins with apps, no handler, no body of a denial, which begins with type, and no answer of the admin API")
}

// rowBeginning matches the first cell of a table's row that begins with code.
var rowBeginning = regexp.MustCompile("(?m)^\\| (`[^|\n]*) \\|")

// rows returns the options or fields that the rows of tables begin with, in the section of a
// reference that has this heading; those in subsections don't count. Without a heading it returns
// those of the whole page. A name occurs as often as there are rows that begin with it.
func rows(t *testing.T, file, heading string) (names []string) {
	t.Helper()
	section := readFile(t, file)
	if heading != "" {
		section = sectionOf(t, file, heading)
	}
	for _, row := range rowBeginning.FindAllStringSubmatch(section, -1) {
		begin := len(names)
		for _, name := range regexp.MustCompile("`(\\w+)").FindAllStringSubmatch(row[1], -1) {
			if !slices.Contains(names[begin:], name[1]) {
				names = append(names, name[1])
			}
		}
	}
	return names
}

// wantRows checks that a section of a reference is about these, and about nothing else.
func wantRows(t *testing.T, file, heading string, names []string) {
	t.Helper()
	got := rows(t, file, heading)
	for _, name := range names {
		if !slices.Contains(got, name) {
			t.Errorf("%s: no row of %q begins with %s", file, heading, name)
		}
	}
	for _, name := range got {
		if !slices.Contains(names, name) {
			t.Errorf("%s: a row of %q begins with %s, which there isn't", file, heading, name)
		}
	}
}

// wantOneRowEach checks that a page has one row about each option or field of these blocks. So
// nothing is said in two places. A name that several blocks have needs a row for each block.
func wantOneRowEach(t *testing.T, file string, blocks ...[]string) {
	t.Helper()
	want := make(map[string]int)
	for _, names := range blocks {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			want[name]++
		}
	}
	got := make(map[string]int)
	for _, name := range rows(t, file, "") {
		got[name]++
	}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: rows of tables begin with %s %d times, want %d: a reference has one row about each option or field", file, name, got[name], n)
		}
	}
}

// optionsOfLimits returns the names of the options of all algorithms.
func optionsOfLimits() (names []string) {
	for _, a := range algorithms.All() {
		names = append(names, a.OptionNames()...)
	}
	return names
}

// docs/caddyfile.md has every option there is, where it belongs, and no other.
func TestCaddyfileReference(t *testing.T) {
	const file = "docs/caddyfile.md"
	without := func(options, others []string) []string {
		return slices.DeleteFunc(slices.Clone(options), func(o string) bool { return slices.Contains(others, o) })
	}
	type section struct {
		heading string
		options []string
	}
	var blocks [][]string
	for _, s := range []section{
		{"Global option", append(slices.Clone(memoryOptions), "memory", "zone")},
		{"Zone options", without(zoneOptions(), limitOptions)},
		{"Limits", limitOptions},
		{"Options of limits", optionsOfLimits()},
		{"settle", settleOptions},
		{"Handler options", sharedOptions},
		{"redis", redisOptions},
		{"tls", tlsOptions},
	} {
		wantRows(t, file, s.heading, s.options)
		blocks = append(blocks, s.options)
	}
	wantOneRowEach(t, file, blocks...)
}

// docs/json.md has every field there is, where it belongs, and no other.
func TestJSONReference(t *testing.T) {
	const file = "docs/json.md"
	var blocks [][]string
	for _, v := range []any{Handler{}, Zone{}, Limit{}, LimitSet{}, Plan{}, Delay{}, Settle{}, Ban{}, Options{}, OnStoreError{}, Redis{}, RedisTLS{}, App{}, MemoryOptions{}} {
		wantRows(t, file, reflect.TypeOf(v).Name(), jsonFields(v))
		blocks = append(blocks, jsonFields(v))
	}
	wantOneRowEach(t, file, blocks...)
}

// jsonFields are the names of the fields that structs have in JSON.
func jsonFields(structs ...any) (fields []string) {
	for _, v := range structs {
		for i := range reflect.TypeOf(v).NumField() {
			f := reflect.TypeOf(v).Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				fields = append(fields, name)
			}
		}
	}
	return fields
}

// docs/admin.md has every path, field and parameter of the admin API, and the values of fields that have few.
func TestAdminReference(t *testing.T) {
	const file = "docs/admin.md"
	zone := []string{"name", "store", "keys", "max_keys", "failing_nodes", "on_store_error", "requests"}
	for _, s := range zoneSettings() {
		if s.shown {
			zone = append(zone, s.name)
		}
	}
	wantRows(t, file, "Zones", zone)
	wantRows(t, file, "The instance", jsonFields(adminapi.Status{}, adminapi.Memory{}, adminapi.Redis{}))
	wantRows(t, file, "Most denied keys", jsonFields(adminapi.ShownKey{}, adminapi.DeniedKey{}))
	wantRows(t, file, "Look at a key", jsonFields(adminapi.Key{}, adminapi.Override{}, adminapi.Budgets{}, adminapi.Limit{}, adminapi.Concurrency{}, adminapi.Ban{}))
	wantRows(t, file, "Explain a request", jsonFields(adminapi.Request{}, adminapi.Explanation{}, adminapi.Decision{},
		adminapi.ExplainedHandler{}, adminapi.ExplainedZone{}, adminapi.ExplainedBan{}))
	wantRows(t, file, "Explain a denied request", jsonFields(adminapi.Denial{}, adminapi.Decision{}))
	lists := jsonFields(adminapi.BanList{}, adminapi.ListedBan{}, adminapi.OverrideList{}, adminapi.ShownKey{}, adminapi.Override{})
	var requests, paths []string
	for _, r := range adminResources {
		lists = append(lists, r.parameters...)
		if len(r.parameters) == 0 || r.parameters[0] != "key" { // the other form of a path with {key}
			for method := range r.actions {
				requests = append(requests, method+" "+strings.NewReplacer("{", "<", "}", ">").Replace(r.form))
			}
		}
	}
	wantRows(t, file, "Lists of bans and overrides", lists)
	for _, row := range tableRows(sectionOf(t, file, "Requests")) {
		for _, method := range codeIn(row[0]) {
			for _, path := range codeIn(row[1]) {
				paths = append(paths, method+" "+path)
			}
		}
	}
	slices.Sort(requests)
	if slices.Sort(paths); !slices.Equal(paths, requests) {
		t.Errorf("%s has the requests %q, want %q", file, paths, requests)
	}

	var shown []adminapi.Zone
	for _, text := range fences(t, file, "json") {
		if strings.Contains(text, `"requests"`) {
			if err := json.Unmarshal([]byte(text), &shown); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := slices.Sorted(maps.Keys(shown[0].Requests)); !slices.Equal(got, slices.Sorted(slices.Values(outcomeLabels[:]))) {
		t.Errorf("%s: a zone counts requests by the outcomes %q, want %q", file, got, outcomeLabels)
	}
	for _, row := range tableRows(sectionOf(t, file, "Explain a request")) {
		if prefix := strings.Trim(row[0], "`"); slices.Contains([]string{"verdict", "reason", "applies"}, prefix) {
			for _, value := range parseSource(t, ".").constants(prefix) {
				if !slices.Contains(codeIn(row[1]), value) && value != verdictUnknown { // of a denied request
					t.Errorf("%s: the row of %s lacks %s", file, prefix, value)
				}
			}
		}
	}
}

// The commands in docs/json.md change the configuration above them as they say, and no
// budget that they don't.
func TestCommands(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	const file = "docs/json.md"
	configs, scripts := fences(t, file, "json"), fences(t, file, "console")
	config := configs[len(configs)-1]
	c := startCaddy(t, site("zone a {\n gcra 1 1h\n}"))
	addresses := strings.NewReplacer(":8080", c.site, "localhost:2019", c.admin, "curl ", "curl -sSf ")
	config = strings.Replace(addresses.Replace(config), "{", `{"admin":{"listen":"{$ADMIN}"},`, 1)
	if r := c.load(t, config, "application/json"); r.StatusCode != 200 {
		t.Fatal(r.body)
	}
	c.get(t, "/").want(t, 200, "RateLimit-Policy", `"burst";q=50;w=1, "day";q=10000;w=86400`)
	var said string
	for _, command := range commandsOf(block{language: "console", text: strings.Join(scripts, "")}) {
		line := addresses.Replace(command.line)
		output, err := exec.Command("sh", "-c", line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v %s", line, err, output)
		}
		said = string(output)
		c.settle(t)
		if strings.HasSuffix(line, "/limits/0/burst") {
			c.get(t, "/").want(t, 200, "RateLimit-Policy", `"burst";q=20;w=1, "day";q=10000;w=86400`)
		}
	}
	r := c.get(t, "/")
	r.want(t, 200, "RateLimit-Policy", `"burst";q=20;w=1, "day";q=10000;w=86400`)
	if got := r.field("RateLimit"); !strings.HasPrefix(got, `"burst";r=19;`) || !strings.Contains(got, `"day";r=9997;`) {
		t.Errorf("RateLimit: %s", got)
	}
	var day Zone
	if err := json.Unmarshal([]byte(said), &day); err != nil || len(day.Override) != 1 || !day.Override["203.0.113.9"].Unlimited {
		t.Errorf("%v; zone day is %s", err, said)
	}
}

// The grammar in docs/caddyfile.md names every option there is. The comment above
// UnmarshalCaddyfile has the same grammar.
func TestGrammar(t *testing.T) {
	grammar := fences(t, "docs/caddyfile.md", "text")[0]
	for _, options := range [][]string{zoneOptions(), handlerOptions, redisOptions, tlsOptions, settleOptions, optionsOfLimits()} {
		for _, option := range options {
			if !regexp.MustCompile(`(?m)^\t+` + option + `\b`).MatchString(grammar) {
				t.Errorf("the grammar in docs/caddyfile.md does not show the option %s", option)
			}
		}
	}
	code := readFile(t, "caddyfile.go")
	comment := regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSuffix(grammar, "\n"), "//\t")
	comment = strings.ReplaceAll(comment, "//\t\n", "//\n") // as gofmt writes empty lines
	if !strings.Contains(code, "\n"+comment+"\nfunc (h *Handler) UnmarshalCaddyfile(") {
		t.Errorf("the comment above UnmarshalCaddyfile is not the grammar of docs/caddyfile.md:\n%s", comment)
	}
}

// docs/clients.md and the comment of Handler have every placeholder that the module provides, and
// no other.
func TestPlaceholderReference(t *testing.T) {
	code := readFile(t, "placeholders.go")
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
	for _, name := range regexp.MustCompile(`= responsePrefix \+ "(\w+)(\.?)"`).FindAllStringSubmatch(readFile(t, "response_body.go"), -1) {
		if name[2] != "" {
			name[1] += ".<path>"
		}
		provided = append(provided, "response."+name[1])
	}
	for _, kind := range regexp.MustCompile(`placeholderPrefix \+ "\.(request\.(\w+))\."`).FindAllStringSubmatch(readFile(t, "request_body.go"), -1) {
		provided = append(provided, kind[1]+map[string]string{"json": ".<path>", "form": ".<field>"}[kind[2]])
	}
	for _, name := range regexp.MustCompile(`name == placeholderPrefix\+"\.(\w+)"`).FindAllStringSubmatch(code, -1) {
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
		text := readFile(t, file)
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
	example := readFile(t, "Caddyfile.example")
	config := strings.NewReplacer("\n{\n", "\n{\n\tadmin {$ADMIN}\n", "\n:8080 {\n", "\n{$SITE} {\n").Replace(example)
	c := startCaddy(t, config)
	// The client of startCaddy has asked before, so a few may be taken already.
	r := c.get(t, "/")
	r.want(t, 200, "RateLimit-Policy", `"everybody";q=20;w=1`)
	if r.body != "Hello." || !regexp.MustCompile(`^"everybody";r=1\d;t=1$`).MatchString(r.field("RateLimit")) {
		t.Errorf("RateLimit: %s, body %q", r.field("RateLimit"), r.body)
	}
	for i := range 6 {
		r, err := c.do("POST", "http://"+c.site+"/login", "")
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 200, false: 429}[i < 5]; r.StatusCode != want {
			t.Errorf("attempt %d to log in: %d, want %d", i+1, r.StatusCode, want)
		}
		if i == 5 {
			if !strings.HasSuffix(r.field("RateLimit"), `, "login";r=0;t=60`) {
				t.Errorf("RateLimit: %s", r.field("RateLimit"))
			}
			r.want(t, 429, "Retry-After", "60")
			wantText(t, "body", r.body, "Too many requests. Try again in 60 s.")
		}
	}
	c.get(t, "/health").want(t, 200, "RateLimit", "") // exempt
	if !strings.Contains(readFile(t, "README.md"), "go run ./cmd/caddy run --config Caddyfile.example") {
		t.Error("the README no longer says how to run the example")
	}
}
