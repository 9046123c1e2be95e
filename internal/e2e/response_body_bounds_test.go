package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Only requests whose zones read the body lose codings.
func TestCodingsOfOtherRequests(t *testing.T) {
	t.Parallel()
	u := startScripted(t)
	zone := func(name, settle string) string {
		return fmt.Sprintf("zone %s {\n match path /%[1]s\n fixed_window 1000 1h\n settle {\n %s\n }\n}\n", name, settle)
	}
	c := caddytest.Start(t, strings.Replace(caddytest.Site(zone("tokens", totalTokens)+zone("bytes", "cost {http.rate_limit.response.bytes}")+
		zone("failed", "match status 401")), "respond ok", "respond /ready ok\nreverse_proxy "+u.address, 1))
	u.answer("", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Accept-Encoding")) })
	for path, want := range map[string]string{"/tokens": "gzip", "/bytes": "gzip, br", "/failed": "gzip, br", "/": "gzip, br"} {
		if got := c.Get(t, path, "Accept-Encoding", "gzip, br").Text; got != want {
			t.Errorf("%s: the upstream is asked for %q, want %q", path, got, want)
		}
	}
}
