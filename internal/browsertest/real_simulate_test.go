//go:build real

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/reporttest"
)

var simulations = map[string]func() *report.Report{
	"shop": reporttest.Shop, "compared": reporttest.Compared, "from nothing": reporttest.FromNothing,
	"odd": reporttest.Odd, "empty": reporttest.Empty,
}

// Texts have enough contrast, and all that is drawn is inside of its plot, in both schemes.
//
// Simulated: TestSmoke, TestWellFormed.
func TestRealReportLooks(t *testing.T) {
	for name, report := range simulations {
		grounds := make(map[string]bool)
		for _, dark := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				p := openReport(t, report(), view{width: 1280, height: 900, dark: dark})
				grounds[evaluate[string](p, "getComputedStyle(document.body).backgroundColor")] = true
				none(p, "too little contrast", contrastScript)
				none(p, "outside", outsideScript)
				none(p, "a plot without words", wordlessScript)
				if name == "shop" {
					// All requests and 3 zones, of which 2 deny, and 4 curves.
					if got := evaluate[int](p, "document.querySelectorAll('svg.area').length"); got != 4+3+4 {
						t.Errorf("there are %d plots, want 11", got)
					}
				}
			})
		}
		if len(grounds) == 1 {
			t.Errorf("the schemes have the same ground %v", grounds)
		}
	}
}

// outsideScript lists what is drawn outside of its plot, plots without size, and labels outside of the
// card.
const outsideScript = `(() => {
	const seen = [];
	const inside = (a, b, by) => a.left >= b.left - by && a.right <= b.right + by && a.top >= b.top - by && a.bottom <= b.bottom + by;
	for (const plot of document.querySelectorAll('svg.area')) {
		const title = plot.querySelector('title').textContent, area = plot.getBoundingClientRect();
		if (area.width < 200 || area.height < 50) seen.push(title + ' is ' + area.width + ' by ' + area.height);
		const drawn = [...plot.querySelectorAll('.data, .hatched, .dot, .slots rect')];
		if (!drawn.some((e) => e.matches('.data, .dot') && e.getBoundingClientRect().width > 0)) seen.push(title + ' is empty');
		for (const e of drawn) if (!inside(e.getBoundingClientRect(), area, 6)) seen.push(title + ': ' + e.outerHTML.slice(0, 100));
		const card = plot.closest('.card').getBoundingClientRect();
		for (const e of plot.querySelectorAll('text, .limit-mark')) {
			if (e.checkVisibility() && !inside(e.getBoundingClientRect(), card, 0)) seen.push(title + ': ' + e.outerHTML);
		}
		const labels = [...plot.querySelectorAll('text.tick')].filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect());
		labels.forEach((a, i) => labels.slice(i + 1).forEach((b) => {
			if (a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom) seen.push(title + ': labels of the axes overlap');
		}));
	}
	return seen;
})()`

// wordlessScript lists the plots without a title or a description.
const wordlessScript = `(() => {
	const seen = [];
	for (const plot of document.querySelectorAll('svg[role=img]')) {
		const ids = (plot.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean);
		if (ids.length ? ids.some((id) => !document.getElementById(id)?.textContent) : !plot.querySelector('title')?.textContent) seen.push(plot.outerHTML.slice(0, 200));
	}
	return seen;
})()`

// On a phone nothing is wider than the screen, and the labels of the axes have room.
//
// Simulated: TestSmoke, TestWellFormed.
func TestRealReportOnPhone(t *testing.T) {
	for name, report := range simulations {
		t.Run(name, func(t *testing.T) {
			p := openReport(t, report(), view{width: 375, height: 740, phone: true})
			if width := evaluate[int](p, "document.documentElement.scrollWidth"); width > 375 {
				t.Errorf("the page is %d pixels wide, want 375", width)
			}
			none(p, "wider than the screen", `[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 376 && !e.closest('.scroll, .hidden')).map((e) => e.outerHTML.slice(0, 200))`)
			none(p, "outside", outsideScript)
		})
	}
}

// On paper the page is light, and no plot is cut, because each is smaller than a sheet.
//
// Simulated: TestSmoke, TestWellFormed.
func TestRealReportOnPaper(t *testing.T) {
	for name, report := range simulations {
		t.Run(name, func(t *testing.T) {
			p := openReport(t, report(), view{width: 703, height: 1000, dark: true})
			_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Media: "print", Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
			})
			must(t, err)
			if got := evaluate[string](p, "getComputedStyle(document.body).backgroundColor"); got != "rgb(255, 255, 255)" {
				t.Errorf("the ground is %s on paper", got)
			}
			none(p, "too little contrast", contrastScript)
			none(p, "outside", outsideScript)
			none(p, "cut", `[...document.querySelectorAll('figure')].filter((e) => getComputedStyle(e).breakInside !== 'avoid' || e.getBoundingClientRect().height > 1000).map((e) => e.textContent.slice(0, 100))`)
			none(p, "wider than the sheet", `[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > 704 && !e.closest('.hidden')).map((e) => e.outerHTML.slice(0, 200))`)
			paper, err := chromedp.Call(p.ctx, cdppage.PrintToPDF, cdppage.PrintToPDFParams{PreferCSSPageSize: new(true)})
			must(t, err)
			if !bytes.HasPrefix(paper.Data, []byte("%PDF-")) {
				t.Errorf("the paper begins with %.20q", paper.Data)
			}
		})
	}
}

// A click on a proposed limit selects its line, and nothing else.
//
// Simulated: TestShows.
func TestRealReportSelectsProposal(t *testing.T) {
	report := reporttest.Shop()
	p := openReport(t, report, desktop)
	p.do(chromedp.Click(chromedp.CSS("#zone-2 .paste code"))) // only a mouse selects
	want := report.Configurations[0].Zones[1].Proposals[0].Line
	if got := evaluate[string](p, "getSelection().toString()"); strings.TrimSpace(got) != want || want == "" {
		t.Errorf("a click selects %q, want %q", got, want)
	}
}
