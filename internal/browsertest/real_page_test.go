//go:build real

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Every button has its effect on requests.
//
// Simulated: TestSmoke.
func TestRealChanges(t *testing.T) {
	c := caddytest.Start(t, caddytest.Site(strictZone))
	p := open(t, serve(t, c.Admin), desktop)
	use := func(key string, want ...int) {
		t.Helper()
		var got []int
		for range want {
			got = append(got, c.Get(t, "/", "X-Api-Key", key).StatusCode)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: statuses %v, want %v", key, got, want)
		}
	}
	button := func(list, key, name string) {
		t.Helper()
		p.click(p.row(list, key) + fmt.Sprintf(" [aria-label=%q]", name+" key "+key))
	}
	use("alice", 200, 200, 429)

	button("top", "alice", "Reset")
	p.confirm()
	use("alice", 200, 200, 429)

	button("top", "alice", "Override")
	p.fill("#change-limits", "token_bucket 5 1h")
	p.fill("#change-duration", "1h")
	p.confirm()
	use("alice", 200, 200, 200)
	if got := p.text(p.row("overrides", "alice")); !strings.Contains(got, "token_bucket 5 1h · until") {
		t.Errorf("the override is shown as %q", got)
	}
	button("overrides", "alice", "Remove")
	p.confirm()
	use("alice", 429)
	p.wait("document.querySelectorAll('#overrides-rows tr').length === 0")

	button("top", "alice", "Ban")
	p.fill("#change-duration", "30m")
	p.confirm()
	if got := p.text(p.row("bans", "alice")); !strings.Contains(got, "in 30 min") && !strings.Contains(got, "in 29 min") {
		t.Errorf("the ban is shown as %q", got)
	}
	button("top", "alice", "Reset")
	p.confirm()
	use("alice", 200)

	// A key that is in no list.
	p.click("#bans-new")
	p.fill("#change-key", "bob")
	p.confirm()
	use("bob", 429)
	button("bans", "bob", "Unban")
	p.confirm()
	use("bob", 200)
	p.wait("document.querySelectorAll('#bans-rows tr').length === 0")

	// The look at a key has the same buttons.
	p.fill("#find-key-text", "bob")
	p.click("#find-key button")
	p.wait("document.querySelector('#key-content .bar-text').textContent.startsWith('1 used · 1 of 2 left')")
	p.click("#key-content [data-change=override]")
	p.fill("#change-limits", "unlimited")
	p.confirm()
	use("bob", 200, 200, 200)
	p.wait("document.querySelector('#key-content').textContent.includes('unlimited · no end')")
	p.click("#key-dialog .close")

	// A mistake is shown where it can be corrected.
	p.click("#overrides-new")
	p.fill("#change-key", "carol")
	p.fill("#change-limits", "tokenbucket 5")
	p.click("#change-confirm")
	p.wait("document.getElementById('change-error').textContent.includes('tokenbucket')")
	p.click("#change-dialog .close")
	p.wait("!document.getElementById('change-dialog').open")
}

// The page adds up the instances, shows how they differ, and continues when one of them ends.
//
// Simulated: TestSmoke, TestRelayed.
func TestRealSeveralInstances(t *testing.T) {
	a := caddytest.Start(t, caddytest.Site(strictZone))
	b := caddytest.StartProcess(t, caddytest.Site(strings.Replace(strictZone, "token_bucket 2 1h", "token_bucket 4 1h", 1)))
	p := open(t, serve(t, a.Admin, b.Admin), desktop)
	for _, c := range []*caddytest.Caddy{a, b} {
		for range 10 {
			c.Get(t, "/", "X-Api-Key", "alice")
		}
	}
	// 8 and 6 denials
	p.wait("[...document.querySelectorAll('#top-rows tr')].some((row) => row.textContent.includes('alice') && row.children[1].textContent === '14')")
	places := p.text(p.row("top", "alice") + " .places")
	if !strings.Contains(places, a.Admin+": 8") || !strings.Contains(places, b.Admin+": 6") {
		t.Errorf("the denials are of %q", places)
	}
	p.wait("document.querySelector('[data-zone=api] .badges').textContent.includes('settings differ')")
	p.wait("document.getElementById('by-instance-rows').textContent.includes('differ: token_bucket 4 1h')")

	// A change goes to one instance, or to all.
	p.click(p.row("top", "alice") + " .actions button:last-child")
	p.wait("document.getElementById('change-where').options.length === 3")
	evaluate[bool](p, `(() => { const s = document.getElementById('change-where');
		s.value = [...s.options].find((o) => o.textContent === %q).value; s.dispatchEvent(new Event('change', {bubbles: true})); return true })()`, b.Admin+" (memory)")
	p.confirm()
	if at, bt := a.Get(t, "/", "X-Api-Key", "alice").StatusCode, b.Get(t, "/", "X-Api-Key", "alice").StatusCode; at != 429 || bt != 200 {
		t.Errorf("after the reset in one instance: %d and %d, want 429 and 200", at, bt)
	}
	p.click(p.row("top", "alice") + " .actions button:last-child")
	p.confirm()
	if at, bt := a.Get(t, "/", "X-Api-Key", "alice").StatusCode, b.Get(t, "/", "X-Api-Key", "alice").StatusCode; at != 200 || bt != 200 {
		t.Errorf("after the reset everywhere: %d and %d, want 200 and 200", at, bt)
	}

	b.Stop()
	p.wait("document.getElementById('pulse').textContent.startsWith('1 of 2 instances')")
	p.wait("document.querySelectorAll('.instance')[1].textContent.includes('not reachable for')")
	p.wait("document.getElementById('by-instance-rows').textContent.includes('not reachable')")
	for range 3 {
		a.Get(t, "/", "X-Api-Key", "bob")
	}
	p.row("top", "bob")
}

// drySite has a zone that would deny the third request of a key, a zone that denies it, and no Redis.
var drySite = caddytest.Site(`zone orders {
	key {header.X-Api-Key}
	plan {header.X-Plan} {
		gold unlimited
		default {
			token_bucket 2 1h
		}
	}
	shadow
}
zone login {
	match path /login
	key {header.X-Api-Key}
	token_bucket 2 1h
}
redis 127.0.0.1:1`)

// The page shows what shadow mode would deny apart from what is denied, with evidence. Without Redis it says what happens.
//
// Simulated: TestSmoke, TestAdminTop, TestExplanationView.
func TestRealDryRuns(t *testing.T) {
	a, b := caddytest.Start(t, drySite), caddytest.Start(t, drySite)
	p := open(t, serve(t, a.Admin, b.Admin), desktop)
	p.wait("instances.every((i) => i.rates.size === 2)")
	for range 10 {
		b.Get(t, "/login", "X-Api-Key", "alice")
	}
	redistest.WaitFor(t, "the zone that would deny much", func() bool { // in a minute
		a.Get(t, "/", "X-Api-Key", "alice")
		return strings.Contains(p.text("#now-list"), "of its requests (shadow mode).")
	})
	p.wait("document.querySelector('[data-zone=orders] .would:last-child dd').textContent.endsWith(' %%')")
	p.wait("!document.querySelector('[data-zone=login] .numbers .would').checkVisibility()")
	p.wait("document.querySelector('[data-zone=orders] .chart').ariaLabel.includes('would be denied (shadow mode)')")
	p.wait("document.querySelector('[data-zone=orders] .limit-texts').textContent === 'default token_bucket 2 1hplan gold unlimited'")
	p.wait("/^alicezone logintoken_bucket 2 1h · last .*alice would be deniedzone orders/.test($('all-denied-rows').textContent)")
	p.click("[data-zone=orders] .zone-name")
	p.wait("/^alice would be denied token_bucket 2 1h · last /.test(document.getElementById('top-rows').innerText.replace(/\\s+/g, ' '))")
	p.click("#all-denied-rows tr .key-button")
	p.wait("document.querySelector('#key-content .recently').textContent.startsWith('Recently: denied 8 times since ')")
	p.click("#key-dialog .close")
	p.fill("#explain-url", "http://"+b.Site+"/login")
	evaluate[bool](p, `($('explain-where').value = 1, $('explain-headers').value = 'X-Api-Key: alice', true)`)
	p.click("#explain-send")
	p.wait("/^Recently, key alice of zone login: denied 8 times .*would have been denied .*Now: Denied/.test($('explanation').textContent)")
	denials := `{ handlers: [{ zones: [{ zone: 'z', key: { key: 'k' }, denials: [{ denied: 2, at_most: 2, first: 0, last: 0, limit: 'gcra 5 1m' }] }] }] }`
	p.wait("recentlyOf([%[1]s, %[1]s])[0].textContent.startsWith('Recently, key k of zone z: denied 4 times ')", denials)
	p.wait("document.getElementById('now').innerText.includes('Local budgets decide.')")
	p.wait("!document.querySelector('main').innerText.includes(instances[0].status.redis[0].error.split(' ').pop())") // its last word
	none(p, "too little contrast", contrastScript)
}
