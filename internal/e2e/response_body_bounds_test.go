package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A request leaves no goroutine behind, however it ends.
func TestBodyLeavesNoGoroutine(t *testing.T) {
	u := startScripted(t)
	const written = "header /written Content-Type application/json\n\tencode /written zstd\n\trespond /written `{\"x\":\"%s\"}`\n\treverse_proxy "
	c := caddytest.Start(t, strings.Replace(scriptedSite(t, u, totalTokens, ""), "reverse_proxy ", fmt.Sprintf(written, strings.Repeat("x", 1000)), 1))
	goroutines := func() int {
		r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=2", "")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(r.Text, "contentcoding.")
	}
	pieces := caddytest.Compress(t, "zstd", `{"usage":`, `{"total_tokens":35}}`)
	header := []string{"Content-Type", "application/json", "Content-Encoding", "zstd"}
	u.answer("ends", with(header, pieces...))
	u.answer("aborts", with(header, pieces[0], "abort"))
	end := make(chan struct{})
	u.answer("hangs", func(w http.ResponseWriter, r *http.Request) {
		with(header, pieces[0], "")(w, r)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-end: // over HTTP/3, Caddy notices late that a client has left
		}
	})
	for _, version := range versions(t, c) {
		for range 5 {
			_, _ = io.ReadAll(version.ask(t, "ends").Body)
			if version.name != "HTTP/3.0" { // whose client then leaves a connection open, and Caddy waits for its end
				_, _ = io.ReadAll(version.ask(t, "aborts").Body)
			}
			hanging := version.ask(t, "hangs")
			if _, err := io.ReadFull(hanging.Body, make([]byte, len(pieces[0]))); err != nil {
				t.Fatal(err)
			}
			// Otherwise the test looks for the wrong name. The piece can arrive before it is decoded.
			caddytest.EventuallySees(t, "a goroutine decodes", goroutines, func(n int) bool { return n > 0 })
			_ = hanging.Body.Close()
		}
		for range 20 { // respond writes a body for HEAD, too, and encode compresses it
			r, err := http.NewRequestWithContext(t.Context(), "HEAD", version.url+"/written?key=head", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept-Encoding", "zstd")
			answer, err := version.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if got := answer.Header.Get("Content-Encoding"); got != "zstd" {
				t.Errorf("%s: Content-Encoding %q", version.name, got)
			}
		}
	}
	close(end)
	caddytest.EventuallySees(t, "no goroutine decodes", goroutines, func(n int) bool { return n == 0 })
}

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

// A body that is compressed in an unknown way is warned of once per zone that reads it. The zone trailer
// doesn't, and its true cost is missing for another reason.
func TestWarningOfUnknownCoding(t *testing.T) {
	t.Parallel()
	u := startScripted(t)
	c := caddytest.Start(t, scriptedSite(t, u, totalTokens, `zone trailer {
			fixed_window 1000 1h
			settle {
				cost {http.response.header.Tokens}
			}
		}`))
	header := []string{"Content-Type", "application/json", "Trailer", "Tokens"}
	u.answer("known", with(header, "{}"))
	u.answer("unknown", with(append(header, "Content-Encoding", "br"), "{}"))
	u.answer("other", with([]string{"Content-Type", "image/png", "Content-Encoding", "br"}, "{}"))
	const warning = "a response has a content coding that settle can't decode"
	c.Get(t, "/?key=known")
	c.Get(t, "/?key=other")
	if _, err := c.Do("HEAD", "http://"+c.Site+"/?key=unknown", ""); err != nil {
		t.Error(err)
	}
	if got := c.Times(t, warning); got != 0 {
		t.Errorf("warned %d times without need", got)
	}
	for range 3 {
		c.Get(t, "/?key=unknown")
	}
	if got := c.Times(t, warning); got != 1 {
		t.Errorf("warned %d times", got)
	}
}
