//go:build real

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// eachStore runs a test with budgets in memory and in Redis.
func eachStore(t *testing.T, test func(t *testing.T, options string)) {
	t.Run("memory", func(t *testing.T) { test(t, "") })
	t.Run("redis", func(t *testing.T) { test(t, "redis "+redistest.Start(t).Addr) })
}

// Every button has its effect on requests.
//
// Simulated: TestSmoke.
func TestRealChanges(t *testing.T) {
	eachStore(t, func(t *testing.T, options string) {
		c := startCaddy(t, fmt.Sprintf(strictSite, options))
		p := open(t, serve(t, c.admin), desktop)
		use := func(key string, want ...int) {
			t.Helper()
			var got []int
			for range want {
				got = append(got, c.get(t, "/", "X-Api-Key", key))
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
		p.wait("document.querySelector('#key-content .bar-text').textContent.startsWith('1 of 2 left')")
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
		p.do(press("Escape"))
		p.wait("!document.getElementById('change-dialog').open")
	})
}

// Keys are any bytes that clients send. None of them is more than text, and each button changes
// exactly its key.
//
// Simulated: TestSmoke, TestRelayed.
func TestRealHostileKeys(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(strictSite, ""))
	p := open(t, serve(t, c.admin), desktop)
	evaluate[bool](p, `(window.hacked = () => { window.wasHacked = true }, true)`)
	tests := []struct{ name, key, shown string }{
		{"HTML", `<img src=x onerror=hacked()><script>hacked()</script>`, ""},
		{"quotes", `"'><b onmouseover="hacked()">` + "`", ""},
		{"path", "../../load?a=b&key=x#f%2F;+", ""},
		{"a dot", ".", ""},
		{"two dots", "..", ""},
		{"bidi controls", "abc\u202egnp.exe\u2066", "abcU+202Egnp.exeU+2066"},
		{"invisible characters", "a\u200bb\u00ad", "aU+200BbU+00AD"},
		{"a tab", "a\tb", "aU+0009b"},
		{"invalid UTF-8", "a\xff\xfe<b>", "a%FF%FE%3Cb%3E"},
		{"an empty key", "", "the empty key"},
		{"script text", "javascript:hacked()", ""},
		{"a template", "${hacked()}{{hacked()}}", ""},
	}
	long := `<script>hacked()</script>` + strings.Repeat("long ", 2000)
	for _, test := range tests {
		for range 3 {
			c.get(t, "/", "X-Api-Key", test.key)
		}
	}
	for range 3 {
		c.get(t, "/", "X-Api-Key", long)
	}
	for _, test := range tests {
		shown := test.shown
		if shown == "" {
			shown = test.key
		}
		if got := c.get(t, "/", "X-Api-Key", test.key); got != 429 {
			t.Fatalf("%s: status %d before, want 429", test.name, got)
		}
		row := p.row("top", shown)
		p.click(row + " .actions button:last-child")
		p.confirm()
		if got := c.get(t, "/", "X-Api-Key", test.key); got != 200 {
			t.Errorf("%s: status %d after the reset, want 200", test.name, got)
		}
		p.click(row + " .actions button:first-child")
		p.confirm()
		if got := c.get(t, "/", "X-Api-Key", test.key); got != 429 {
			t.Errorf("%s: status %d after the ban, want 429", test.name, got)
		}
		p.row("bans", shown)
	}
	// Of a long key only the beginning is known. So nothing can be done to it from the list.
	row := p.row("top", strings.TrimSpace(long[:256])+"… (cut)")
	if n := evaluate[int](p, "document.querySelectorAll(%q).length", row+" button"); n != 0 {
		t.Errorf("a cut key has %d buttons", n)
	}
	// But its text can be pasted.
	evaluate[bool](p, "(document.getElementById('find-key-text').value = %q, true)", strings.TrimSpace(long))
	p.click("#find-key button")
	p.wait("document.querySelector('#key-content .bar-text').textContent.startsWith('0 of 2 left')")
	p.click("#key-content [data-change=reset]")
	p.confirm()
	if got := c.get(t, "/", "X-Api-Key", long); got != 200 {
		t.Errorf("the long key: status %d after the reset, want 200", got)
	}
	if evaluate[bool](p, "Boolean(window.wasHacked) || document.querySelectorAll('main script, main img, main b').length > 0") {
		t.Error("a key became HTML")
	}
	if width := evaluate[int](p, "document.documentElement.scrollWidth"); width > int(desktop.width) {
		t.Errorf("the page is %d pixels wide", width)
	}
}
