package ratelimit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
)

// commandResult is the outcome of a command.
type commandResult struct {
	line     string
	out, err string
	code     int
}

// rateLimit runs caddy rate-limit. Without --address it asks c.
func (c *caddyProcess) rateLimit(t testing.TB, args ...string) commandResult {
	t.Helper()
	process := c.command(append([]string{"rate-limit"}, args...)...)
	var stdout, stderr bytes.Buffer
	process.Stdout, process.Stderr = &stdout, &stderr
	err := process.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return commandResult{fmt.Sprintf("%q", args), stdout.String(), stderr.String(), process.ProcessState.ExitCode()}
}

// command returns a command of Caddy, for which c is the default.
func (c *caddyProcess) command(args ...string) *exec.Cmd {
	process := exec.Command(os.Args[0], args...)
	process.Env = append(append(os.Environ(), beCaddy+"=1", "CADDY_ADMIN="+c.admin, "GORACE=atexit_sleep_ms=10"), c.env...)
	process.Dir = filepath.Dir(c.file)
	return process
}

// succeeds checks that the command had no error, and printed these texts.
func (r commandResult) succeeds(t testing.TB, texts ...string) commandResult {
	t.Helper()
	if r.code != 0 || r.err != "" {
		t.Errorf("%s: exit code %d, %s", r.line, r.code, r.err)
	}
	for _, text := range texts {
		if !strings.Contains(r.out, text) {
			t.Errorf("%s: it prints\n%s\nwithout %q", r.line, r.out, text)
		}
	}
	return r
}

// fails checks the exit code, and that the error has these texts.
func (r commandResult) fails(t testing.TB, code int, texts ...string) commandResult {
	t.Helper()
	if r.code != code {
		t.Errorf("%s: exit code %d, want %d: %s%s", r.line, r.code, code, r.out, r.err)
	}
	for _, text := range texts {
		if !strings.Contains(r.err, text) {
			t.Errorf("%s: the error is\n%s\nwithout %q", r.line, r.err, text)
		}
	}
	return r
}

// decodes checks that the command printed one JSON document of this type, and returns it.
func decodes[T any](t testing.TB, r commandResult) (v T) {
	t.Helper()
	r.succeeds(t)
	if err := caddy.StrictUnmarshalJSON([]byte(r.out), &v); err != nil {
		t.Errorf("%s: it prints\n%s\n%v", r.line, r.out, err)
	}
	return v
}

// commandSite is a site for operators: a zone with everything that they can change, and others.
func commandSite(options string) string {
	return site(`zone api {
		key {header.Key}
		token_bucket 2 1h
		runtime_overrides
		override vip unlimited
		ban 1h after 100
	}
	zone login {
		match path /login
		key {client_ip}
		ipv6_prefix 64
		gcra 5 1m
	}
	` + options)
}

type commandStatus struct {
	Status adminapi.Status `json:"status"`
	Zones  []adminapi.Zone `json:"zones"`
}

func TestCommandStatus(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, commandSite(use))
		for range 5 {
			c.get(t, "/", "Key", "k")
		}
		store := "memory"
		if use != "" {
			store = strings.Fields(use)[1]
		}
		c.rateLimit(t, "status").succeeds(t, "Caddy at "+c.admin, store, "token_bucket 2 1h", "gcra 5 1m")
		got := decodes[commandStatus](t, c.rateLimit(t, "status", "--json"))
		if len(got.Zones) != 2 || got.Zones[0].Requests["allowed"] != 2 || got.Zones[0].Requests["denied"] != 3 {
			t.Errorf("zones %+v, want 2 requests allowed and 3 denied", got.Zones)
		}
		if got.Status.Memory == nil || (len(got.Status.Redis) == 0) != (use == "") {
			t.Errorf("status %+v", got.Status)
		}
	})
}

// The sums of several instances are shown. One that doesn't answer is an error, and the others are
// shown.
func TestCommandSeveralInstances(t *testing.T) {
	t.Parallel()
	one, other := startCaddy(t, commandSite("")), startCaddy(t, commandSite(""))
	gone := "127.0.0.1:" + redistest.FreePort(t)
	for n, c := range []*caddyProcess{one, other} {
		for range 5 + n {
			c.get(t, "/", "Key", "k")
		}
	}
	both := []string{"--address", one.admin, "--address", other.admin, "--address", one.admin}
	got := one.rateLimit(t, append(both, "top", "api")...).succeeds(t)
	if want := "ZONE  DENIED  KEY\napi        7  k\n"; got.out != want {
		t.Errorf("it prints\n%s\nwant\n%s", got.out, want)
	}
	lists := decodes[map[string][]adminapi.DeniedKey](t, one.rateLimit(t, append(both, "top", "api", "--json")...))
	if len(lists) != 2 || lists[one.admin][0].Denied != 3 || lists[other.admin][0].Denied != 4 {
		t.Errorf("lists %+v", lists)
	}
	one.rateLimit(t, append(both, "status")...).succeeds(t, "Caddy at "+one.admin, "Caddy at "+other.admin, "INSTANCE")

	partly := one.rateLimit(t, "top", "--address", gone, "--address", one.admin).fails(t, 1, "no Caddy answers at "+gone)
	if !strings.Contains(partly.out, "api") {
		t.Errorf("it prints %q, without the instance that answers", partly.out)
	}
	one.rateLimit(t, "status", "--address", gone, "--address", one.admin).fails(t, 1, "no Caddy answers at "+gone)
}

// Keys of clients can't do anything to a terminal, and can be pasted into a command.
func TestCommandHostileKeys(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, strings.ReplaceAll(commandSite(""), "{header.Key}", "{query.key}"))
	keys := map[string]string{ // percent-encoded, and as people see them
		"%1B%5B2J%1B%5D0%3Bpwned%07": "--encoded %1B%5B2J%1B%5D0%3Bpwned%07",
		"a%0Ab":                      "--encoded a%0Ab",
		"%E2%80%AEgpj.exe":           "--encoded %E2%80%AEgpj.exe",
		"a%20b":                      "'a b'",
		"%27%24%28id%29":             `''\''$(id)'`,
		"-x":                         "--encoded %2Dx",
		"":                           "''",
		"a/b%2Fc%25":                 "a/b/c%",
		strings.Repeat("z", 10_000):  strings.Repeat("z", 80) + "… (more than 256 bytes)",
	}
	for key := range keys {
		for range 3 {
			c.get(t, "/?key="+key)
		}
	}
	got := c.rateLimit(t, "top", "api").succeeds(t)
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if len(lines) != len(keys)+1 {
		t.Errorf("it prints\n%s\nwant %d keys", got.out, len(keys))
	}
	for _, shown := range keys {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasSuffix(line, "  "+shown) }) {
			t.Errorf("it prints\n%s\nwithout %s", got.out, shown)
		}
	}
}

// Errors say what to write, to start, or to allow.
func TestCommandErrors(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, commandSite(""))
	gone := "127.0.0.1:" + redistest.FreePort(t)
	_, port, _ := strings.Cut(c.admin, ":")
	another := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer another.Close()
	silent := another.Listener.Addr().String()
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
		{"override api k unlimited --remove", 2, "--remove can't stand beside limits or --for"},
		{"override api k --remove --for 1h", 2, "--remove can't stand beside limits or --for"},
		{"unban api a%2 --encoded", 2, `the key "a%2" is not percent-encoded`},
		{"explain", 2, "the URL is missing"},
		{"explain https://a/ --denial x", 2, "--denial stands for a whole request"},
		{"explain https://a/ -H nothing", 2, `--header "nothing" is not a header field: write for example 'X-Api-Key: customer-7'`},
		{"top aip", 1, "there is no zone aip at " + c.admin + ": did you mean api? Its zones: api, login"},
		{"override api k token_bukket 1 1s", 1, `the limit "token_bukket 1 1s": unknown algorithm "token_bukket": write unlimited, or one of fixed_window`},
		{"override api k gcra 5", 1, `write for example gcra 10 1s` + "\n"},
		{"ban login 2001:db8::7", 1, "write 2001:db8::/64\n"},
		{"ban api -x", 2, "in -x: write -- before a key that begins with a dash"},
		{"ban api k -for 1h", 2, "in -for: write --for\n"},
		{"status --address 2019", 2, `"2019" is not the address of an admin endpoint: write for example localhost:2019` + "\n"},
		{"status --address caddy-1", 2, "write for example caddy-1:2019\n"},
		{"status --address http://caddy-1:2019/", 2, "write for example caddy-1:2019\n"},
		{"status --address :" + port, 1, "write --address localhost:" + port},
		{"status --address " + silent, 1, "answers with status 200: is it the admin endpoint of Caddy?"},
		{"ban api k --address " + silent, 1, "answers with status 200"},
		{"top nowhere-near", 1, ": its zones: api, login"},
		{"status --address " + gone, 1, "no Caddy answers at " + gone + " (dial tcp " + gone + ": connect: connection refused): start Caddy"},
		{"status --address localhost:1-5", 2, `"localhost:1-5" is not the address of an admin endpoint: write for example localhost:2019`},
		{"status --address " + c.site, 1, "is it the admin endpoint of Caddy?"},
		{"status --config none.caddyfile", 1, "the admin endpoint in none.caddyfile"},
	} {
		args := strings.Fields(test.args)
		r := c.rateLimit(t, args...).fails(t, test.code, "Error: ", test.want)
		if r.out != "" {
			t.Errorf("%s: it prints %q besides the error", test.args, r.out)
		}
	}
	c.rateLimit(t, "ban", "", "k").fails(t, 2, "the name of the zone is empty: write caddy rate-limit ban <zone> <key>")
	c.rateLimit(t, "top", "").fails(t, 2, "the name of the zone is empty")
	writeFile(t, filepath.Join(filepath.Dir(c.file), "off.caddyfile"), "{\n\tadmin off\n}\n", 0o600)
	c.rateLimit(t, "status", "--config", "off.caddyfile").fails(t, 1, "the configuration in off.caddyfile has no admin endpoint: remove admin off")
	c.rateLimit(t).succeeds(t, "Available Commands:", "status", "Exit codes:")
}

// The command finds the admin endpoint as Caddy's own commands do.
func TestCommandFindsCaddy(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, commandSite(""))
	withoutEnv := func(args ...string) commandResult {
		nowhere := &caddyProcess{admin: "127.0.0.1:" + redistest.FreePort(t), env: c.env, file: c.file}
		return nowhere.rateLimit(t, args...)
	}
	withoutEnv("top").fails(t, 1, "no Caddy answers")
	withoutEnv("top", "--address", c.admin).succeeds(t)
	if r := withoutEnv("top", "--config", c.file); r.code != 0 { // Caddy logs that it reads the file
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if r := withoutEnv("top", "-c", c.file, "-a", "caddyfile"); r.code != 0 {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	withoutEnv("top", "--config", c.file, "--adapter", "unheard").fails(t, 1, "unheard")

	// A Caddy whose endpoint is a socket.
	socket := filepath.Join(t.TempDir(), "admin.sock")
	config := c.expand(strings.ReplaceAll(commandSite(""), "{$ADMIN}", "unix/"+socket))
	if _, err := c.do("POST", "http://"+c.admin+"/load", config, "Content-Type", "text/caddyfile"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the socket serves", func() bool { return c.rateLimit(t, "top", "--address", "unix/"+socket).code == 0 })
}

// A Caddy without limits, or one that doesn't accept the origin, says so.
func TestCommandWithoutAccess(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, commandSite(""))
	config := c.expand(strings.Replace(commandSite(""), "{$ADMIN}", "{$ADMIN} {\n\t\torigins elsewhere.example:2019\n\t}", 1))
	if _, err := c.do("POST", "http://"+c.admin+"/load", config, "Content-Type", "text/caddyfile"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the origin is not allowed", func() bool { return c.rateLimit(t, "top").code == 1 })
	c.rateLimit(t, "status").fails(t, 1, "answers only to known addresses", "write origins "+c.admin+" in the admin block")
}

func TestCommandWithoutZones(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nrespond ok\n")
	c.rateLimit(t, "top").fails(t, 1, "the configuration in force has no rate_limit: write at least one zone")
	c.rateLimit(t, "top", "api").fails(t, 1, "the configuration in force has no rate_limit: write at least one zone")
}

// Shells complete commands, zones and keys, and never see an error.
func TestCommandCompletion(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, commandSite(""))
	for _, key := range []string{"customer-7", "a b"} {
		for range 3 {
			c.get(t, "/", "Key", key)
		}
	}
	complete := func(args ...string) []string {
		output, err := c.command(append([]string{"__complete", "rate-limit"}, args...)...).Output()
		if err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		if lines[len(lines)-1] != ":4" { // no file names
			t.Errorf("%q: the last line is %q", args, lines[len(lines)-1])
		}
		return lines[:len(lines)-1]
	}
	for _, test := range []struct {
		args, want []string
	}{
		{[]string{"ban", ""}, []string{"api"}}, // login has no bans
		{[]string{"override", ""}, []string{"api"}},
		{[]string{"reset", ""}, []string{"api", "login"}},
		{[]string{"ban", "api", "k", "--for", ""}, nil},
		{[]string{"key", "api", ""}, []string{"customer-7"}},
		{[]string{"top", ""}, []string{"api", "login"}},
		{[]string{"top", "api", ""}, nil},
		{[]string{"reset", "api", ""}, []string{"customer-7"}},
		{[]string{"reset", "nowhere", ""}, nil},
		{[]string{"ban", "--address", "127.0.0.1:" + redistest.FreePort(t), ""}, nil},
		{[]string{"ban", "--config", "none", ""}, nil},
		{[]string{"explain", ""}, nil},
	} {
		// On a busy machine the words can come too late for the shell.
		eventually(t, fmt.Sprintf("%q completes as %q", test.args, test.want), func() bool {
			return slices.Equal(complete(test.args...), test.want)
		})
	}
	eventually(t, "limits complete", func() bool {
		got := complete("override", "api", "k", "")
		return slices.Contains(got, "token_bucket") && slices.Contains(got, "unlimited")
	})
	script, err := c.command("completion", "bash").Output()
	if err != nil || !bytes.Contains(script, []byte("__complete")) {
		t.Errorf("the script for bash: %v", err)
	}
}

// A shell that completes keys doesn't wait for all of a slow Redis.
func TestCommandCompletionEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	link, err := relay.Start(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	c := startCaddy(t, commandSite("redis "+link.Addr+" {\n timeout 30s\n}"))
	const keys, keysPerPage = 5000, 100 // of another program
	var foreign []any
	for i := range keys {
		foreign = append(foreign, fmt.Sprint("foreign ", i), "value")
	}
	if err := server.Client.MSet(t.Context(), foreign...).Err(); err != nil {
		t.Fatal(err)
	}
	link.Set(relay.Fault{}, relay.Fault{Delay: 600 * time.Millisecond}) // so a page takes longer than a page may
	if output, err := c.command("__complete", "rate-limit", "unban", "api", "").Output(); err != nil || string(output) != ":4\n" {
		t.Errorf("it prints %q: %v", output, err)
	}
	link.Set(relay.Fault{}, relay.Fault{})
	scans := server.Client.InfoMap(t.Context(), "commandstats").Item("Commandstats", "cmdstat_scan")
	var calls int
	if _, err := fmt.Sscanf(scans, "calls=%d,", &calls); err != nil || calls == 0 || calls >= keys/keysPerPage/2 {
		t.Errorf("it read %d pages: %v", calls, err)
	}
}

// A request is explained without a charge. A denied one is explained by its ID, too.
func TestCommandExplain(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, strings.ReplaceAll(commandSite("problem_json\n"+use), "{header.Key}", "{header.Key}{query.key}"))
		url := "http://" + c.site + "/login"
		for range 3 { // nothing is charged
			c.rateLimit(t, "explain", url, "-H", "Key: k", "--client-ip", "2001:db8::7").succeeds(t,
				"allowed\n\nGET "+url+" from 2001:db8::7\n", "Handler 1 of server srv0\n",
				"api    allowed  token_bucket 2 1h          2            k\n", "login  allowed  gcra 5 1m                  5            2001:db8::/64\n")
		}
		var denied struct {
			ID string `json:"denial"`
		}
		for range 3 {
			r := c.get(t, "/%C2%9B2J", "Key", "k") // a control character of terminals
			_ = json.Unmarshal([]byte(r.body), &denied)
		}
		other := "http://" + c.site + "/"
		r := c.rateLimit(t, "explain", other, "-H", "Key: k").fails(t, 3)
		if !strings.HasPrefix(r.out, "denied by zone api: token_bucket 2 1h, again in ") || !strings.Contains(r.out, "Not limited by: login (no match)\n") || r.err != "" {
			t.Errorf("it prints %s%s", r.out, r.err)
		}
		scripted := c.rateLimit(t, "explain", other, "-H", "Key: k", "--json").fails(t, 3)
		var e adminapi.Explanation
		if err := caddy.StrictUnmarshalJSON([]byte(scripted.out), &e); err != nil || e.Verdict != "denied" || e.Decides.Zone != "api" {
			t.Errorf("%s: %v", scripted.out, err)
		}
		c.rateLimit(t, "explain", other, "-H", "Key: vip").succeeds(t, "allowed\n", "no limit (override)")
		r = c.rateLimit(t, "explain", other+"?key=%1B%5B2J").succeeds(t, "--encoded %1B%5B2J\n")
		if strings.Contains(r.out, "\x1b") {
			t.Errorf("it prints %q", r.out)
		}
		for _, posted := range [][]string{{"-d", "a=b"}, {"-d", "@body"}, {"-X", "POST", "--user", "alice"}} {
			writeFile(t, filepath.Join(filepath.Dir(c.file), "body"), "a=b", 0o600)
			c.rateLimit(t, append([]string{"explain", other}, posted...)...).succeeds(t, "POST "+other)
		}
		c.rateLimit(t, "explain", other, "-d", "@none").fails(t, 1, "--data: open none")

		if denied.ID == "" {
			t.Fatal("the denial has no ID")
		}
		r = c.rateLimit(t, "explain", "--denial", denied.ID).fails(t, 3)
		if !strings.HasPrefix(r.out, "Then, at ") || !strings.Contains(r.out, ": denied by zone api: token_bucket 2 1h, again in ") ||
			!strings.Contains(r.out, "\n\nGET "+c.site+`/\u009b2J from 127.0.0.1`+"\n\nZONE") ||
			!strings.Contains(r.out, "\nNow: denied by zone api") {
			t.Errorf("it prints\n%s", r.out)
		}
		scripted = c.rateLimit(t, "explain", "--denial", denied.ID, "--json").fails(t, 3)
		if !strings.Contains(scripted.out, `"path":"/\u009b2J"`) {
			t.Errorf("it prints %q", scripted.out)
		}
		unknowing := startCaddy(t, commandSite(use))
		r = c.rateLimit(t, "explain", "--denial", denied.ID, "--address", unknowing.admin, "--address", c.admin).fails(t, 3)
		if !strings.HasPrefix(r.out, "Caddy at "+c.admin+":\nThen, at ") || r.err != "" {
			t.Errorf("of two instances it prints\n%s%s", r.out, r.err)
		}
		c.rateLimit(t, "explain", "--denial", "nonesuch").fails(t, 1, `the denial ID "nonesuch" is unknown here`)
	})
}

// A command reads only a part of an answer that has no end.
func TestCommandLongAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "long"), `"`, 0o600)
	if err := os.Truncate(filepath.Join(dir, "long"), 65<<20); err != nil { // of zero bytes
		t.Fatal(err)
	}
	c := startCaddy(t, "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nrespond /ready ok\nroot "+dir+"\nrewrite /rate_limit/* /long\nfile_server\n")
	c.rateLimit(t, "status", "--address", c.site).fails(t, 1, "the answer of "+c.site+" is longer than 67108864 bytes: is it the admin endpoint of Caddy?")
}
