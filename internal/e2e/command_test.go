package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// decodes checks that the command printed one JSON document of this type, and returns it.
func decodes[T any](t testing.TB, r caddytest.CommandResult) (v T) {
	t.Helper()
	r.Succeeds(t)
	errtest.Report(t, caddy.StrictUnmarshalJSON([]byte(r.Out), &v), r.Line, r.Out)
	return v
}

// commandSite is a site for operators: a zone with everything that they can change, and others.
func commandSite(options string) string {
	return caddytest.Site(`zone api {
		key {header.Key}
		token_bucket 2 1h
		runtime_overrides
		override vip unlimited
		ban 3d after 100
	}
	zone login {
		match path /login
		key {client_ip}
		ipv6_prefix 64
		gcra 5 1m
	}
	` + options)
}

// Errors say what to write, to start, or to allow.
func TestCommandErrors(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, commandSite(""))
	gone := "127.0.0.1:" + redistest.FreePort(t)
	_, port, _ := strings.Cut(c.Admin, ":")
	c.RateLimit(t, "status", "--address", ":"+port).Succeeds(t)
	silent := caddytest.StartUpstream(t, func(http.ResponseWriter, *http.Request) {})
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"statsu", 2, `there is no command "statsu": did you mean status?`},
		{"frobnicate", 2, `there is no command "frobnicate"`},
		{"top --frobnicate", 2, "unknown flag: --frobnicate\nRun 'caddy rate-limit top --help' for usage."},
		{"top a b", 2, `"b" is one argument too many: write caddy rate-limit top [zone]`},
		{"top --limit 0", 2, "--limit must be at least 1, not 0"},
		{"ban", 2, "<zone> is missing: write caddy rate-limit ban <zone> <key>"},
		{"ban api", 2, "<key> is missing"},
		{"ban api k --for soon", 2, `--for "soon" is not a span of time: write for example 30m, 1h or 7d`},
		{"ban api k --for 0", 2, `--for "0" is not a span of time`},
		{"override api k", 2, "the limits are missing: write for example 'token_bucket 100 1m', or unlimited, or --remove"},
		{"override api k unlimited --remove", 2, "--remove can't be combined with limits or --for"},
		{"unban api a%2 --encoded", 2, `the key "a%2" is not percent-encoded`},
		{"explain", 2, "<url> is missing: write caddy rate-limit explain <url>"},
		{"explain https://a/ -H nothing", 2, `--header "nothing" is not a header field: write for example 'X-Api-Key: customer-7'`},
		{"top aip", 1, `there is no zone "aip" (did you mean "api"?): write one of ["api" "login"]`},
		{"override api k token_bukket 1 1s", 1, `the limit "token_bukket 1 1s": unknown algorithm "token_bukket": write unlimited, or one of calendar`},
		{"override api k gcra 5", 1, `write for example gcra 10 1s` + "\n"},
		{"ban login 2001:db8::7", 1, "write 2001:db8::/64\n"},
		{"ban api -x", 2, "in -x: write -- before a key that begins with a dash"},
		{"ban api k -for 1h", 2, "in -for: write --for\n"},
		{"status --address 2019", 2, `"2019" is not the address of an admin endpoint: write for example localhost:2019` + "\n"},
		{"status --address caddy-1", 2, "write for example caddy-1:2019\n"},
		{"status --address " + silent, 1, "answers with status 200: is it the admin endpoint of Caddy?"},
		{"status --address " + gone, 1, "no Caddy answers at " + gone + " (dial tcp " + gone + ": connect: connection refused): start Caddy"},
		{"status --address localhost:1-5", 2, `"localhost:1-5" is not the address of an admin endpoint: write for example localhost:2019`},
		{"status --address " + c.Site, 1, "is it the admin endpoint of Caddy?"},
		{"status --config none.caddyfile", 1, "the admin endpoint in none.caddyfile"},
	} {
		args := strings.Fields(test.args)
		r := c.RateLimit(t, args...).Fails(t, test.code, "Error: ", test.want)
		if r.Out != "" {
			t.Errorf("%s: it prints %q besides the error", test.args, r.Out)
		}
	}
	c.RateLimit(t, "ban", "", "k").Fails(t, 2, "the name of the zone is empty: write caddy rate-limit ban <zone> <key>")
	c.RateLimit(t, "top", "").Fails(t, 2, "the name of the zone is empty")
	caddytest.WriteFile(t, filepath.Join(filepath.Dir(c.File), "off.caddyfile"), "{\n\tadmin off\n}\n", 0o600)
	c.RateLimit(t, "status", "--config", "off.caddyfile").Fails(t, 1, "the configuration in off.caddyfile has no admin endpoint: remove admin off")
	c.RateLimit(t).Succeeds(t, "Available Commands:", "status", "Exit codes:")
}

// The command finds the admin endpoint as Caddy's own commands do.
func TestCommandFindsCaddy(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, commandSite(""))
	withoutEnv := func(args ...string) caddytest.CommandResult {
		nowhere := &caddytest.Caddy{Admin: "127.0.0.1:" + redistest.FreePort(t), Env: c.Env, File: c.File}
		return nowhere.RateLimit(t, args...)
	}
	withoutEnv("top").Fails(t, 1, "no Caddy answers")
	withoutEnv("top", "--address", c.Admin).Succeeds(t)
	if r := withoutEnv("top", "--config", c.File); r.Code != 0 { // Caddy logs that it reads the file
		t.Errorf("exit code %d: %s", r.Code, r.Err)
	}
	if r := withoutEnv("top", "-c", c.File, "-a", "caddyfile"); r.Code != 0 {
		t.Errorf("exit code %d: %s", r.Code, r.Err)
	}
	withoutEnv("top", "--config", c.File, "--adapter", "unheard").Fails(t, 1, "unheard")

	// A Caddy whose endpoint is a socket.
	socket := filepath.Join(t.TempDir(), "admin.sock")
	config := c.Expand(strings.ReplaceAll(commandSite(""), "{$ADMIN}", "unix/"+socket))
	errtest.None(t, errtest.Of(c.Do("POST", "http://"+c.Admin+"/load", config, "Content-Type", "text/caddyfile")))
	top := func() caddytest.CommandResult { return c.RateLimit(t, "top", "--address", "unix/"+socket) }
	caddytest.EventuallySees(t, "the socket serves", top, func(r caddytest.CommandResult) bool { return r.Code == 0 })
}

// A Caddy without limits, or one that doesn't accept the origin, says so.
func TestCommandWithoutAccess(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, commandSite(""))
	config := c.Expand(strings.Replace(commandSite(""), "{$ADMIN}", "{$ADMIN} {\n\t\torigins elsewhere.example:2019\n\t}", 1))
	errtest.None(t, errtest.Of(c.Do("POST", "http://"+c.Admin+"/load", config, "Content-Type", "text/caddyfile")))
	top := func() caddytest.CommandResult { return c.RateLimit(t, "top") }
	caddytest.EventuallySees(t, "the origin is not allowed", top, func(r caddytest.CommandResult) bool { return r.Code == 1 })
	c.RateLimit(t, "status").Fails(t, 1, "answers only to known addresses", "write origins "+c.Admin+" in the admin block")
}

// A request is explained without a charge. A denied one is explained by its ID, too.
func TestCommandExplain(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, strings.ReplaceAll(commandSite("problem_json\n"+use), "{header.Key}", "{header.Key}{query.key}"))
		url := "http://" + c.Site + "/login"
		for range 3 { // nothing is charged
			c.RateLimit(t, "explain", url, "-H", "Key: k", "--client-ip", "2001:db8::7").Succeeds(t,
				"allowed\n\nGET "+url+" from 2001:db8::7\n", "Handler 1 of server srv0\n",
				"api    allowed  token_bucket 2 1h          2            k\n", "login  allowed  gcra 5 1m                  5            2001:db8::/64\n")
		}
		for range 3 {
			c.Get(t, "/", "Key", "k")
		}
		other := "http://" + c.Site + "/"
		r := c.RateLimit(t, "explain", other, "-H", "Key: k").Fails(t, 3)
		if !strings.HasPrefix(r.Out, "Recently, key k of zone api: denied once, ") || !strings.Contains(r.Out, "\nNow: denied by zone api: token_bucket 2 1h, again in ") || !strings.Contains(r.Out, "Not limited by: login (no match)\n") || r.Err != "" {
			t.Errorf("it prints %s%s", r.Out, r.Err)
		}
		scripted := c.RateLimit(t, "explain", other, "-H", "Key: k", "--json").Fails(t, 3)
		var e adminapi.Explanation
		if err := caddy.StrictUnmarshalJSON([]byte(scripted.Out), &e); err != nil || e.Verdict != "denied" || e.Decides.Zone != "api" {
			t.Errorf("%s: %v", scripted.Out, err)
		}
		c.RateLimit(t, "explain", other, "-H", "Key: vip").Succeeds(t, "allowed\n", "no limit (override)")
		r = c.RateLimit(t, "explain", other+"?key=%1B%5B2J").Succeeds(t, "--encoded %1B%5B2J\n")
		if strings.Contains(r.Out, "\x1b") {
			t.Errorf("it prints %q", r.Out)
		}
		for _, posted := range [][]string{{"-d", "a=b"}, {"-d", "@body"}, {"-X", "POST", "--user", "alice"}} {
			caddytest.WriteFile(t, filepath.Join(filepath.Dir(c.File), "body"), "a=b", 0o600)
			c.RateLimit(t, append([]string{"explain", other}, posted...)...).Succeeds(t, "POST "+other)
		}
		c.RateLimit(t, "explain", other, "-d", "@none").Fails(t, 1, "--data: open none")
		for body, want := range map[string]string{`{"a":1}`: "application/json", " [1]": "application/json", "a=1": "application/x-www-form-urlencoded", "7": "application/x-www-form-urlencoded"} {
			x := decodes[adminapi.Explanation](t, c.RateLimit(t, "explain", other, "-d", body, "--json"))
			if got := x.Request.Headers["Content-Type"]; len(got) != 1 || got[0] != want {
				t.Errorf("a body %s gets the content type %v, want %s", body, got, want)
			}
		}
		c.RateLimit(t, "bans", "--limit", "all").Fails(t, 2, `"all" for "--limit" flag`)
		c.RateLimit(t, "bans", "--help").Succeeds(t, "/docs/command.md\n")
	})
}
