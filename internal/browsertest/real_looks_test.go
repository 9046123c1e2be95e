//go:build real

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// press presses a key of the keyboard.
func press(name string, modifiers ...chromedp.Modifier) chromedp.Action[chromedp.Void] {
	keys := map[string]string{"Tab": "\t", "Enter": "\r", "Escape": "\x1b", "Space": " "}
	return chromedp.KeyEvent(keys[name], chromedp.KeyModifiers(modifiers...))
}

// chooseOption chooses an option of a list by its text, as a user does.
func chooseOption(selector, text string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Evaluate[bool](fmt.Sprintf(`(() => { const s = document.querySelector(%q);
			s.value = [...s.options].find((o) => o.textContent === %q).value; s.dispatchEvent(new Event('change', {bubbles: true})); return true })()`, selector, text))(ctx, target)
		return chromedp.Void{}, err
	}
}

// Everything works without a pointer: from the top of the page to a banned key, and back.
//
// Simulated: TestSmoke.
func TestRealKeyboard(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(strictSite, ""))
	for range 20 {
		c.get(t, "/", "X-Api-Key", "alice")
	}
	p := open(t, serve(t, c.admin), desktop)
	p.row("top", "alice")
	focus := func(what string, wanted string) {
		t.Helper()
		for range 60 {
			p.do(press("Tab"))
			if evaluate[bool](p, "document.activeElement.matches(%q)", wanted) {
				if outline := evaluate[string](p, "(() => { const e = document.activeElement; const s = getComputedStyle(e), a = getComputedStyle(e, '::after'); return [s, a].map((x) => x.outlineStyle + x.outlineWidth).join() })()"); !strings.Contains(outline, "solid3px") {
					t.Errorf("the focus on %s can't be seen: %s", what, outline)
				}
				return
			}
		}
		t.Fatalf("the keyboard does not get to %s, but to %s", what, evaluate[string](p, "document.activeElement.outerHTML"))
	}
	focus("the skip link", ".skip")
	focus("the zone", ".zone-name")
	p.do(press("Enter"))
	focus("the field for a key", "#find-key-text")
	focus("the key", ".key-button")
	p.do(press("Enter"))
	p.wait("document.getElementById('key-dialog').open && document.querySelector('#key-content .bar')")
	p.do(press("Escape"))
	p.wait("!document.getElementById('key-dialog').open && document.activeElement.matches('.key-button')")
	focus("the button Ban", `[aria-label="Ban key alice"]`)
	p.do(press("Enter"))
	p.wait("document.activeElement.id === 'change-duration'")
	p.do(chromedp.KeyEvent("10m"), press("Enter"))
	p.wait("!document.getElementById('change-dialog').open")
	// The focus is where it was, although the lists have changed.
	p.wait(`document.activeElement.matches('[aria-label="Ban key alice"]')`)
	p.row("bans", "alice")
	focus("the button Unban", `[aria-label="Unban key alice"]`)
	p.do(press("Enter"))
	p.wait("document.activeElement.id === 'change-confirm'")
	p.do(press("Enter"))
	p.wait("document.querySelectorAll('#bans-rows tr').length === 0")
}

// On a phone nothing is wider than the screen, also with long keys.
//
// Simulated: TestSmoke.
func TestRealPhone(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(strictSite, ""))
	for _, key := range []string{strings.Repeat("W", 5000), strings.Repeat("<", 200), "short"} {
		for range 20 {
			c.get(t, "/", "X-Api-Key", key)
		}
	}
	p := open(t, serve(t, c.admin), view{width: 360, height: 740, phone: true})
	p.row("top", "short")
	fits := func(what string) {
		t.Helper()
		if got := evaluate[string](p, `[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 361 && !e.closest('.scroll, .key, .hidden, svg')).map((e) => e.tagName + '.' + e.className).join()`); got != "" {
			t.Errorf("%s: wider than the screen: %s", what, got)
		}
		if width := evaluate[int](p, "document.documentElement.scrollWidth"); width > 360 {
			t.Errorf("%s: the page is %d pixels wide, want 360", what, width)
		}
	}
	fits("the page")
	p.click(p.row("top", "short") + " .actions button")
	p.wait("document.getElementById('change-dialog').open")
	fits("the dialog")
	p.click("#change-dialog .close")
	p.click(p.row("top", "short") + " .key-button")
	p.wait("document.querySelector('#key-content .bar')")
	fits("the look at a key")
}

// Texts have enough contrast in both schemes, and the schemes differ.
//
// Simulated: TestSmoke.
func TestRealSchemes(t *testing.T) {
	c := startCaddy(t, fmt.Sprintf(strictSite, ""))
	traffic(t, c, "X-Api-Key", "alice")
	address := serve(t, c.admin)
	grounds := make(map[string]bool)
	for _, dark := range []bool{false, true} {
		p := open(t, address, view{width: 1280, height: 900, dark: dark})
		p.row("top", "alice")
		p.wait(cardRate+" > 5", "api", "denied")
		grounds[evaluate[string](p, "getComputedStyle(document.body).backgroundColor")] = true
		pale := evaluate[[]string](p, contrastScript)
		for _, e := range pale {
			t.Errorf("dark %v: too little contrast: %s", dark, e)
		}
	}
	if len(grounds) != 2 {
		t.Errorf("the schemes have the grounds %v", grounds)
	}
}
