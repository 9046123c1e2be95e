package docs_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// commonPorts are the ports that pages name: sites, the admin endpoint, applications and Redis. In
// a test others stand for them.
var commonPorts = []string{"8080", "8081", "8082", "8083", "9000", "9001", "9002", "9091", "8923", "2019", "2020", "6379", "6380", "6381"}

var portOnPage = regexp.MustCompile(`(:|-p |--port )(` + strings.Join(commonPorts, "|") + `)\b`)

// pageRun executes the commands of one page in a separate directory. One goroutine uses it.
type pageRun struct {
	t        *testing.T // of the page
	dir      string
	programs *pagePrograms

	// ports has the port of the test for each port of the page.
	ports map[string]string

	// config is the last configuration of the page that has a site to try. The commands ask caddy, which runs that
	// configuration, or started, which a command of the page has started.
	config  caddytest.Block
	caddy   *caddytest.Caddy
	started *caddytest.Background

	// apps has the ports of applications, and redis reports whether there is a Redis, that the test has started.
	apps  map[string]bool
	redis bool
}

func newPageRun(t *testing.T, blocks []caddytest.Block) *pageRun {
	t.Helper()
	p := &pageRun{t: t, dir: t.TempDir(), ports: make(map[string]string), apps: make(map[string]bool)}
	for _, port := range commonPorts {
		p.ports[port] = redistest.FreePort(t)
	}
	for _, b := range blocks {
		if !p.redis && (b.Language == "console" || b.Language == "sh") && strings.Contains(b.Text, "6379") {
			p.startRedis()
		}
	}
	bin := filepath.Join(p.dir, ".bin")
	caddytest.WriteCaddyCommand(t, filepath.Join(bin, "caddy"))
	curl, _ := exec.LookPath("curl")
	// No progress, but errors. A client with a separate address has a port that the system doesn't give to others. A server
	// of a test could not listen on that port for a minute.
	caddytest.WriteFile(t, filepath.Join(bin, "curl"), fmt.Sprintf("#!/bin/sh\n"+
		"case \" $* \" in *' --interface '*) set -- --local-port 12000-32000 \"$@\";; esac\nexec '%s' -sS $CURL_OPTIONS \"$@\"\n", curl), 0o755)
	p.copyExamples(t)
	p.programs = servePrograms(t, p)
	return p
}

// env is the environment of commands.
func (p *pageRun) env() []string {
	return append(os.Environ(),
		"PATH="+filepath.Join(p.dir, ".bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"HOME="+p.dir, "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir,
		"CADDY_ADMIN=localhost:"+p.ports["2019"],
		"REDIS_PASSWORD=secret", // as in the commands of the pages
		"LC_ALL=C")              // the pages have the messages of programs in English
}

func (p *pageRun) startRedis() {
	p.t.Helper()
	p.redis = true
	_, p.ports["6379"], _ = net.SplitHostPort(redistest.Start(p.t).Addr)
}

// copyExamples puts the Caddyfiles and the access logs of the repository where the page's commands find them.
func (p *pageRun) copyExamples(t *testing.T) {
	t.Helper()
	files, _ := filepath.Glob("examples/*/Caddyfile")
	for _, file := range append(files, "Caddyfile.example") {
		caddytest.WriteFile(t, filepath.Join(p.dir, file), p.withPorts(caddytest.ReadFile(t, file)), 0o644)
	}
	logs, _ := filepath.Glob("examples/*/access.log.gz")
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

// pageSection is a configuration, and the commands below it.
type pageSection struct {
	config   caddytest.Block
	commands []caddytest.Block
}

// sectionsOf splits a page. The first section may have no configuration.
func sectionsOf(blocks []caddytest.Block) []pageSection {
	sections := make([]pageSection, 1)
	for _, b := range blocks {
		last := &sections[len(sections)-1]
		switch b.Language {
		case "caddyfile", "json":
			if strings.Contains(b.Text, ":8080 {") || strings.Contains(b.Text, `":8080"`) {
				sections = append(sections, pageSection{config: b})
			}
		case "console", "sh":
			last.commands = append(last.commands, b)
		}
	}
	return sections
}

// all runs the commands of the sections. Each configuration has a separate Caddy, with empty budgets.
func (p *pageRun) all(page string, sections []pageSection) {
	for _, s := range sections {
		if len(s.commands) == 0 {
			continue
		}
		ok := p.t.Run(fmt.Sprint("line ", s.commands[0].Line), func(t *testing.T) {
			p.config, p.caddy = s.config, nil
			for _, b := range s.commands {
				if !p.block(t, fmt.Sprintf("%s:%d", page, b.Line), b) {
					return // what comes later may depend on it
				}
			}
		})
		if !ok {
			return
		}
	}
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
				p.endCaddy(t) // the page continues with this one
			}
			background := p.start(t, foreground)
			if !isBackground {
				p.started = background
			}
		default:
			if p.config != (caddytest.Block{}) {
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

// endCaddy ends what serves the page's sites.
func (p *pageRun) endCaddy(t *testing.T) {
	t.Helper()
	p.started.Stop()
	p.started, p.config = nil, caddytest.Block{}
	if p.caddy != nil {
		p.caddy.Loops = 1
		p.caddy.Reload(t, noSite)
		p.caddy, p.ports["2019"] = nil, redistest.FreePort(p.t)
	}
}

// noSite is a configuration without a site.
const noSite = "{\n\tadmin {$ADMIN}\n}\n"

var relativeLog = regexp.MustCompile(`(output file )([^/\s]\S*)`)

// startCaddy serves the configuration of the section.
func (p *pageRun) startCaddy(t *testing.T) {
	t.Helper()
	config := p.config
	p.endCaddy(t)
	for _, port := range []string{"9000", "9001", "9002"} {
		used, served := strings.Contains(config.Text, ":"+port), strings.Contains(config.Text, "\n:"+port+" {")
		if used && !served && !p.apps[port] {
			p.apps[port] = true
			p.startApplication(p.ports[port])
		}
	}
	if strings.Contains(config.Text, "localhost:6379") && !p.redis {
		p.startRedis()
	}
	if strings.Contains(config.Text, "{env.REDIS_PASSWORD}") {
		p.caddy = caddytest.StartProcess(t, caddytest.Site(""), "REDIS_PASSWORD=secret")
	} else {
		p.caddy = caddytest.Start(t, noSite)
	}
	_, p.ports["2019"], _ = net.SplitHostPort(p.caddy.Admin)
	text := relativeLog.ReplaceAllString(p.withPorts(config.Text), "${1}"+p.dir+"/$2")
	file := map[string]string{"caddyfile": "Caddyfile", "json": "caddy.json"}[config.Language]
	caddytest.WriteFile(t, filepath.Join(p.dir, file), text, 0o644)
	p.caddy.Loops = 1 + len(servers.FindAllString(text, -1))
	contentType := map[string]string{"caddyfile": "text/caddyfile", "json": "application/json"}[config.Language]
	if r := p.caddy.Load(t, text, contentType); r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", file, r.StatusCode, r.Text)
	}
}

// servers matches the sites of a configuration, each of which is a server.
var servers = regexp.MustCompile(`(?m)^(?:http://)?[\w.]*:\d+ \{|"listen":`)

// settle waits until the page's Caddy has completed all requests, and only its newest configuration gets others.
func (p *pageRun) settle(t *testing.T) {
	t.Helper()
	if p.caddy != nil {
		p.caddy.Settle(t)
		p.caddy.Rest(t)
	}
}

// startApplication stands in for what a page's Caddy is a proxy of.
func (p *pageRun) startApplication(port string) {
	p.t.Helper()
	listener, err := net.Listen("tcp", "localhost:"+port)
	errtest.None(p.t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("Hello.")) })}
	go func() { _ = server.Serve(listener) }()
	p.t.Cleanup(func() { _ = server.Close() })
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
	shell := exec.Command("bash", "-c", p.programs.functions()+text.String())
	shell.Dir, shell.Env = p.dir, p.env()
	if !script[0].compare { // nothing but its exit status tells how a command went
		shell.Env = append(shell.Env, "CURL_OPTIONS=--fail")
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

// start starts a server and waits until it serves. The server ends with the test of the page.
func (p *pageRun) start(t *testing.T, line string) *caddytest.Background {
	t.Helper()
	process := exec.Command("bash", "-c", "exec "+p.withPorts(line))
	process.Dir, process.Env = p.dir, p.env()
	var log caddytest.Output
	b := caddytest.StartBackground(t, process, &log)
	p.t.Cleanup(func() {
		b.Stop()
		if text := log.String(); p.t.Failed() || strings.Contains(text, "DATA RACE") {
			p.t.Errorf("log of %s:\n%s", line, text)
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
