//go:build real

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The box explains requests by their description, and by a denial ID.
//
// Simulated: TestSmoke.
func TestRealExplain(t *testing.T) {
	eachStore(t, func(t *testing.T, options string) {
		c := startCaddy(t, fmt.Sprintf(strictSite, "problem_json\n"+options))
		p := open(t, serve(t, c.admin), desktop)
		p.wait("cards.size === 1")
		p.fill("#explain-url", "http://"+c.site+"/?q=1")
		p.click("#explain summary")
		p.fill("#explain-headers", "X-Api-Key: alice\nX-Other: 1")
		p.click("#explain-send")
		p.wait("document.querySelector('.verdict.allowed')")
		if got := p.text("#explanation .explained"); !strings.Contains(got, "Key alice") || !strings.Contains(got, "2 of 2 left · fits now") {
			t.Errorf("explained as %q", got)
		}
		// It charges nothing.
		for _, want := range []int{200, 200, 429} {
			if got := c.get(t, "/a%E2%80%AEgnp.exe", "X-Api-Key", "alice"); got != want {
				t.Errorf("status %d, want %d", got, want)
			}
		}
		p.click("#explain-send")
		p.wait("document.querySelector('.verdict.denied')")
		if got := p.text("#explanation .verdict"); !strings.Contains(got, "Zone api decides, by the limit token_bucket 2 1h.") {
			t.Errorf("explained as %q", got)
		}
		if got := p.text("#explanation .explained"); !strings.Contains(got, "0 of 2 left · frees in ") {
			t.Errorf("explained as %q", got)
		}
		width := evaluate[string](p, "document.querySelector('#explanation .filled').style.width")
		if width != "0%" {
			t.Errorf("the bar of a used-up limit is %s full", width)
		}

		r, _ := http.NewRequest(http.MethodGet, "http://"+c.site+"/a", nil)
		r.Header.Set("X-Api-Key", "alice")
		response, err := client.Do(r)
		must(t, err)
		defer response.Body.Close()
		var problem struct{ Denial string }
		must(t, json.NewDecoder(response.Body).Decode(&problem))
		p.fill("#explain-denial", problem.Denial)
		p.click("#explain-send")
		p.wait("document.querySelector('#explanation .then')")
		if got := p.text("#explanation .then"); !strings.Contains(got, "GET "+strings.Split(c.site, ":")[0]) || !strings.Contains(got, "/aU+202Egnp.exe") || !strings.Contains(got, "was denied") {
			t.Errorf("explained as %q", got)
		}
		p.fill("#explain-denial", "no-such-denial")
		p.click("#explain-send")
		p.wait("document.querySelector('#explanation .failure')")
	})
}
