package docs_test

import (
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// The tests in this file show of recipes what the commands on their pages can't.

// asTestSite makes a Caddyfile with the site :8080 one for caddytest.Start. The stand-ins in an example are left out;
// replace are pairs of an address in the example and another one.
func asTestSite(config string, replace ...string) string {
	config, _, _ = strings.Cut(config, "\n# This stands in")
	if options := regexp.MustCompile(`(?m)^\{$`); options.MatchString(config) {
		config = options.ReplaceAllLiteralString(config, "{\n\tadmin {$ADMIN}")
	} else {
		config = "{\n\tadmin {$ADMIN}\n}\n" + config
	}
	config = strings.Replace(config, "\n:8080 {", "\n{$SITE} {", 1)
	return strings.NewReplacer(replace...).Replace(config)
}

// The filter of the recipe fail2ban finds the client addresses of denials, and nothing else.
func TestFail2ban(t *testing.T) {
	t.Parallel()
	const page = "docs/recipes/fail2ban.md"
	dir := t.TempDir()
	log := filepath.Join(dir, "rate_limit.log")
	application := caddytest.StartUpstream(t, http.NotFound)
	config := asTestSite("\n"+caddytest.Fences(t, page, "caddyfile")[0], "localhost:9000", application, caddytest.LogsOnPage, dir)
	config = strings.Replace(config, "\t\tzone logins {", "\t\tzone other {\n\t\t\tmatch path /other\n\t\t\tgcra 1 1h\n\t\t}\n\t\tzone logins {", 1)
	c := caddytest.Start(t, config)
	for _, r := range []struct{ client, path string }{
		{"203.0.113.9", "/login"},
		{"2001:db8::7", "/login"},
		{"198.51.100.4", `/login?"client_ip":"192.0.2.1"`},
		{"198.51.100.5", "/other"},
	} {
		for range 7 {
			c.Get(t, r.path, "X-Forwarded-For", r.client, "User-Agent", `","client_ip":"192.0.2.2"`)
		}
	}
	c.Reload(t, config+"# What is counted is logged now.\n")
	text := caddytest.ReadFile(t, log)
	if strings.Count(text, "rate limit exceeded") < 4 {
		t.Fatalf("log:\n%s", text)
	}
	filter := caddytest.Fences(t, page, "ini")[0]
	for zone, want := range map[string]string{
		"logins": "198.51.100.4 2001:db8::7 203.0.113.9",
		"":       "198.51.100.4 198.51.100.5 2001:db8::7 203.0.113.9",
	} {
		found := failures(t, filter, zone, string(text))
		slices.Sort(found)
		if got := strings.Join(slices.Compact(found), " "); got != want {
			t.Errorf("in zone %q the expression finds %s, want %s", zone, got, want)
		}
	}
}

// failures does what fail2ban-regex does: it returns the addresses that the expression of a filter
// finds in a log.
func failures(t *testing.T, filter, zone, log string) (found []string) {
	t.Helper()
	if zone == "" {
		zone = regexp.MustCompile(`(?m)^zone = (.*)$`).FindStringSubmatch(filter)[1]
	}
	expression := regexp.MustCompile(`(?m)^failregex = (.*)$`).FindStringSubmatch(filter)[1]
	expression = strings.NewReplacer("<zone>", zone, "<ADDR>", `([0-9a-f.:]+)`).Replace(expression)
	date := regexp.MustCompile(`"ts":\d+(\.\d+)?`)
	for line := range strings.Lines(log) {
		if !date.MatchString(line) {
			t.Errorf("without a date: %s", line)
		}
		if m := regexp.MustCompile(expression).FindStringSubmatch(date.ReplaceAllString(line, "")); m != nil {
			errtest.Report(t, errtest.Of(netip.ParseAddr(m[1])))
			found = append(found, m[1])
		}
	}
	return found
}

// No way to write a body gets another failed login of an account past its limit, once that is used up. TestBodyErrors has more
// ways.
func TestRecipeLogin(t *testing.T) {
	t.Parallel()
	application := caddytest.StartUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) })
	config := asTestSite("\n"+caddytest.ReadFile(t, "examples/login/Caddyfile"), "localhost:9000", application)
	// All requests come from one address here.
	config = strings.Replace(config, "sliding_log 5 10m", "sliding_log 1000 10m", 1)
	c := caddytest.Start(t, strings.Replace(config, "sliding_log 20 1d", "sliding_log 20 1d\nbody_timeout 1m", 1))
	login := func(contentType, body string) int { return c.Post(t, "/login", contentType, body).StatusCode }
	for i := range 20 {
		contentType, body := caddytest.JSONType, `{"username":"alice"}`
		if i%2 == 0 {
			contentType, body = caddytest.FormType, "username=alice"
		}
		if status := login(contentType, body); status != 401 {
			t.Fatalf("login %d: status %d", i+1, status)
		}
	}
	for _, test := range []struct{ contentType, body string }{
		{caddytest.JSONType, `{"username":"alice"}`},
		{caddytest.JSONType, `{"username":"ALICE"}`},
		{caddytest.JSONType, `{"username":"al\u0069ce"}`},
		{caddytest.JSONType, `{"user\u006eame":"alice"}`},
		{caddytest.JSONType, `{"username":{"username":"bob"},"username":"alice"}`},
		{caddytest.JSONType, `{"x":"` + strings.Repeat("x", 100_000) + `","username":"alice"}`},
		{caddytest.JSONType, `{"username":"alice","x":"` + strings.Repeat("x", 100_000)},
		{caddytest.JSONType, strings.Repeat("[", 20_000) + `{"username":"alice"}`},
		{" Application/JSON ;x=y", `{"username":"alice"}`},
		{caddytest.FormType, "username=alice"},
		{caddytest.FormType, "username=alice&username=bob"},
		{caddytest.FormType, "x=" + strings.Repeat("x", 100_000) + "&username=alice"},
		{"multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=username\r\n\r\nalice\r\n--b--\r\n"},
	} {
		if status := login(test.contentType, test.body); status == 401 {
			t.Errorf("%s %.100q: another failed login", test.contentType, test.body)
		}
	}
	// Nothing of this was charged to another account.
	if status := login(caddytest.JSONType, `{"username":"bob"}`); status != 401 || c.Remaining(t, "accounts", "bob") != 19 {
		t.Errorf("bob: status %d", status)
	}
	// Bodies of other types count together, as an account without a name.
	for range 21 {
		login("text/plain", `{"username":"alice"}`)
	}
	if status := login("", `{"username":"alice"}`); status != 429 {
		t.Errorf("another type: status %d", status)
	}
}
