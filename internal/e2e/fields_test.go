package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Every response has the fields.
func TestFieldsOnEveryResponse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	caddytest.WriteFile(t, filepath.Join(dir, "file.txt"), "content", 0o600)
	config := fmt.Sprintf(`{
	admin {$ADMIN}
}
{$SITE}
route {
	respond /ready ok
	rate_limit {
		zone all {
			fixed_window 1000 1h
		}
		zone few {
			match path /denied
			fixed_window 1 1h
		}
		headers draft draft_06 sharkey
	}
	respond /empty 204
	respond /moved 301
	respond /answered "sorry" 500
	error /error 418
	reverse_proxy /down localhost:%s
	root %s
	file_server /file.txt
	respond /closed "" 200 {
		close
	}
	respond /denied ok
}
`, redistest.FreePort(t), dir)
	c := caddytest.Start(t, config)
	check := func(t *testing.T) {
		file := c.Get(t, "/file.txt")
		for _, one := range []struct {
			method, path string
			status       int
			header       []string
		}{
			{"GET", "/file.txt", 200, nil},
			{"HEAD", "/file.txt", 200, nil},
			{"GET", "/file.txt", 206, []string{"Range", "bytes=0-2"}},
			{"GET", "/file.txt", 416, []string{"Range", "bytes=99-"}},
			{"GET", "/file.txt", 304, []string{"If-None-Match", file.Header.Get("Etag")}},
			{"POST", "/file.txt", 405, nil},
			{"GET", "/empty", 204, nil},
			{"GET", "/moved", 301, nil},
			{"GET", "/answered", 500, nil},
			{"GET", "/error", 418, nil},
			{"GET", "/down", 502, nil},
			{"GET", "/closed", 200, nil},
			{"GET", "/nobody", 200, nil},
			{"GET", "/denied", 200, nil},
			{"GET", "/denied", 429, nil},
			{"HEAD", "/denied", 429, nil},
		} {
			r, err := c.Do(one.method, "http://"+c.Site+one.path, "", one.header...)
			if err != nil || r.StatusCode != one.status {
				t.Errorf("%s %s: %v %v, want %d", one.method, one.path, r.Response, err, one.status)
				continue
			}
			zones := []string{"all"}
			if one.path == "/denied" {
				zones = append(zones, "few")
			}
			r.WantFields(t, zones...)
		}
	}
	t.Run("without error routes", check)
	c.Reload(t, strings.Replace(config, "fixed_window 1 1h", "fixed_window 1 2h", 1)+"handle_errors {\n respond \"rendered {err.status_code}\"\n}\n")
	if r := c.Get(t, "/error"); r.Text != "rendered 418" {
		t.Errorf("the error routes answer %q", r.Text)
	}
	t.Run("with error routes", check)
	c.Get(t, "/denied").WantSpan(t, "X-RateLimit-Reset", 7200)
}
