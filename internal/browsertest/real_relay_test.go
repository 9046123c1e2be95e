//go:build real

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// relay sends a request through the page's server, as the page does.
func relay(t *testing.T, page, method, path, body string) (int, string) {
	t.Helper()
	origin, token, _ := strings.Cut(page, "/#token=")
	r, err := http.NewRequest(method, origin+"/instances/0/"+path, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Status-Page-Token", token)
	r.Header.Set("Origin", origin)
	response, err := client.Do(r)
	must(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(answer)
}

// The admin endpoint can be a unix socket, and can have a list of origins.
//
// Simulated: TestRelayedEndpoints.
func TestRealAdminEndpoints(t *testing.T) {
	dir, err := os.MkdirTemp("", "ui") // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := "unix/" + filepath.Join(dir, "admin.sock")
	site := "\n{$SITE}\nrate_limit {\n\tzone api {\n\t\tkey a\n\t\ttoken_bucket 2 1h\n\t\tban 1h\n\t}\n}\nrespond ok\n"
	for _, test := range []struct{ name, global, admin string }{
		{"unix socket", "admin " + socket, socket},
		{"unix socket with permissions", "admin " + socket + "2|0222", socket + "2|0222"},
		{"origins", "admin {$ADMIN} {\n\t\torigins {$ADMIN}\n\t\tenforce_origin\n\t}", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := startCaddy(t, "{\n\t"+test.global+"\n}\n"+site)
			admin := test.admin
			if admin == "" {
				admin = c.admin
			}
			page := serve(t, admin)
			if status, body := relay(t, page, "GET", "zones", ""); status != 200 || !strings.Contains(body, `"name":"api"`) {
				t.Errorf("GET: %d %s", status, body)
			}
			if status, body := relay(t, page, "PUT", "zones/api/ban?key=a", `{"duration":"1m"}`); status != 204 || body != "" {
				t.Errorf("PUT: %d %s", status, body)
			}
			if got := c.get(t, "/"); got != 429 {
				t.Errorf("status %d after the ban, want 429", got)
			}
			if status, body := relay(t, page, "GET", "zones/nobody/top", ""); status != 404 || !strings.Contains(body, "nobody") {
				t.Errorf("an error: %d %s", status, body)
			}
		})
	}
}

// A page without the right token shows only how to get one.
//
// Simulated: TestSmoke, TestChecks.
func TestRealToken(t *testing.T) {
	c := startCaddy(t, strings.ReplaceAll(strictSite, "%s", ""))
	address := serve(t, c.admin)
	origin, _, _ := strings.Cut(address, "#")
	for _, without := range []string{origin, origin + "#token=AAAAAAAAAAAAAAAAAAAAAAAAAA"} {
		p := open(t, without, desktop)
		p.wait("!document.getElementById('banner').hidden && document.getElementById('banner').textContent.includes('caddy rate-limit ui')")
		if n := evaluate[int](p, "document.querySelectorAll('.card').length"); n != 0 {
			t.Errorf("%s shows %d cards", without, n)
		}
	}
	p := open(t, address, desktop)
	p.wait("document.querySelector('[data-zone=api]')")
	if got := evaluate[string](p, "location.href"); got != origin {
		t.Errorf("the address still is %s", got)
	}
	p.do(chromedp.Reload()) // the token stays in the tab
	p.wait("document.querySelector('[data-zone=api]')")
}
