package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/chromedp/chromedp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The tests run each Caddy in a separate process. The process is this test binary with beCaddy in its
// environment.

const beCaddy = "RATE_LIMIT_TEST_BE_CADDY"

// browser is the one browser of all tests. Each page has a separate profile in it.
var browser context.Context

func TestMain(m *testing.M) {
	if os.Getenv(beCaddy) != "" {
		caddycmd.Main()
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if _, err := exec.LookPath("apt-get"); err != nil && os.Getenv("CI") == "" {
			fmt.Println("SKIPPED: all tests of pages in a browser, because there is no chromium, and no apt-get to install it with")
			return 0
		}
		fmt.Println("chromium is not installed: run ./scripts/install.sh chromium")
		return 1
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	defer stop()
	var end context.CancelFunc
	browser, end = chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(browser); err != nil {
		fmt.Println("chromium does not start:", err)
		return 1
	}
	return m.Run()
}

var client http.Client

// caddyProcess is a running Caddy with a site and an admin endpoint.
type caddyProcess struct {
	site, admin string
	process     *exec.Cmd
	ended       chan struct{}
}

// startCaddy runs a Caddy until the test ends. In its Caddyfile, {$SITE} and {$ADMIN} stand for its
// addresses. The admin endpoint is there unless the Caddyfile has another one.
func startCaddy(t *testing.T, caddyfile string, env ...string) *caddyProcess {
	t.Helper()
	c := &caddyProcess{site: "127.0.0.1:" + redistest.FreePort(t), admin: "127.0.0.1:" + redistest.FreePort(t), ended: make(chan struct{})}
	if !strings.Contains(caddyfile, "admin ") {
		caddyfile = "{\n\tadmin {$ADMIN}\n}\n" + caddyfile
	}
	file := filepath.Join(t.TempDir(), "Caddyfile")
	errtest.None(t, os.WriteFile(file, []byte(caddyfile), 0o600))
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	errtest.None(t, err)
	logged := func() string {
		text, err := os.ReadFile(log.Name())
		errtest.None(t, err)
		return string(text)
	}
	c.process = exec.Command(os.Args[0], "run", "--config", file)
	c.process.Env = append(append(os.Environ(), beCaddy+"=1", "SITE=http://"+c.site, "ADMIN="+c.admin,
		"XDG_DATA_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir()), env...)
	c.process.Stdout, c.process.Stderr = log, log
	errtest.None(t, c.process.Start())
	go func() {
		_ = c.process.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() {
		c.kill()
		_ = log.Close()
		if t.Failed() {
			t.Logf("log of Caddy %s:\n%s", c.site, logged())
		}
	})
	redistest.WaitFor(t, "Caddy to serve", func() bool {
		select {
		case <-c.ended:
			t.Fatal("Caddy ended")
		default:
		}
		// Caddy serves the site a moment before its configuration is in force.
		return strings.Contains(logged(), "serving initial configuration")
	})
	return c
}

func (c *caddyProcess) kill() {
	_ = c.process.Process.Kill()
	<-c.ended
}

// get sends a request with header fields to the site, and returns the status of the response.
func (c *caddyProcess) get(t testing.TB, path string, fields ...string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+c.site+path, nil)
	errtest.None(t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := client.Do(r)
	errtest.None(t, err)
	_ = response.Body.Close()
	return response.StatusCode
}
