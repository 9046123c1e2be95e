//go:build real

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// traffic sends requests to the site until the test ends, about 100 in a second.
func traffic(t *testing.T, c *caddyProcess, fields ...string) (stop func()) {
	t.Helper()
	ended, end := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				c.get(t, "/", fields...)
			}
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			close(end)
			<-ended
		}
	}
	t.Cleanup(stop)
	return stop
}

// rates returns the rates of a card.
const cardRate = `Number(document.querySelector('[data-zone=%s] .numbers .%s dd').textContent)`

// The page shows what happens now.
//
// Simulated: TestSmoke.
func TestRealTraffic(t *testing.T) {
	c := startCaddy(t, strings.Replace(fmt.Sprintf(strictSite, ""), "token_bucket 2 1h", "token_bucket 20 1s", 1))
	p := open(t, serve(t, c.admin), desktop)
	stop := traffic(t, c, "X-Api-Key", "customer-7")
	p.wait(cardRate+" > 5", "api", "allowed")
	p.wait(cardRate+" > 5", "api", "denied")
	chart := "document.querySelector('[data-zone=api] .chart')"
	p.wait("%s.querySelector('.line.allowed').getAttribute('d').length > 20", chart)
	p.wait("%s.querySelector('.line.denied').getAttribute('d').length > 20", chart)
	p.wait("/Now \\d.* allowed and \\d.* denied per second/.test(%s.getAttribute('aria-label'))", chart)
	p.row("top", "customer-7")
	stop()
	// Then the rates are 0, and the admin API has the same numbers of requests.
	p.wait(cardRate+" === 0 && "+cardRate+" === 0", "api", "allowed", "api", "denied")
	for outcome, text := range map[string]string{"allowed": "allowed", "denied": "denied by a limit"} {
		want := c.zone(t, "api").Requests[outcome]
		p.wait("[...document.querySelectorAll('#outcomes-rows tr')].some((row) => row.textContent.replaceAll(',', '') === %q)", fmt.Sprint(text, want))
	}
	if got := p.text("#instance-cards"); !strings.Contains(got, " of 1,000,000 keys") {
		t.Errorf("the memory is shown as %q", got)
	}
}

// The page stays live if somebody sets the clock of its machine back.
//
// Simulated: TestSmoke.
func TestRealClockStepsBack(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(strictSite, ""))
	p := open(t, serve(t, c.admin), desktop)
	traffic(t, c, "X-Api-Key", "customer-7")
	p.row("top", "customer-7")
	evaluate[bool](p, "((now) => { Date.now = () => now() - 3600e3; return true })(Date.now)")
	for range 3 {
		c.get(t, "/", "X-Api-Key", "customer-8")
	}
	p.row("top", "customer-8")
	p.wait(cardRate+" > 5", "api", "denied")
	if !evaluate[bool](p, "cards.get('api').chart.points.every((p, i, all) => i === 0 || p.at > all[i - 1].at)") {
		t.Error("the times of the chart step back")
	}
}

// The page adds up the instances, shows how they differ, and goes on when one of them ends.
//
// Simulated: TestSmoke, TestRelayed.
func TestRealSeveralInstances(t *testing.T) {
	a := startCaddy(t, fmt.Sprintf(strictSite, ""))
	b := startCaddy(t, strings.Replace(fmt.Sprintf(strictSite, ""), "token_bucket 2 1h", "token_bucket 4 1h", 1))
	p := open(t, serve(t, a.admin, b.admin), desktop)
	for _, c := range []*caddyProcess{a, b} {
		for range 10 {
			c.get(t, "/", "X-Api-Key", "alice")
		}
	}
	// 8 and 6 denials
	p.wait("[...document.querySelectorAll('#top-rows tr')].some((row) => row.textContent.includes('alice') && row.children[1].textContent === '14')")
	places := p.text(p.row("top", "alice") + " .places")
	if !strings.Contains(places, a.admin+": 8") || !strings.Contains(places, b.admin+": 6") {
		t.Errorf("the denials are of %q", places)
	}
	p.wait("document.querySelector('[data-zone=api] .badges').textContent.includes('settings differ')")
	p.wait("document.getElementById('by-instance-rows').textContent.includes('differ: token_bucket 4 1h')")

	// A change goes to one instance, or to all.
	p.click(p.row("top", "alice") + " .actions button:last-child")
	p.wait("document.getElementById('change-where').options.length === 3")
	p.do(chooseOption("#change-where", b.admin+" (memory)"))
	p.confirm()
	if at, bt := a.get(t, "/", "X-Api-Key", "alice"), b.get(t, "/", "X-Api-Key", "alice"); at != 429 || bt != 200 {
		t.Errorf("after the reset in one instance: %d and %d, want 429 and 200", at, bt)
	}
	p.click(p.row("top", "alice") + " .actions button:last-child")
	p.confirm()
	if at, bt := a.get(t, "/", "X-Api-Key", "alice"), b.get(t, "/", "X-Api-Key", "alice"); at != 200 || bt != 200 {
		t.Errorf("after the reset everywhere: %d and %d, want 200 and 200", at, bt)
	}

	b.kill()
	p.wait("document.getElementById('pulse').textContent.startsWith('1 of 2 instances')")
	p.wait("document.querySelectorAll('.instance')[1].textContent.includes('not reachable for')")
	p.wait("document.querySelectorAll('.instance')[1].querySelector('.failure').textContent.includes('start Caddy')")
	p.wait("document.getElementById('by-instance-rows').textContent.includes('not reachable')")
	traffic(t, a, "X-Api-Key", "bob")
	p.wait(cardRate+" > 5", "api", "denied")
	p.row("top", "bob")
}

// With one Redis a change is made once, and holds for all.
//
// Simulated: TestSmoke.
func TestRealSharedRedis(t *testing.T) {
	redis := redistest.Start(t)
	config := fmt.Sprintf(strictSite, "redis "+redis.Addr)
	a, b := startCaddy(t, config), startCaddy(t, config)
	p := open(t, serve(t, a.admin, b.admin), desktop)
	p.wait("document.querySelectorAll('.instance .state.up').length >= 4")
	p.click("#bans-new")
	p.fill("#change-key", "alice")
	p.confirm()
	redistest.WaitFor(t, "the ban in both instances", func() bool {
		return a.get(t, "/", "X-Api-Key", "alice") == 429 && b.get(t, "/", "X-Api-Key", "alice") == 429
	})
	p.row("bans", "alice")
	redis.Kill(t)
	redistest.WaitFor(t, "the outage in both instances", func() bool {
		return a.get(t, "/", "X-Api-Key", "c") > 0 && b.get(t, "/", "X-Api-Key", "c") > 0 &&
			evaluate[int](p, "[...document.querySelectorAll('.instance .fact .state.down')].filter((e) => e.textContent.includes('down for')).length") == 2
	})
	// The page can't read the bans now, so it doesn't say that there are none.
	p.wait("/fail/.test(document.querySelector('#bans-empty.failure').textContent)")
}

// zone returns what the admin API says about a zone.
func (c *caddyProcess) zone(t testing.TB, name string) adminapi.Zone {
	t.Helper()
	response, err := client.Get("http://" + c.admin + "/rate_limit/zones")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var zones []adminapi.Zone
	if err := json.NewDecoder(response.Body).Decode(&zones); err != nil {
		t.Fatal(err)
	}
	for _, z := range zones {
		if z.Name == name {
			return z
		}
	}
	t.Fatalf("there is no zone %s", name)
	return adminapi.Zone{}
}
