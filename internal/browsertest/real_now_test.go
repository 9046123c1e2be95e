//go:build real

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The top of the page answers whether something needs a look: first with failures, and then with zones
// that deny many requests.
//
// Simulated: TestSmoke.
func TestRealNow(t *testing.T) {
	redis := redistest.Start(t)
	config := fmt.Sprintf(strictSite, "redis "+redis.Addr)
	a, b := startCaddy(t, config), startCaddy(t, config)
	p := open(t, serve(t, a.admin, b.admin), desktop)
	p.wait("document.getElementById('now-fine').checkVisibility() && document.getElementById('now-fine').textContent.includes('No failure now')")
	p.wait(cardRate+" === 0", "api", "denied")
	for range 60 {
		a.get(t, "/", "X-Api-Key", "alice")
	}
	p.wait(`/^◆Zone api denies \d+ .* of its requests\.$/.test(document.querySelector('#now-list li').textContent)`)
	p.wait("!document.getElementById('now-fine').checkVisibility() && !document.getElementById('pulse').classList.contains('is-down')")

	redis.Kill(t)
	redistest.WaitFor(t, "the outage in both instances", func() bool {
		return a.get(t, "/", "X-Api-Key", "c") > 0 && b.get(t, "/", "X-Api-Key", "c") > 0 &&
			evaluate[bool](p, "document.querySelector('#now-list .failing')?.textContent === %q", "▲Redis "+redis.Addr+" fails at "+a.admin+", "+b.admin+". Local budgets decide.")
	})
	p.wait("document.getElementById('pulse').classList.contains('is-down') && document.title.startsWith('(1)')")
	// A list that can't be read is not an empty list.
	p.wait("document.getElementById('bans-empty').matches('.failure') && document.getElementById('bans-empty').textContent === 'The store fails, so the list is unknown until it works again.'")
	b.kill()
	p.wait("document.querySelector('#now-list .failing')?.textContent === %q || document.querySelectorAll('#now-list .failing').length === 2", "▲"+b.admin+" does not answer.")
	p.click("#now-list .failing button")
}

// An error of the store is a failure, although no chart counts these requests.
//
// Simulated: TestSmoke.
func TestRealNowUndecided(t *testing.T) {
	redis := redistest.Start(t)
	c := startCaddy(t, fmt.Sprintf(strictSite, "redis "+redis.Addr+"\n\ton_store_error allow"))
	p := open(t, serve(t, c.admin), desktop)
	p.wait(cardRate+" === 0", "api", "denied")
	redis.Kill(t)
	redistest.WaitFor(t, "requests without a decision", func() bool {
		c.get(t, "/", "X-Api-Key", "alice")
		return evaluate[bool](p, "[...document.querySelectorAll('#now-list .failing')].some((e) => e.textContent.includes('The store of zone api could not decide requests.'))")
	})
	p.wait("document.querySelector('#now-list').textContent.includes(' fails. Requests pass without a limit.')")
}

// A denial is explained by the instance that knows it. The field that was written last counts.
//
// Simulated: TestSmoke.
func TestRealExplainAtAnotherInstance(t *testing.T) {
	config := fmt.Sprintf(strictSite, "problem_json")
	a, b := startCaddy(t, config), startCaddy(t, config)
	var problem struct{ Denial string }
	for problem.Denial == "" {
		r, _ := http.NewRequest(http.MethodGet, "http://"+b.site+"/", nil)
		r.Header.Set("X-Api-Key", "alice")
		response, err := client.Do(r)
		must(t, err)
		if response.StatusCode == http.StatusTooManyRequests {
			must(t, json.NewDecoder(response.Body).Decode(&problem))
		}
		must(t, response.Body.Close())
	}
	p := open(t, serve(t, a.admin, b.admin), desktop)
	p.wait("document.querySelectorAll('.instance .state.up').length >= 2")
	p.fill("#explain-denial", problem.Denial)
	p.click("#explain-send")
	p.wait("document.querySelector('#explanation .then')")
	if got := p.text("#explanation .then"); !strings.Contains(got, "Zone api decided, by the limit token_bucket 2 1h. The wait was ") {
		t.Errorf("explained as %q", got)
	}
	p.fill("#explain-url", "http://"+a.site+"/")
	if got := evaluate[string](p, "document.getElementById('explain-denial').value"); got != "" {
		t.Errorf("the ID %q is still there, and would be explained in place of the URL", got)
	}
	p.click("#explain-send")
	p.wait("document.querySelector('.verdict.allowed')")
}

// A zone with two values of the key bans both, and the page shows one row.
//
// Simulated: TestSmoke.
func TestRealBanOfAlternatives(t *testing.T) {
	c := startCaddy(t, `
{$SITE}
rate_limit {
	zone api {
		key {header.X-Api-Key} {header.X-Client}
		token_bucket 2 1h
		ban 1h
	}
}
`)
	p := open(t, serve(t, c.admin), desktop)
	p.click("#bans-new")
	p.fill("#change-key", "alice")
	p.confirm()
	p.row("bans", "alice")
	if n := evaluate[int](p, "document.querySelectorAll('#bans-rows tr').length"); n != 1 {
		t.Errorf("%d rows about one key", n)
	}
	p.click("#bans-rows .key-button")
	p.click("#key-content [data-change=unban]")
	p.confirm()
	p.wait("document.querySelectorAll('#bans-rows tr').length === 0 && document.querySelector('#key-content [data-change=ban]') && !document.querySelector('#key-content [data-change=unban]')")
}

// With many zones, a text finds one of them.
//
// Simulated: TestSmoke.
func TestRealFindZone(t *testing.T) {
	var zones strings.Builder
	for i := range 12 {
		fmt.Fprintf(&zones, "\tzone tenant-%d {\n\t\tkey {header.X-Api-Key}\n\t\ttoken_bucket 2 1h\n\t}\n", i)
	}
	c := startCaddy(t, "\n{$SITE}\nrate_limit {\n"+zones.String()+"}\n")
	p := open(t, serve(t, c.admin), desktop)
	p.wait("document.querySelectorAll('.zone.card').length === 12")
	// A zone without the option ban has no list of bans, which is no failure.
	p.wait("/option/.test(document.getElementById('bans-empty').textContent) && !document.getElementById('bans-empty').matches('.failure')")
	p.fill("#find-zone-text", "NT-11")
	p.wait("[...document.querySelectorAll('.zone.card')].filter((e) => e.checkVisibility()).length === 1")
	p.do(press("Enter"))
	p.wait("document.getElementById('zone-heading').textContent === 'Zone tenant-11'")
	p.fill("#find-zone-text", "no such zone")
	p.wait("document.getElementById('none-found').checkVisibility()")
}
