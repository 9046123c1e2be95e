package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/logtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/propose"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// generatedLog writes a log, and returns the name of its file.
func generatedLog(t testing.TB, o logtest.Options) string {
	t.Helper()
	var log bytes.Buffer
	errtest.None(t, logtest.Write(&log, o))
	file := filepath.Join(t.TempDir(), "access.log")
	caddytest.WriteFile(t, file, log.String(), 0o600)
	return file
}

// replayLog replays a log through the configurations of Caddyfiles.
func replayLog(t testing.TB, file string, workers int, caddyfiles ...string) *report.Report {
	t.Helper()
	log, err := accesslog.Open(accesslog.Options{Names: []string{file}})
	errtest.None(t, err)
	o := simulate.ReplayOptions{Log: log, Files: []string{"access.log"}, Workers: workers}
	o.NewProposer = func(c simulate.Configuration) simulate.Proposer { return propose.NewRecorder(c, propose.DefaultTarget) }
	for _, caddyfile := range caddyfiles {
		o.Configurations = append(o.Configurations, simulate.NamedConfiguration{Name: "Caddyfile", Configuration: loadSimulation(t, caddyfile)})
	}
	report, err := simulate.Replay(o)
	errtest.None(t, err)
	return report
}

// The report of one worker is byte for byte that of eight, also if many requests begin at the same instant.
func TestSimulateWorkers(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	other := strings.Replace(logtest.Site, "token_bucket 20 1s 100", "fixed_window 10 1m\n\t\t\tconcurrency 2\n\t\t\tdelay 100ms", 1)
	for _, o := range []logtest.Options{
		{Requests: 10_000, Clients: 50, PerSecond: 200},
		{Requests: 20_000, Clients: 20, PerSecond: 1e7},
	} {
		file := generatedLog(t, o)
		var first []byte
		for _, workers := range []int{1, 2, 8} {
			answer := replayLog(t, file, workers, logtest.Site, other)
			var text bytes.Buffer
			errtest.None(t, report.WriteJSON(&text, answer))
			if c := answer.Configurations; c[0].Denied == 0 || c[1].Denied == 0 || answer.Comparison.NewlyDenied == 0 {
				t.Fatalf("the log shows too little: %s", text.Bytes())
			}
			if first == nil {
				first = text.Bytes()
			} else if !bytes.Equal(text.Bytes(), first) {
				t.Errorf("%+v: %d workers report %d bytes that differ from those of one", o, workers, text.Len())
			}
		}
	}
}

// simulateIn returns the command simulate in a directory.
func simulateIn(dir string, args ...string) *exec.Cmd {
	c := &caddytest.Caddy{File: filepath.Join(dir, "Caddyfile"), Env: []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}}
	return c.Command(append([]string{"rate-limit", "simulate"}, args...)...)
}

// simulationDirectory returns a directory with a Caddyfile and a log of 200 requests.
func simulationDirectory(t testing.TB) string {
	t.Helper()
	dir := filepath.Dir(generatedLog(t, logtest.Options{Requests: 200, Clients: 10}))
	caddytest.WriteFile(t, filepath.Join(dir, "Caddyfile"), logtest.Site, 0o600)
	return dir
}

// Each error has its exit code, says what to do, and prints no report.
func TestSimulateErrors(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	dir := simulationDirectory(t)
	file := func(name, text string) string {
		caddytest.WriteFile(t, filepath.Join(dir, name), text, 0o600)
		return name
	}
	file("nothing.caddyfile", ":80 {\n\trespond hello\n}")
	file("wrong.caddyfile", ":80 {\n\trate_limit {\n\t\tzone api {\n\t\t\tkey {client_ip}\n\t\t\ttoken_bukket 1 1s\n\t\t}\n\t}\n}")
	file("text", "something else")
	file("messages.log", `{"level":"info","ts":1767225600,"logger":"admin","msg":"admin endpoint started"}`+"\n")
	for _, test := range []struct {
		args string
		code int
		text string
	}{
		{"", 2, "<log...> is missing: write caddy rate-limit simulate <log...>"},
		{"access.log --format xml", 2, `there is no format "xml": write text, json or html`},
		{"access.log --json --format html", 2, "--json and --format html can't be combined"},
		{"access.log --address localhost:2019", 2, "leave out --address"},
		{"access.log --propose 5", 2, "write 5%"},
		{"access.log --propose=", 2, "write for example 0.1%"},
		{"access.log --zone key --config Caddyfile", 2, "--zone and --config can't be combined"},
		{"access.log --zone key --compare Caddyfile", 2, "--zone and --compare can't be combined"},
		{"access.log --zone kee", 2, `--zone: unknown option "kee"`},
		{"access.log --config -", 2, "name its file"},
		{"access.log --adapter cadyfile", 2, "there is no config adapter \"cadyfile\": write one of caddyfile"},
		{"- -", 2, "named twice"},
		{"access.log --config none", 1, `there is no configuration file "none"`},
		{"access.log --config text", 1, "text is not JSON: name its adapter, for example --adapter caddyfile"},
		{"access.log --config nothing.caddyfile", 1, "nothing.caddyfile: the configuration limits no requests: write rate_limit with a zone"},
		{"access.log --config wrong.caddyfile", 1, "wrong.caddyfile:5"},
		{"access.log --compare nothing.caddyfile", 1, "nothing.caddyfile: the configuration limits no requests"},
		{"access.log --compare=", 1, "there is no configuration file"},
		{"access.log none*.log", 1, "no log file matches none*.log: check the name, and that you can read its directory"},
		{"[", 1, "there is no log file ["},
		{"messages.log", 1, "there is no request in messages.log: 1 line is not a request: name an access log"},
	} {
		process := simulateIn(dir, strings.Fields(test.args)...)
		if r := caddytest.RunCommand(t, process).Fails(t, test.code, test.text); r.Out != "" {
			t.Errorf("%s: it prints %q", r.Line, r.Out)
		}
	}
	caddytest.RunCommand(t, simulateIn(t.TempDir(), filepath.Join(dir, "access.log"))).Fails(t, 1, "no Caddyfile in this directory: name a configuration with --config")
}

// Configurations are read as caddy run reads them: by their name or adapter, with imports and the
// environment.
func TestSimulateConfigurations(t *testing.T) {
	t.Parallel()
	dir := simulationDirectory(t)
	caddytest.WriteFile(t, filepath.Join(dir, "limits"), "key {client_ip}\nipv6_prefix 64\nfixed_window {$EVENTS} 1h\n", 0o600)
	site := "example.com {\n\trate_limit {\n\t\tzone api {\n\t\t\timport limits\n\t\t}\n\t}\n}"
	caddytest.WriteFile(t, filepath.Join(dir, "Caddyfile"), site, 0o600)
	caddytest.WriteFile(t, filepath.Join(dir, "site"), site, 0o600)
	adapted := simulateIn(dir)
	adapted.Args = []string{adapted.Args[0], "adapt"}
	adapted.Env = append(adapted.Env, "EVENTS=3")
	caddytest.WriteFile(t, filepath.Join(dir, "caddy.json"), caddytest.RunCommand(t, adapted).Out, 0o600)
	for _, args := range [][]string{
		{},
		{"--config", "Caddyfile"},
		{"--config", "site", "--adapter", "caddyfile"},
		{"--config", "caddy.json"},
		{"--config", "site", "--compare", "Caddyfile", "--adapter", "caddyfile"},
	} {
		process := simulateIn(dir, append(args, "--json", "access.log")...)
		process.Env = append(process.Env, "EVENTS=3")
		r := decodes[report.Report](t, caddytest.RunCommand(t, process))
		if got := r.Configurations[0].Zones[0].Limits; !slices.Equal(got, []string{"fixed_window 3 1h"}) || r.Configurations[0].Denied == 0 {
			t.Errorf("%q: the limits are %q", args, got)
		}
	}
}

// The command expands patterns itself, because the shell of Windows leaves them as they are. A file of that very
// name comes first.
func TestSimulatePatterns(t *testing.T) {
	t.Parallel()
	dir := simulationDirectory(t)
	log := caddytest.ReadFile(t, filepath.Join(dir, "access.log"))
	for _, name := range []string{"b2.log", "b10.log", "c.log", "[b]1.log", "b1.log"} {
		caddytest.WriteFile(t, filepath.Join(dir, name), log, 0o600)
	}
	for _, test := range []struct {
		names string
		want  []string
	}{
		{"c.log b*.log access.log", []string{"c.log", "b1.log", "b10.log", "b2.log", "access.log"}},
		{"b?.lo[g]", []string{"b1.log", "b2.log"}},
		{"[b]1.log", []string{"[b]1.log"}},
		{"[b]2.log", []string{"b2.log"}},
	} {
		process := simulateIn(dir, append([]string{"--json"}, strings.Fields(test.names)...)...)
		r := decodes[report.Report](t, caddytest.RunCommand(t, process))
		if got := r.Log.Files; !slices.Equal(got, test.want) || r.Log.Lines != int64(200*len(test.want)) {
			t.Errorf("%s: %d lines of the files %q, want %q", test.names, r.Log.Lines, got, test.want)
		}
	}
}

// Shells complete the names of files, and the values of flags.
func TestSimulateCompletion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct{ args, want string }{
		{"", ":0"},
		{"access.log ", ":0"},
		{"--config ", ":0"},
		{"--compare ", ":0"},
		{"--format ", "text\tfor people, on a terminal json\tfor scripts html\ta page with plots :4"},
		{"--adapter ", "caddyfile :4"},
	} {
		process := simulateIn(dir)
		process.Args = append([]string{process.Args[0], "__complete", "rate-limit", "simulate"}, strings.Split(test.args, " ")...)
		r := caddytest.RunCommand(t, process)
		if got := strings.Join(strings.Split(strings.TrimSpace(r.Out), "\n"), " "); got != test.want {
			t.Errorf("%q: %q, want %q", test.args, got, test.want)
		}
	}
}

// The report counts lines that are not requests, and shows the first ones that can't be read.
func TestSimulateBrokenLines(t *testing.T) {
	t.Parallel()
	dir := simulationDirectory(t)
	lines := strings.SplitAfter(caddytest.ReadFile(t, filepath.Join(dir, "access.log")), "\n")[:200]
	for i := 9; i < 80; i += 10 {
		lines[i] = lines[i][:50] + "\n" // 10, 20 … 80
	}
	lines[100] = `{"level":"info","ts":1767225600,"logger":"admin","msg":"admin endpoint started"}` + "\n"
	caddytest.WriteFile(t, filepath.Join(dir, "access.log"), strings.Join(lines, ""), 0o600)
	r := decodes[report.Report](t, caddytest.RunCommand(t, simulateIn(dir, "--json", "access.log"))).Log
	if r.Lines != 200 || r.Requests != 191 || r.BrokenLines != 8 || r.OtherLines != 1 || len(r.Broken) != 5 {
		t.Errorf("the log is counted as %+v", r)
	}
	for i, b := range r.Broken {
		if b.File != "access.log" || b.Line != int64(10*i+10) || b.Error == "" {
			t.Errorf("a broken line: %+v", b)
		}
	}
}
