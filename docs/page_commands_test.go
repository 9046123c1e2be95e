package docs_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// notRun are the beginnings of the commands that tests don't run, and why.
var notRun = map[string]string{
	"xcaddy build":      "the module is not published; scripts/xcaddy.sh builds it from the checkout",
	"./scripts/test.sh": "it runs this test",
	"git clone":         "it needs the network",
	"docker ":           "it needs a Docker engine; TestImage checks what the Dockerfile relies on",
	"sudo ":             "it changes the system",
	"go doc ":           "it needs the module's directory",
	"go test ":          "it needs the module's directory, where ./scripts/test.sh runs these tests",
	"fail2ban-regex":    "TestFail2ban runs it where it is installed",
	"cscli":             "CrowdSec is checked by hand",
}

// No exception outlives the command that it was made for.
func TestNotRunIsUsed(t *testing.T) {
	var all strings.Builder
	for _, page := range caddytest.Pages(t) {
		for _, b := range caddytest.BlocksOf(t, page) {
			for _, c := range commandsOf(b) {
				all.WriteString("\n" + c.line)
			}
		}
	}
	for beginning := range notRun {
		if !strings.Contains(all.String(), "\n"+beginning) {
			t.Errorf("no page has a command that begins with %q", beginning)
		}
	}
}

// Every command on a page does what the page shows.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range caddytest.Pages(t) {
		if page == "CONTRIBUTING.md" {
			continue
		}
		blocks := caddytest.BlocksOf(t, page)
		if !slices.ContainsFunc(blocks, func(b caddytest.Block) bool { return b.Language == "console" || b.Language == "sh" }) {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			if runtime.GOOS != "linux" && slices.ContainsFunc(blocks, onLinuxOnly) {
				t.Skip("it uses addresses such as 127.0.0.2, or shows what uniq -c prints on Linux")
			}
			if slices.ContainsFunc(blocks, waits) {
				caddytest.Long(t)
			}
			newPageRun(t, blocks).all(t, page, blocks)
		})
	}
}

// onLinuxOnly reports whether the commands of a block do the same only on Linux.
func onLinuxOnly(b caddytest.Block) bool {
	return b.Language == "console" && (strings.Contains(b.Text, "--interface 127.") || strings.Contains(b.Text, "uniq -c"))
}

// waits reports whether the commands of a block pause, or stop a Redis.
func waits(b caddytest.Block) bool {
	return b.Language == "console" && (strings.Contains(b.Text, "sleep ") || strings.Contains(b.Text, "redis-server"))
}

// commonPorts are the ports that pages name: sites, the admin endpoint, applications and Redis. In
// a test others stand for them.
var commonPorts = []string{"8080", "8081", "8082", "8083", "9000", "9001", "9002", "9091", "8923", "2019", "2020", "6379", "6380", "6381"}

var portOnPage = regexp.MustCompile(`(:|-p |--port )(` + strings.Join(commonPorts, "|") + `)\b`)

// pageRun executes the commands of one page in a separate directory. One goroutine uses it.
type pageRun struct {
	dir string
	env []string

	// ports has the port of the test for each port of the page.
	ports map[string]string

	// config is the last configuration of the page that has a site to try. running is the configuration of
	// current, the Caddy that the commands ask.
	config, running caddytest.Block
	current         *caddytest.Background

	// apps has the ports of applications, and redis reports whether there is a Redis, that the test has started.
	apps  map[string]bool
	redis bool

	// redisFails reports whether the page shows what happens while Redis fails.
	redisFails bool
}

func newPageRun(t *testing.T, blocks []caddytest.Block) *pageRun {
	t.Helper()
	p := &pageRun{dir: t.TempDir(), ports: make(map[string]string), apps: make(map[string]bool)}
	for _, port := range commonPorts {
		p.ports[port] = redistest.FreePort(t)
	}
	for _, b := range blocks {
		p.redisFails = p.redisFails || strings.Contains(b.Text, "client pause")
		if !p.redis && (b.Language == "console" || b.Language == "sh") && strings.Contains(b.Text, "6379") {
			p.startRedis(t)
		}
	}
	bin := filepath.Join(p.dir, ".bin")
	caddytest.WriteCaddyCommand(t, filepath.Join(bin, "caddy"))
	curl, _ := exec.LookPath("curl")
	caddytest.WriteFile(t, filepath.Join(bin, "curl"), fmt.Sprintf("#!/bin/sh\nexec '%s' -sS $CURL_OPTIONS \"$@\"\n", curl), 0o755) // no progress, but errors
	p.env = append(os.Environ(),
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"HOME="+p.dir, "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir,
		"CADDY_ADMIN=localhost:"+p.ports["2019"],
		"REDIS_PASSWORD=secret", // as in the commands of the pages
		"LC_ALL=C")              // the pages have the messages of programs in English
	p.copyExamples(t)
	return p
}

func (p *pageRun) startRedis(t *testing.T) {
	t.Helper()
	p.redis = true
	_, p.ports["6379"], _ = net.SplitHostPort(redistest.Start(t).Addr)
}

// copyExamples puts the Caddyfiles and the access logs of the repository where the page's commands find them.
func (p *pageRun) copyExamples(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("examples/*/Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "Caddyfile.example") {
		caddytest.WriteFile(t, filepath.Join(p.dir, file), p.withPorts(caddytest.ReadFile(t, file)), 0o644)
	}
	logs, err := filepath.Glob("examples/*/access.log.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range logs {
		caddytest.WriteFile(t, filepath.Join(p.dir, file), caddytest.ReadFile(t, file), 0o644)
	}
}

// withPorts replaces the ports of the page, and the directory of its logs, by those of the test.
func (p *pageRun) withPorts(text string) string {
	text = strings.ReplaceAll(text, caddytest.LogsOnPage, p.dir)
	return portOnPage.ReplaceAllStringFunc(text, func(found string) string {
		m := portOnPage.FindStringSubmatch(found)
		return m[1] + p.ports[m[2]]
	})
}

// asOnPage replaces the ports of the test by those of the page.
func (p *pageRun) asOnPage(text string) string {
	for common, real := range p.ports {
		text = regexp.MustCompile(`\b`+real+`\b`).ReplaceAllLiteralString(text, common)
	}
	return text
}

func (p *pageRun) all(t *testing.T, page string, blocks []caddytest.Block) {
	t.Helper()
	for _, b := range blocks {
		switch b.Language {
		case "caddyfile", "json":
			if strings.Contains(b.Text, ":8080 {") || strings.Contains(b.Text, `":8080"`) {
				p.config = b
			}
		case "console", "sh":
			if !p.block(t, fmt.Sprintf("%s:%d", page, b.Line), b) {
				return // what comes later may depend on it
			}
		}
	}
}

// pageCommand is a line to run, and the output that it should have.
type pageCommand struct {
	line, want string
	compare    bool // whether there is an output to compare
}

// commandsOf splits a block. In a console block commands begin with a dollar sign.
func commandsOf(b caddytest.Block) (commands []pageCommand) {
	lines := strings.SplitAfter(strings.ReplaceAll(b.Text, "\\\n", "\\\x00"), "\n")
	for _, line := range lines {
		line = strings.ReplaceAll(line, "\\\x00", "\\\n")
		switch entered, isCommand := strings.CutPrefix(line, "$ "); {
		case b.Language == "sh" && strings.TrimSpace(line) != "":
			commands = append(commands, pageCommand{line: strings.TrimSpace(line)})
		case b.Language == "console" && isCommand:
			commands = append(commands, pageCommand{line: strings.TrimSpace(entered), compare: true})
		case b.Language == "console" && len(commands) > 0:
			commands[len(commands)-1].want += line
		}
	}
	return commands
}

// block runs the commands of a block and reports whether they did as they should.
func (p *pageRun) block(t *testing.T, place string, b caddytest.Block) (ok bool) {
	t.Helper()
	var script []pageCommand // to be run by one shell
	run := func() bool {
		defer func() { script = nil }()
		return len(script) == 0 || p.shell(t, place, script)
	}
	for _, c := range commandsOf(b) {
		foreground, isBackground := strings.CutSuffix(c.line, " &")
		foreground = strings.Replace(foreground, "go run ./cmd/caddy", "caddy", 1)
		startsCaddy := strings.HasPrefix(foreground, "caddy run")
		switch {
		case isNotRun(c.line):
			continue
		case isBackground || startsCaddy:
			if !run() {
				return false
			}
			if !isBackground {
				p.current.Stop() // the page goes on with this one
				p.config, p.running = caddytest.Block{}, caddytest.Block{}
			}
			started := p.start(t, foreground)
			if !isBackground {
				p.current = started
			}
		default:
			if p.config != p.running {
				p.startCaddy(t)
			}
			script = append(script, c)
		}
	}
	return run()
}

// isNotRun reports whether a command is one that tests don't run.
func isNotRun(line string) bool {
	for beginning := range notRun {
		if strings.HasPrefix(line, beginning) {
			return true
		}
	}
	return false
}

// startCaddy replaces the running Caddy by one with the page's last configuration.
func (p *pageRun) startCaddy(t *testing.T) {
	t.Helper()
	p.current.Stop()
	p.running = p.config
	for _, port := range []string{"9000", "9001", "9002"} {
		used, served := strings.Contains(p.config.Text, ":"+port), strings.Contains(p.config.Text, "\n:"+port+" {")
		if used && !served && !p.apps[port] {
			p.apps[port] = true
			p.startApplication(t, p.ports[port])
		}
	}
	if strings.Contains(p.config.Text, "localhost:6379") && !p.redis {
		p.startRedis(t)
	}
	file := map[string]string{"caddyfile": "Caddyfile", "json": "caddy.json"}[p.config.Language]
	text := p.config.Text
	if !p.redisFails {
		text = patient(text)
	}
	caddytest.WriteFile(t, filepath.Join(p.dir, file), p.withPorts(text), 0o644)
	p.current = p.start(t, "caddy run --config "+file)
}

var redisLine = regexp.MustCompile(`(?m)^(\s*redis localhost:6379)( \{)?$`)

// patient gives a Caddyfile a longer timeout, because the machine of a test can stall for longer than the default.
func patient(caddyfile string) string {
	return redisLine.ReplaceAllStringFunc(caddyfile, func(line string) string {
		line, hasBlock := strings.CutSuffix(line, " {")
		line += " {\ntimeout 10s"
		if !hasBlock {
			line += "\n}"
		}
		return line
	})
}

// startApplication stands in for what a page's Caddy is a proxy of.
func (p *pageRun) startApplication(t *testing.T, port string) {
	t.Helper()
	listener, err := net.Listen("tcp", "localhost:"+port)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("Hello.")) })}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// endOf marks the end of a command's output.
const endOf = "---- the end of the output of command "

// shell runs commands in one shell and compares the output of each with the page.
func (p *pageRun) shell(t *testing.T, place string, script []pageCommand) (ok bool) {
	t.Helper()
	var text strings.Builder
	for i, c := range script {
		fmt.Fprintf(&text, "%s\nstatus=$?; echo; echo '%s%d'\n", p.withPorts(c.line), endOf, i)
		if !c.compare {
			text.WriteString("if [ $status != 0 ]; then exit 1; fi\n")
		}
	}
	shell := exec.Command("bash", "-c", text.String())
	shell.Dir, shell.Env = p.dir, p.env
	if !script[0].compare { // nothing but its exit status tells how a command went
		shell.Env = append(slices.Clone(p.env), "CURL_OPTIONS=--fail")
	}
	var printed pageOutput
	shell.Stdout, shell.Stderr = &printed, &printed
	err := shell.Run()
	rest := p.asOnPage(strings.ReplaceAll(printed.text.String(), "\r", ""))
	if err != nil {
		t.Errorf("%s: %v\n%s\n%s", place, err, text.String(), rest)
		return false
	}
	for i, c := range script {
		var got string
		got, rest, _ = strings.Cut(rest, fmt.Sprintf("\n%s%d\n", endOf, i))
		if c.compare && !outputPattern(c.want).MatchString(tidyOutput(got)) {
			t.Errorf("%s: %s\n---- printed\n%s---- but the page says\n%s", place, c.line, tidyOutput(got), c.want)
			return false
		}
	}
	return true
}

// pageOutput is the output of the commands of a block. It has a bound, because a command that unexpectedly
// succeeds can print a whole download.
type pageOutput struct{ text strings.Builder }

func (o *pageOutput) Write(text []byte) (int, error) {
	const most = 1 << 20
	if o.text.Len()+len(text) > most {
		return 0, errors.New("the commands print too much")
	}
	return o.text.Write(text)
}

// tidyOutput removes spaces at the ends of lines, and empty lines at the end, which can't be seen. The width of
// a column does not matter, because ports of tests can be longer than those of pages.
func tidyOutput(output string) string {
	output = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(output, "")
	output = regexp.MustCompile(` {2,}`).ReplaceAllLiteralString(output, "  ")
	if output = strings.Trim(output, "\n"); output != "" {
		output += "\n"
	}
	return output
}

// outputPattern matches an output like the one on the page, in which … is any text, and a line …
// any lines.
func outputPattern(want string) *regexp.Regexp {
	pattern := regexp.QuoteMeta(tidyOutput(want))
	pattern = regexp.MustCompile(`(?m)^…\n`).ReplaceAllLiteralString(pattern, `(?:.*\n)*?`)
	pattern = strings.ReplaceAll(pattern, "…", `.*?`)
	return regexp.MustCompile(`^` + pattern + `$`)
}

// start starts a server and waits until it serves. The server ends with the test.
func (p *pageRun) start(t *testing.T, line string) *caddytest.Background {
	t.Helper()
	process := exec.Command("bash", "-c", "exec "+p.withPorts(line))
	process.Dir, process.Env = p.dir, slices.Clone(p.env)
	var log caddytest.Output
	b := caddytest.StartBackground(t, process, &log)
	t.Cleanup(func() {
		b.Stop()
		if text := log.String(); t.Failed() || strings.Contains(text, "DATA RACE") {
			t.Errorf("log of %s:\n%s", line, text)
		}
	})
	serves := regexp.MustCompile(`serving initial configuration|Ready to accept connections`)
	caddytest.Eventually(t, line+" serves", func() bool {
		select {
		case <-b.Ended:
			t.Fatalf("%s: it ended", line)
		default:
		}
		return serves.MatchString(log.String())
	})
	return b
}
