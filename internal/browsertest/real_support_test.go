//go:build real

package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// supportSite has zones whose bans and overrides a support team looks for.
const supportSite = `
{$SITE}
rate_limit {
	zone api {
		key {header.X-Api-Key}
		token_bucket 2 1h
		runtime_overrides
		override office unlimited
		ban 2h after 100000
	}
	zone addresses {
		key {client_ip}
		token_bucket 100000 1h
		plan {header.X-Plan} {
			gold {
				token_bucket 200000 1h
			}
			free unlimited
		}
		runtime_overrides
		ban 2h after 100000
	}
	%s
}
respond ok
`

// change makes a change by the admin API.
func (c *caddyProcess) change(t *testing.T, method, path string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+c.admin+"/rate_limit/"+path, nil)
	must(t, err)
	response, err := client.Do(r)
	must(t, err)
	must(t, response.Body.Close())
	if response.StatusCode != http.StatusNoContent {
		t.Errorf("%s %s: status %d", method, path, response.StatusCode)
	}
}

// The bans and overrides of all zones are on top, with the buttons that end them.
//
// Simulated: TestSmoke.
func TestRealBansAndOverridesOfAllZones(t *testing.T) {
	eachStore(t, func(t *testing.T, options string) {
		c := startCaddy(t, fmt.Sprintf(supportSite, options))
		p := open(t, serve(t, c.admin), desktop)
		p.wait("document.getElementById('all-bans-empty').textContent === 'No key is banned.'")
		p.wait("document.getElementById('all-overrides-empty').textContent === 'No key has an override that was set at run time.'")

		p.click("[data-zone=api] .zone-name")
		p.click("#bans-new")
		p.fill("#change-key", "alice")
		p.confirm()
		p.click("[data-zone=addresses] .zone-name")
		p.wait("document.getElementById('zone-heading').textContent === 'Zone addresses'")
		p.click("#overrides-new")
		p.fill("#change-key", "127.0.0.1")
		p.fill("#change-limits", "token_bucket 1 1h")
		p.confirm()

		if got := p.text(p.row("all-bans", "alice")); !strings.Contains(got, "zone api") || !strings.Contains(got, "by an operator") {
			t.Errorf("the ban is shown as %q", got)
		}
		p.click("[aria-label='Unban key alice of zone api']")
		p.confirm()
		p.wait("document.querySelectorAll('#all-bans-rows tr').length === 0")
		if got := c.get(t, "/", "X-Api-Key", "alice"); got != 200 {
			t.Errorf("status %d after the ban, want 200", got)
		}
		if got := p.text(p.row("all-overrides", "127.0.0.1")); !strings.Contains(got, "zone addresses") || !strings.Contains(got, "token_bucket 1 1h · no end") {
			t.Errorf("the override is shown as %q", got)
		}
		if n := evaluate[int](p, "document.querySelectorAll('#all-overrides-rows tr').length"); n != 1 {
			t.Errorf("%d overrides, and the one in the configuration can't be removed", n)
		}
		if got := c.get(t, "/", "X-Api-Key", "bob"); got != 429 {
			t.Errorf("status %d with the override, want 429", got)
		}
		p.click("[aria-label='Remove key 127.0.0.1 of zone addresses']")
		p.confirm()
		p.wait("document.querySelectorAll('#all-overrides-rows tr').length === 0")
		if got := c.get(t, "/", "X-Api-Key", "bob"); got != 200 {
			t.Errorf("status %d without the override, want 200", got)
		}
	})
}

// A card shows plans, and placeholders as a Caddyfile writes them. The details count apart what another zone denied.
//
// Simulated: TestSmoke.
func TestRealCardOfZone(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(supportSite, ""))
	for range 5 {
		c.get(t, "/", "X-Api-Key", "alice")
	}
	p := open(t, serve(t, c.admin), desktop)
	p.wait("document.querySelector('[data-zone=addresses] .limit-texts').textContent.includes('gold token_bucket 200000 1hfree unlimited') || document.querySelector('[data-zone=addresses] .limit-texts').textContent.includes('free unlimitedgold token_bucket 200000 1h')")
	p.wait("document.querySelector('[data-zone=addresses] .badges').textContent.includes('plan by {header.X-Plan}')")
	p.click("[data-zone=addresses] .zone-name")
	p.wait("document.getElementById('zone-settings').textContent.includes('Key {client_ip}')")
	p.wait("[...document.querySelectorAll('#outcomes-rows tr')].some((row) => row.textContent === 'denied by another zone3')")
	p.wait("[...document.querySelectorAll('#outcomes-rows tr')].some((row) => row.textContent === 'allowed2')")
}

// Caddy keeps the last minutes, so a chart shows what was before somebody opened the page.
//
// Simulated: TestSmoke.
func TestRealChartsAreFull(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(supportSite, ""))
	for range 40 {
		c.get(t, "/", "X-Api-Key", "alice")
	}
	redistest.WaitFor(t, "a sample of the denials", func() bool {
		response, err := client.Get("http://" + c.admin + "/rate_limit/history")
		must(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		must(t, err)
		return strings.Contains(string(text), `"denied":[0,38]`)
	})
	p := open(t, serve(t, c.admin), desktop)
	p.wait("cards.get('api')?.chart.points.length > 0")
	if denied := evaluate[float64](p, "cards.get('api').chart.lastMinute().denied"); denied < 1 {
		t.Errorf("the chart has %v denied requests, and Caddy has kept 38", denied)
	}
	p.wait(`/Zone api denies \d+ %%/.test(document.getElementById('now-list').textContent)`)
}

// An explanation says when it is old, and offers what support does next.
//
// Simulated: TestSmoke.
func TestRealExplanationOffersChanges(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(supportSite, ""))
	p := open(t, serve(t, c.admin), desktop)
	for range 3 {
		c.get(t, "/", "X-Api-Key", "alice")
	}
	p.wait("cards.size === 2")
	p.fill("#explain-url", "http://"+c.site+"/")
	p.click("#explain summary")
	p.fill("#explain-headers", "X-Api-Key: alice")
	p.fill("#explain-ip", "127.0.0.1")
	p.click("#explain-send")
	p.wait("document.querySelector('.verdict.denied') && !document.getElementById('explanation-age').checkVisibility()")
	p.click("[aria-label='Reset key alice of zone api']")
	p.confirm()
	p.wait("document.getElementById('explanation-age-text').textContent === 'A key was changed since then.'")
	p.click("#explain-again")
	p.wait("document.querySelector('.verdict.allowed') && !document.getElementById('explanation-age').checkVisibility()")
	if got := c.get(t, "/", "X-Api-Key", "alice"); got != 200 {
		t.Errorf("status %d after the reset, want 200", got)
	}
	c.change(t, http.MethodPut, "zones/api/ban?key=alice")
	p.click("#explain-send")
	p.click("[aria-label='Unban key alice of zone api']")
	p.confirm()
	if got := c.get(t, "/", "X-Api-Key", "alice"); got != 200 {
		t.Errorf("status %d after the ban, want 200", got)
	}
	p.click("#explain-again")
	p.wait("!document.getElementById('explanation-age').checkVisibility()")
	evaluate[bool](p, "(explained.at -= 47000, ageExplanation(), true)")
	p.wait("document.getElementById('explanation-age-text').textContent === 'This explanation is 40 s old.'")
}
