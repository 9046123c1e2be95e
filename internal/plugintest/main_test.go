package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The tests run each Caddy in a separate process. The process is this test binary with beCaddy in its
// environment.

const beCaddy = "RATE_LIMIT_TEST_BE_CADDY"

func TestMain(m *testing.M) {
	if os.Getenv(beCaddy) != "" {
		caddycmd.Main()
		return
	}
	os.Exit(m.Run())
}

var client = &http.Client{Timeout: time.Minute}

// startCaddy runs a Caddy until the test ends, and returns the address that {$SITE} stands for in its
// Caddyfile. The Caddyfile has no global options.
func startCaddy(t *testing.T, caddyfile string, env ...string) string {
	t.Helper()
	site := "127.0.0.1:" + redistest.FreePort(t)
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte("{\n\tadmin off\n}\n"+caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // to be read when the process has ended
	process := exec.Command(os.Args[0], "run", "--config", file)
	process.Env = append(append(os.Environ(), beCaddy+"=1", "SITE=http://"+site, "XDG_DATA_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir()), env...)
	process.Stdout, process.Stderr = &log, &log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = process.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // asks again whether it has started
		connection, err := net.Dial("tcp", site)
		if err == nil {
			_ = connection.Close()
			return site
		}
		select {
		case <-ended:
			t.Fatal("Caddy ended")
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("Caddy does not serve")
		}
	}
}

// get sends a request with header fields and returns the status of the response.
func get(t *testing.T, url string, fields ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// The newest Caddy loads the module and limits requests.
func TestNewestCaddy(t *testing.T) {
	t.Parallel()
	_, full := caddy.Version()
	t.Log("Caddy", full)
	site := startCaddy(t, `
{$SITE}
rate_limit {
	zone clients {
		key {header.X-Client}
		token_bucket 2 1h
	}
}
respond ok
`)
	var got []string
	for _, name := range []string{"a", "a", "a", "b"} {
		got = append(got, fmt.Sprint(get(t, "http://"+site, "X-Client", name)))
	}
	if want := "200 200 429 200"; strings.Join(got, " ") != want {
		t.Errorf("statuses %v, want %s", got, want)
	}
}
