package caddytest

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The start of a Caddy costs more than most tests, so tests use running ones, one after the other.

var (
	idleMu sync.Mutex
	idle   []*Caddy // the running Caddys that no test uses
)

// Secret is in the environment of all running Caddys; {env.TEST_SECRET} in a Caddyfile.
const Secret = "pepper"

// poolEnvironment is the variables of all running Caddys. They can't change later, so a test that needs others starts
// its own process.
var poolEnvironment = []string{"TEST_SECRET=" + Secret}

// blank is the configuration of an idle Caddy.
const blank = "{\n\tadmin {$ADMIN}\n}\n"

// take returns an idle Caddy, or starts one.
func take(t testing.TB) *Caddy {
	t.Helper()
	idleMu.Lock()
	if last := len(idle) - 1; last >= 0 {
		c := idle[last]
		idle = idle[:last]
		idleMu.Unlock()
		return c
	}
	idleMu.Unlock()
	site, _, err := redistest.ReservePort() // both ports stay reserved until the tests end
	if err != nil {
		t.Fatal(err)
	}
	admin, _, err := redistest.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rate-limit-caddy-")
	if err != nil {
		t.Fatal(err)
	}
	c := &Caddy{Site: "127.0.0.1:" + site, Admin: "127.0.0.1:" + admin, log: new(Output)}
	c.setEnv(dir, poolEnvironment)
	file := filepath.Join(dir, "Caddyfile")
	WriteFile(t, file, c.Expand(blank), 0o600)
	if err = c.start(file); err == nil {
		err = c.awaitAnswer("http://" + c.Admin + "/config/")
	}
	if err != nil {
		t.Fatalf("Caddy did not start: %v\n%s", err, c.Logged())
	}
	return c
}

// giveBack makes a Caddy idle again, if nothing of the test is left in it. Otherwise it ends.
func (c *Caddy) giveBack(t testing.TB) {
	select {
	case <-c.Ended:
		return
	default:
	}
	if t.Failed() || c.ordered || !c.clear() {
		c.Stop()
		return
	}
	// The test may still have a pointer to c.
	again := &Caddy{Site: c.Site, Admin: c.Admin, Env: c.Env, Background: c.Background, log: c.log}
	idleMu.Lock()
	defer idleMu.Unlock()
	idle = append(idle, again)
}

// clear takes the configuration away, and reports whether no goroutine of the module is left, and no text on its way
// to the log.
func (c *Caddy) clear() bool {
	load := func(config, contentType string) (status int) {
		r, err := c.Do("POST", "http://"+c.Admin+"/load", config, "Content-Type", contentType)
		if err != nil {
			return 0
		}
		return r.StatusCode
	}
	if load(c.Expand(blank), "text/caddyfile") != http.StatusOK {
		return false
	}
	mark := fmt.Sprintf("mark %d of the log", time.Now().UnixNano())
	if load(`{"`+mark+`": true}`, "application/json") != http.StatusBadRequest {
		return false
	}
	isClear := func() bool {
		loops, ours := c.goroutines()
		const admin = 1 // the server of the admin endpoint
		return loops == admin && ours == 0 && strings.Contains(c.Logged(), mark)
	}
	for deadline := time.Now().Add(clearing); !isClear(); time.Sleep(5 * time.Millisecond) { // a poll
		if time.Now().After(deadline) {
			return false
		}
	}
	if r, err := c.Do("POST", "http://"+c.Admin+forgetPath, ""); err != nil || r.StatusCode != http.StatusOK {
		return false
	}
	c.log.begin(nil)
	forgetConnections(c.Site)
	forgetConnections(c.TLS)
	return true
}

// clearing is how long a Caddy may need until nothing of a test is left in it. Otherwise another one is started.
const clearing = 5 * time.Second

// goroutines counts the servers that accept connections, that of the admin endpoint too, and the goroutines of the
// module. While that endpoint is being replaced, it says many: the old one drops connections that it has not taken yet.
func (c *Caddy) goroutines() (loops, ours int) {
	r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=2", "")
	// Of these, one serves the endpoint. Others are about to serve it, or stop the old one.
	if err != nil || strings.Count(r.Text, "\ncreated by github.com/caddyserver/caddy/v2.replaceLocalAdminServer") != 1 {
		return math.MaxInt, math.MaxInt
	}
	for stack := range strings.SplitSeq(r.Text, "\n\n") {
		loops += strings.Count(stack, "net/http.(*Server).Serve(")
		if strings.Contains(stack, "caddy-rate-limit/caddy-rate-limit") && !strings.Contains(stack, "caddytest.Main(") {
			ours++
		}
	}
	return loops, ours
}

// stopIdle ends all Caddys that no test uses.
func stopIdle() {
	idleMu.Lock()
	defer idleMu.Unlock()
	for _, c := range idle {
		c.Stop()
		_ = os.RemoveAll(filepath.Dir(c.Process.Args[len(c.Process.Args)-1]))
	}
}
