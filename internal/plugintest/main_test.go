package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

var client = &http.Client{Timeout: time.Minute}

// startCaddy runs a Caddy in this process until the test ends, and returns the address that {$SITE} stands for in its
// Caddyfile. The Caddyfile has no global options. There can be one Caddy at a time.
func startCaddy(t *testing.T, caddyfile string) string {
	t.Helper()
	site := "127.0.0.1:" + redistest.FreePort(t)
	text := "{\n\tadmin off\n\tpersist_config off\n}\n" + strings.ReplaceAll(caddyfile, "{$SITE}", "http://"+site)
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	errtest.None(t, err)
	errtest.None(t, caddy.Load(config, true))
	t.Cleanup(func() {
		errtest.Report(t, caddy.Stop())
	})
	return site
}

// get sends a request with header fields and returns the status of the response.
func get(t *testing.T, url string, fields ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	errtest.None(t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := client.Do(r)
	errtest.None(t, err)
	_ = response.Body.Close()
	return response.StatusCode
}

// The newest Caddy loads the module and limits requests.
func TestNewestCaddy(t *testing.T) {
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
