package caddytest

import (
	"strings"
	"testing"
)

// Rest waits until no site works on a request. Then the access log has all requests that were answered.
func (c *Caddy) Rest(t testing.TB) {
	t.Helper()
	Eventually(t, "no request runs", func() bool {
		r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=2", "")
		return err == nil && !strings.Contains(r.Text, "caddyhttp.(*Server).ServeHTTP(")
	})
}
