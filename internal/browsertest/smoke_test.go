package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/htmlreport"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/reporttest"
)

// strictZone is a zone that denies the third request of a key.
const strictZone = `zone api {
	key {header.X-Api-Key}
	token_bucket 2 1h
	runtime_overrides
	ban 2h after 100000
}`

// The page shows a zone and its denied keys, explains a request, and its buttons change a key. Keys are text, and without
// the token there is nothing. A report is drawn. The other tests of this directory look closer, in make real.
func TestSmoke(t *testing.T) {
	const hostile, shown = `<img src=x onerror=hacked()>"'` + "\u202e\t<", `<img src=x onerror=hacked()>"'U+202EU+0009<`
	c := caddytest.Start(t, caddytest.Site(strictZone))
	address := serve(t, c.Admin)
	p := open(t, address, desktop)
	evaluate[bool](p, "(window.hacked = () => { window.wasHacked = true }, true)")
	for _, key := range []string{"alice", hostile} {
		for _, want := range []int{200, 200, 429} {
			if got := c.Get(t, "/", "X-Api-Key", key).StatusCode; got != want {
				t.Errorf("%s: status %d, want %d", key, got, want)
			}
		}
	}
	p.wait("document.querySelector('[data-zone=api] .limit-texts').textContent.includes('token_bucket 2 1h')")
	p.row("top", "alice")

	// Only the chart of the hour has requests from half an hour ago.
	p.wait("document.querySelector('#zone-hour .chart').ariaLabel.includes('zone api in the last 60 minutes')")
	if got := evaluate[string](p, `(() => {
		const at = elapsed(), rates = new Map([['api', {allowed: 5.5, denied: 1, shadowDenied: 0}]]);
		instances[0].history = [{from: at - 1860000, to: at - 1800000, rates}];
		const card = new Card('api');
		card.show(at);
		return [card.chart, card.hour].map((c) => c.points.some((p) => p.allowed === 5.5)).join();
	})()`); got != "false,true" {
		t.Errorf("it is in the charts: %s", got)
	}

	p.fill("#explain-url", "http://"+c.Site+"/")
	p.click("#explain summary")
	p.fill("#explain-headers", "X-Api-Key: alice")
	p.click("#explain-send")
	p.wait("document.querySelector('.verdict.denied')")
	if got := p.text("#explanation .verdict"); !strings.Contains(got, "Zone api decides, by the limit token_bucket 2 1h.") {
		t.Errorf("explained as %q", got)
	}

	row := p.row("top", shown)
	p.click(row + " .actions button:last-child") // Reset
	p.confirm()
	if got := c.Get(t, "/", "X-Api-Key", hostile).StatusCode; got != 200 {
		t.Errorf("status %d after the reset, want 200", got)
	}
	p.click(row + " .actions button:first-child") // Ban
	p.confirm()
	if got := c.Get(t, "/", "X-Api-Key", hostile).StatusCode; got != 429 {
		t.Errorf("status %d after the ban, want 429", got)
	}
	p.row("bans", shown)
	if evaluate[bool](p, "Boolean(window.wasHacked) || document.querySelectorAll('main script, main img').length > 0") {
		t.Error("a key became HTML")
	}
	none(p, "too little contrast", contrastScript)

	origin, _, _ := strings.Cut(address, "#")
	p = open(t, origin, desktop)
	p.wait("!document.getElementById('banner').hidden && document.getElementById('banner').textContent.includes('caddy rate-limit ui')")
	if n := evaluate[int](p, "document.querySelectorAll('.card').length"); n != 0 {
		t.Errorf("without the token there are %d cards", n)
	}

	p = openReport(t, reporttest.Shop(), desktop)
	// All requests and 3 zones, of which 2 deny, and 4 curves.
	if got := evaluate[int](p, "document.querySelectorAll('svg.area').length"); got != 4+3+4 {
		t.Errorf("there are %d plots, want 11", got)
	}
	none(p, "too little contrast", contrastScript)
}

// openReport opens the page of a report.
func openReport(t *testing.T, r *report.Report, v view) *page {
	t.Helper()
	var b bytes.Buffer
	errtest.None(t, htmlreport.Write(&b, r))
	return openPage(t, b.Bytes(), v)
}

func openPage(t *testing.T, content []byte, v view) *page {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	return open(t, server.URL+"/#", v)
}

// none fails for each of the texts that a script returns.
func none(p *page, what, script string) {
	p.t.Helper()
	for _, problem := range evaluate[[]string](p, "%s", script) {
		p.t.Errorf("%s: %s", what, problem)
	}
}

// contrastScript lists the elements whose text has a contrast of less than 4.5 to what is behind it.
const contrastScript = `(() => {
	const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
	const rgba = (color) => { context.clearRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1); return [...context.getImageData(0, 0, 1, 1).data] };
	const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 200) return c } return [255, 255, 255, 255] };
	const seen = [];
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || e.closest('[hidden], script, dialog, datalist, option') || !e.checkVisibility()) continue;
		const style = getComputedStyle(e);
		const text = luminance(rgba(e.closest('svg') ? style.fill : style.color)), ground = luminance(behind(e));
		const contrast = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
		if (contrast < 4.5) seen.push(e.tagName + '.' + e.getAttribute('class') + ' ' + e.textContent.slice(0, 30) + ' ' + contrast.toFixed(2));
	}
	return seen;
})()`

// The page in docs/clients.md shows clients their quota, and its looks cost nothing.
func TestQuotaPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/clients.md")
	errtest.None(t, err)
	_, caddyfile, _ := strings.Cut(string(text), "# A quota that clients can read.\n:8080 ")
	caddyfile, _, _ = strings.Cut(caddyfile, "```")
	c := caddytest.Start(t, "{\n\tadmin {$ADMIN}\n}\n{$SITE} "+caddyfile)
	for _, left := range []int{1000, 999} {
		open(t, "http://"+c.Site+"/quota", desktop).wait("left.textContent === '%d of 1000 requests are left.'", left)
		c.Get(t, "/api/orders")
	}
}
