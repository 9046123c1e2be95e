package e2e

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestProblemJSON(t *testing.T) {
	t.Parallel()
	config := caddytest.Site(`
zone "<b> & 'x'" {
	key {header.Key}
	fixed_window 1 1h
	fixed_window 1 1d
	fixed_window 9 1d
	status 403
	match path /named
}
zone other {
	fixed_window 1 1h
	match path /named /other
}
zone watching {
	shadow
	fixed_window 1 1h
	match path /named /other
}
headers draft sharkey
problem_json
`)
	c := caddytest.Start(t, config)
	c.Get(t, "/named", "Key", "a").Want(t, 200, "Content-Type", "text/plain; charset=utf-8")
	r := c.Get(t, "/named?<script>", "Key", "<script>")
	r.WantProblem(t, 429, "quota-exceeded", "other")
	r.Want(t, 429, "Retry-After", "3600", "X-RateLimit-Remaining", "0")
	c.Get(t, "/named", "Key", "a").WantProblem(t, 403, "quota-exceeded", "<b> & 'x'", "<b> & 'x'/2", "other")

	full := c.Get(t, "/other")
	head, err := c.Do("HEAD", "http://"+c.Site+"/other", "")
	if err != nil || head.Text != "" {
		t.Fatal(err, head.Text)
	}
	head.Want(t, 429, "Content-Type", "application/problem+json", "Content-Length", full.Field("Content-Length"), "Retry-After", "3600")

	// Redis that fails is no fault of the client's.
	c.Reload(t, strings.Replace(config, "problem_json\n", "problem_json\nredis localhost:1\non_store_error deny\n", 1))
	c.Get(t, "/other").WantProblem(t, 503, "temporary-reduced-capacity")

	// Switched off.
	c.Reload(t, strings.Replace(config, "problem_json\n", "problem_json off\n", 1))
	c.Get(t, "/other").Want(t, 200)
	c.Get(t, "/other").Want(t, 429, "Content-Length", "0", "Content-Type", "")

	// Error routes go first, and it is said that they do.
	c.Reload(t, config+"handle_errors {\n respond \"rendered {err.status_code}\"\n}\n")
	for range 2 {
		if r := c.Get(t, "/other"); r.StatusCode != 429 || r.Text != "rendered 429" || strings.Contains(r.Field("Content-Type"), "problem") {
			t.Errorf("with error routes: %d %q %q", r.StatusCode, r.Text, r.Field("Content-Type"))
		}
	}
	if n := c.Times(t, "problem_json has no effect here"); n != 1 {
		t.Errorf("said %d times that problem_json has no effect", n)
	}
}
