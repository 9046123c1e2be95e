package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The tests run each Caddy in a separate process. The process is this test binary with beCaddy in its
// environment.

const beCaddy = "RATE_LIMIT_TEST_BE_CADDY"

func TestMain(m *testing.M) {
	if os.Getenv(beCaddy) != "" {
		if interval, err := time.ParseDuration(os.Getenv(shareIntervalVariable)); err == nil {
			processShares = newShareWatch(interval, interval*time.Duration(shareWindow/shareInterval), requestCounts)
		}
		caddycmd.Main()
		return
	}
	os.Exit(m.Run())
}

// writeCaddyCommand writes a program that is Caddy.
func writeCaddyCommand(t testing.TB, path string) {
	t.Helper()
	program, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", beCaddy, program), 0o755)
}

// output collects what a process prints. It can be read while the process runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// background is a process that runs beside the test.
type background struct {
	process *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// startBackground starts a process. Its output goes to log.
func startBackground(t testing.TB, process *exec.Cmd, log *output) *background {
	t.Helper()
	// Under the race detector a process sleeps a second before it exits, unless it is configured
	// otherwise.
	process.Env = append(process.Env, "GORACE=atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	b := &background{process, make(chan struct{})}
	go func() {
		defer close(b.ended)
		_ = process.Wait()
	}()
	return b
}

// stop ends the process. There may be none.
func (b *background) stop() {
	if b == nil {
		return
	}
	_ = b.process.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(patient/2, func() { _ = b.process.Process.Kill() })
	<-b.ended
	kill.Stop()
}

// caddyProcess is a running Caddy with a site and an admin endpoint.
type caddyProcess struct {
	site  string // host:port, also {$SITE} in its Caddyfile
	admin string
	tls   string // host:port of a site over TLS; {$TLS} in a Caddyfile that has one
	env   []string
	file  string // its Caddyfile
	loops int    // how many servers accept connections when none is on its way out

	*background
	log output
}

// patient is a deadline no test reaches by the slowness of its machine.
const patient = time.Minute

// client keeps many connections and follows no redirects.
var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	Timeout:   patient,
}

// startCaddy starts a Caddy with a configuration, in which {$SITE} and {$ADMIN}
// stand for its addresses; env is added to its environment.
func startCaddy(t testing.TB, config string, env ...string) *caddyProcess {
	t.Helper()
	for attempt := 1; ; attempt++ { // the free ports may be taken before Caddy has them
		c, err := tryCaddy(t, config, env...)
		if err == nil {
			return c
		}
		if attempt == 3 {
			t.Fatalf("Caddy did not start: %v\n%s", err, c.logged())
		}
	}
}

func tryCaddy(t testing.TB, config string, env ...string) (*caddyProcess, error) {
	t.Helper()
	c := &caddyProcess{
		site:  "127.0.0.1:" + redistest.FreePort(t),
		admin: "127.0.0.1:" + redistest.FreePort(t),
		loops: 2, // the site's and the admin endpoint's
	}
	if strings.Contains(config, "{$TLS}") {
		c.tls, c.loops = "127.0.0.1:"+redistest.FreePort(t), 3
	}
	dir := t.TempDir()
	c.env = append(env, "SITE=http://"+c.site, "ADMIN="+c.admin, "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	c.file = filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(c.file, []byte(c.expand(config)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.stop()
		if log := c.logged(); t.Failed() || strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") && !strings.Contains(log, "as the request wants") {
			t.Errorf("log of Caddy %s:\n%s", c.site, log)
		}
	})
	return c, c.run(t)
}

// run starts the process and waits until it answers.
func (c *caddyProcess) run(t testing.TB) error {
	t.Helper()
	process := exec.Command(os.Args[0], "run", "--config", c.file)
	process.Env = append(append(os.Environ(), beCaddy+"=1"), c.env...)
	c.background = startBackground(t, process, &c.log)
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
		r, err := client.Get("http://" + c.site + "/ready")
		if err == nil {
			_ = r.Body.Close()
			// Caddy answers this once the configuration is in force. It serves the site before that.
			if r, err = client.Get("http://" + c.admin + "/config/"); err != nil {
				return err
			}
			_ = r.Body.Close()
			if loops := c.acceptLoops(); loops != c.loops {
				return fmt.Errorf("%d servers accept connections, want %d", loops, c.loops)
			}
			return nil
		}
		select {
		case <-c.ended:
			return errors.New("it ended")
		default:
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// otherSite is the address of a second site on the port of the first; {$OTHER} in a Caddyfile.
func (c *caddyProcess) otherSite() string {
	return strings.Replace(c.site, "127.0.0.1", "localhost", 1)
}

// expand replaces {$SITE}, {$OTHER}, {$TLS} and {$ADMIN}, which an admin endpoint doesn't.
func (c *caddyProcess) expand(config string) string {
	return strings.NewReplacer("{$SITE}", "http://"+c.site, "{$OTHER}", "http://"+c.otherSite(), "{$TLS}", "https://"+c.tls, "{$ADMIN}", c.admin).Replace(config)
}

func (c *caddyProcess) logged() string { return c.log.String() }

// waitForLog waits until the log holds a text.
func (c *caddyProcess) waitForLog(t testing.TB, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the log says %q", text), func() bool { return strings.Contains(c.logged(), text) })
}

// response is a response with its body read.
type response struct {
	*http.Response
	body string
}

// get asks for a path; header is pairs of name and value.
func (c *caddyProcess) get(t testing.TB, path string, header ...string) response {
	t.Helper()
	r, err := c.do("GET", "http://"+c.site+path, "", header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (c *caddyProcess) do(method, url, body string, header ...string) (response, error) {
	request, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	request.Close = request.URL.Host == c.admin // which ends with the configuration, idle connections and all
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	r, err := client.Do(request)
	if err != nil {
		return response{}, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return response{r, string(text)}, err
}

// load replaces the configuration through the admin endpoint. When it returns, only one
// configuration takes requests. Caddy answers a little earlier, while servers of the old
// configuration, or of a rejected one, may still accept. A configuration that differs only in a
// comment is loaded, too.
func (c *caddyProcess) load(t testing.TB, config, contentType string) response {
	t.Helper()
	r, err := c.do("POST", "http://"+c.admin+"/load", c.expand(config), "Content-Type", contentType, "Cache-Control", "must-revalidate")
	if err != nil {
		t.Fatal(err)
	}
	c.settle(t)
	if strings.Contains(r.body, `{"error":`) { // Caddy 2.10 says 200 if there are warnings, too
		r.StatusCode = http.StatusBadRequest
	}
	return r
}

// settle waits until no server accepts connections that is on its way out.
func (c *caddyProcess) settle(t testing.TB) {
	t.Helper()
	eventually(t, "no server of another configuration accepts connections", func() bool { return c.acceptLoops() <= c.loops })
	client.CloseIdleConnections()
}

// acceptLoops counts the servers that accept connections, that of the admin
// endpoint too. If it can't ask, because that one is being replaced, it says many.
func (c *caddyProcess) acceptLoops() int {
	r, err := c.do("GET", "http://"+c.admin+"/debug/pprof/goroutine?debug=2", "")
	if err != nil {
		return math.MaxInt
	}
	return strings.Count(r.body, "net/http.(*Server).Serve(")
}

// reload loads a Caddyfile and ends the test unless it is accepted.
func (c *caddyProcess) reload(t testing.TB, config string) {
	t.Helper()
	if r := c.load(t, config, "text/caddyfile"); r.StatusCode != 200 {
		t.Fatalf("reload: %d %s", r.StatusCode, r.body)
	}
}

// site is a Caddyfile with a rate_limit directive of this content, and a site
// that answers ok.
func site(rateLimit string) string {
	return fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\n@limited not path /ready\nrate_limit @limited {\n%s\n}\nrespond ok\n", rateLimit)
}

// flood sends a number of requests at once over several connections to one or
// more Caddys, and counts the statuses.
func flood(t testing.TB, requests, connections int, path string, to ...*caddyProcess) map[int]int {
	t.Helper()
	var mu sync.Mutex
	statuses := make(map[int]int)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for n := i; n < requests; n += connections {
				c := to[n%len(to)]
				r, err := c.do("GET", "http://"+c.site+path, "")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				statuses[r.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return statuses
}

// Modules that only the tests' Caddys have.

func init() {
	caddy.RegisterModule(hold{})
	caddy.RegisterModule(recordEvent{})
	httpcaddyfile.RegisterHandlerDirective("test_hold", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) { return hold{}, nil })
	httpcaddyfile.RegisterDirectiveOrder("test_hold", httpcaddyfile.Before, "basic_auth")
}

// hold waits as long as the request's query parameter hold says, and panics if there
// is a parameter panic.
type hold struct{}

func (hold) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_hold", New: func() caddy.Module { return new(hold) }}
}

func (hold) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	d, _ := time.ParseDuration(r.URL.Query().Get("hold"))
	caddy.Log().Info("held", zap.Duration("for", d))
	time.Sleep(d)
	if r.URL.Query().Has("panic") {
		panic("as the request wants")
	}
	return next.ServeHTTP(w, r)
}

// recordEvent logs the events it is subscribed to.
type recordEvent struct{}

func (recordEvent) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_record", New: func() caddy.Module { return new(recordEvent) }}
}

func (*recordEvent) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func (recordEvent) Handle(_ context.Context, e caddy.Event) error {
	caddy.Log().Info("recorded event", zap.String("name", e.Name()), zap.Any("data", e.Data))
	return nil
}
