package caddytest

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Caddy is a running Caddy with a site and an admin endpoint.
type Caddy struct {
	Site  string // host:port, also {$SITE} in its Caddyfile
	Admin string
	TLS   string // host:port of a site over TLS; {$TLS} in a Caddyfile that has one
	Env   []string
	File  string // its Caddyfile
	Loops int    // how many servers accept connections when none is on its way out

	*Background
	log     *Output
	ordered bool // it has loaded a Caddyfile with the option order, which an older Caddy keeps for the next one
}

// Start returns a Caddy with a configuration, in which {$SITE} and {$ADMIN} stand for its addresses. It is one that
// runs already, and loads the configuration through its admin endpoint. After the test, another one gets it.
func Start(t testing.TB, config string) *Caddy {
	t.Helper()
	c := take(t)
	c.prepare(t, config)
	t.Cleanup(func() {
		c.report(t)
		c.giveBack(t)
	})
	if r := c.Load(t, config, "text/caddyfile"); r.StatusCode != http.StatusOK {
		t.Fatalf("Caddy did not start: %d %s", r.StatusCode, r.Text)
	}
	return c
}

// StartProcess starts a separate Caddy, for a test about the start or the end of Caddy, or about several Caddys. env is
// added to its environment.
func StartProcess(t testing.TB, config string, env ...string) *Caddy {
	t.Helper()
	for attempt := 1; ; attempt++ { // the free ports may be taken before Caddy has them
		c, err := tryCaddy(t, config, env...)
		if err == nil {
			return c
		}
		if attempt == 3 {
			t.Fatalf("Caddy did not start: %v\n%s", err, c.Logged())
		}
	}
}

func tryCaddy(t testing.TB, config string, env ...string) (*Caddy, error) {
	t.Helper()
	c := &Caddy{Site: "127.0.0.1:" + redistest.FreePort(t), Admin: "127.0.0.1:" + redistest.FreePort(t), log: new(Output)}
	file := c.prepare(t, config)
	c.setEnv(filepath.Dir(c.File), env)
	t.Cleanup(func() {
		c.Stop()
		_ = file.Close()
		c.report(t)
	})
	return c, c.Run(t)
}

// prepare writes the Caddyfile of a test, and opens the file for the log of the test.
func (c *Caddy) prepare(t testing.TB, config string) (log *os.File) {
	t.Helper()
	c.Loops = 2 // the site's and the admin endpoint's
	if strings.Contains(config, "{$TLS}") {
		c.TLS, c.Loops = "127.0.0.1:"+redistest.FreePort(t), 3
	}
	dir := filesOf(t)
	c.File = filepath.Join(dir, "Caddyfile")
	WriteFile(t, c.File, c.Expand(config), 0o600)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	c.log.begin(log)
	return log
}

// setEnv sets the environment of the process, which has its files in a directory.
func (c *Caddy) setEnv(dir string, env []string) {
	c.Env = append(env, "CADDY_ADMIN="+c.Admin, "SITE=http://"+c.Site, "ADMIN="+c.Admin,
		"HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
}

// Run starts the process and waits until it answers.
func (c *Caddy) Run(t testing.TB) error {
	t.Helper()
	if err := c.start(c.File); err != nil {
		return err
	}
	if err := c.awaitAnswer("http://" + c.Site + "/ready"); err != nil {
		return err
	}
	// Caddy answers this once the configuration is in force. It serves the site before that.
	if err := c.awaitAnswer("http://" + c.Admin + "/config/"); err != nil {
		return err
	}
	if loops := c.acceptLoops(); loops != c.Loops {
		return fmt.Errorf("%d servers accept connections, want %d", loops, c.Loops)
	}
	return nil
}

// start starts the process.
func (c *Caddy) start(file string) (err error) {
	process := exec.Command(program(), "run", "--config", file)
	process.Env = append(append(os.Environ(), beCaddy+"=1"), c.Env...)
	c.Background, err = startBackground(process, c.log)
	return err
}

// awaitAnswer waits until the process answers a request, or ends.
func (c *Caddy) awaitAnswer(url string) error {
	for deadline := time.Now().Add(Patient); ; time.Sleep(10 * time.Millisecond) { // a poll, which also sees the process end
		r, err := Client.Get(url)
		if err == nil {
			return r.Body.Close()
		}
		select {
		case <-c.Ended:
			return errors.New("it ended")
		default:
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// OtherSite is the address of a second site on the port of the first; {$OTHER} in a Caddyfile.
func (c *Caddy) OtherSite() string {
	return strings.Replace(c.Site, "127.0.0.1", "localhost", 1)
}

// Expand replaces {$SITE}, {$OTHER}, {$TLS} and {$ADMIN}, which an admin endpoint doesn't.
func (c *Caddy) Expand(config string) string {
	return strings.NewReplacer(
		"{$SITE}", "http://"+c.Site, "{$OTHER}", "http://"+c.OtherSite(), "{$TLS}", "https://"+c.TLS, "{$ADMIN}", c.Admin,
	).Replace(config)
}

// Logged returns the log so far.
func (c *Caddy) Logged() string { return c.log.String() }

// WaitForLog waits until the log holds a text.
func (c *Caddy) WaitForLog(t testing.TB, text string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("the log says %q", text), func() bool { return strings.Contains(c.Logged(), text) }) // which the report shows
}

// Load replaces the configuration through the admin endpoint. When it returns, only one
// configuration takes requests. Caddy answers a little earlier, while servers of the old
// configuration, or of a rejected one, may still accept. A configuration that differs only in a
// comment is loaded, too.
func (c *Caddy) Load(t testing.TB, config, contentType string) Response {
	t.Helper()
	c.ordered = c.ordered || strings.Contains(config, "\torder ")
	r, err := c.Do("POST", "http://"+c.Admin+"/load", c.Expand(config), "Content-Type", contentType, "Cache-Control", "must-revalidate")
	if err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	if strings.Contains(r.Text, `{"error":`) { // Caddy 2.10 says 200 if there are warnings, too
		r.StatusCode = http.StatusBadRequest
	}
	return r
}

// Settle waits until no server accepts connections that is on its way out. Later requests use new connections.
func (c *Caddy) Settle(t testing.TB) {
	t.Helper()
	EventuallySees(t, fmt.Sprint("only ", c.Loops, " servers accept connections"), c.acceptLoops, func(n int) bool { return n <= c.Loops })
	forgetConnections(c.Site)
	forgetConnections(c.TLS)
}

func (c *Caddy) acceptLoops() int {
	loops, _ := c.goroutines()
	return loops
}

// Reload loads a Caddyfile and ends the test unless it is accepted.
func (c *Caddy) Reload(t testing.TB, config string) {
	t.Helper()
	if r := c.Load(t, config, "text/caddyfile"); r.StatusCode != 200 {
		t.Fatalf("reload: %d %s", r.StatusCode, r.Text)
	}
}

// Site is a Caddyfile with a rate_limit directive of this content, and a site
// that answers ok.
func Site(rateLimit string) string {
	return fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\n@limited not path /ready\nrate_limit @limited {\n%s\n}\nrespond ok\n", rateLimit)
}

// Modules that only the tests' Caddys have.

func init() {
	caddy.RegisterModule(hold{})
	caddy.RegisterModule(recordEvent{})
	caddy.RegisterModule(forget{})
	httpcaddyfile.RegisterHandlerDirective("test_hold", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) { return hold{}, nil })
	httpcaddyfile.RegisterDirectiveOrder("test_hold", httpcaddyfile.Before, "basic_auth")
}
