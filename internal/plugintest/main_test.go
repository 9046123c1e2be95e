package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestMain(m *testing.M) { caddytest.Main(m) }

// The newest Caddy loads the module and limits requests.
func TestNewestCaddy(t *testing.T) {
	_, full := caddy.Version()
	t.Log("Caddy", full)
	c := caddytest.Start(t, caddytest.Site("zone clients {\n key {header.X-Client}\n token_bucket 2 1h\n}"))
	var got []string
	for _, name := range []string{"a", "a", "a", "b"} {
		got = append(got, fmt.Sprint(c.Get(t, "/", "X-Client", name).StatusCode))
	}
	if want := "200 200 429 200"; strings.Join(got, " ") != want {
		t.Errorf("statuses %v, want %s", got, want)
	}
}
