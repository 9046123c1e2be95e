package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/statuspage"
)

// serve serves the page as the command does, until the test ends, and returns its address.
func serve(t *testing.T, admins ...string) string {
	t.Helper()
	var instances []adminclient.Instance
	for _, admin := range admins {
		instances = append(instances, adminclient.Instance(admin))
	}
	ctx, stop := context.WithCancel(context.Background())
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- statuspage.Run(ctx, "localhost:0", instances, func(url string) error {
			address <- url
			return nil
		})
	}()
	select {
	case url := <-address:
		t.Cleanup(func() {
			stop()
			errtest.None(t, <-ended)
		})
		return url
	case err := <-ended:
		stop()
		t.Fatal(err)
		return ""
	}
}

// view is how a page is looked at.
type view struct {
	width, height int64
	dark          bool
	phone         bool
}

var desktop = view{width: 1280, height: 900}

// page is a page in the browser.
type page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string
	problems []string // uncaught exceptions, and what the policy has stopped
}

// open opens an address. When the test ends, the page must have made no request to another server,
// and must have had no problem.
func open(t *testing.T, address string, v view) *page {
	t.Helper()
	ctx, closePage := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	p := &page{t: t, ctx: ctx}
	errtest.None(t, chromedp.Do(ctx))
	errtest.None(t, chromedp.Listen(ctx, func(event any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := event.(type) {
		case network.EventRequestWillBeSent:
			p.requests = append(p.requests, e.Request.URL)
		case cdpruntime.EventExceptionThrown:
			p.problems = append(p.problems, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception.Description))
		case cdplog.EventEntryAdded:
			if e.Entry.Source == cdplog.EntrySourceSecurity || e.Entry.Source == cdplog.EntrySourceJavascript {
				p.problems = append(p.problems, e.Entry.Text)
			}
		}
	}))
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
			t.Logf("the page:\n%s", text)
		}
		closePage()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Errorf("the page had a problem: %s", problem)
		}
		origin := address[:strings.Index(address, "/#")+1]
		for _, r := range p.requests {
			if !strings.HasPrefix(r, origin) {
				t.Errorf("the page asked another server: %s", r)
			}
		}
	})
	scheme := "light"
	if v.dark {
		scheme = "dark"
	}
	scale := 1.0
	if v.phone {
		scale = 2
	}
	_, err := chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: v.width, Height: v.height, DeviceScaleFactor: scale, Mobile: v.phone,
	})
	errtest.None(t, err)
	_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	errtest.None(t, err)
	p.do(chromedp.Navigate(address))
	return p
}

func (p *page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	errtest.None(p.t, chromedp.Do(p.ctx, actions...))
}

// wait waits until an expression is true.
func (p *page) wait(format string, args ...any) {
	p.t.Helper()
	redistest.WaitFor(p.t, fmt.Sprintf(format, args...), func() bool {
		return evaluate[bool](p, "(() => { try { return Boolean("+format+") } catch { return false } })()", args...)
	})
}

// evaluate returns the value of an expression.
func evaluate[T any](p *page, format string, args ...any) T {
	p.t.Helper()
	expression := fmt.Sprintf(format, args...)
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	errtest.None(p.t, err, expression)
	return value
}

// click clicks on an element as soon as a mouse would hit it at its center. Looking and clicking are one step of the
// page. Otherwise a list that grows in between could move the element away from the mouse.
func (p *page) click(selector string) {
	p.t.Helper()
	p.wait(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({ block: 'center', behavior: 'instant' });
		const box = e.getBoundingClientRect();
		if (!e.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2))) return false;
		e.click();
		return true;
	})()`, selector)
}

// fill types a text into a field.
func (p *page) fill(selector, text string) {
	p.t.Helper()
	p.wait("(() => { const e = document.querySelector(%q); e.focus(); e.select(); return document.activeElement === e })()", selector)
	p.do(chromedp.KeyEvent(text))
}

// text returns the text of an element.
func (p *page) text(selector string) string {
	p.t.Helper()
	return evaluate[string](p, "document.querySelector(%q).textContent", selector)
}

// row is the selector of the row of a list about a key, as the page shows it.
func (p *page) row(list, key string) string {
	p.t.Helper()
	quoted := fmt.Sprintf("%q", key)
	mark := fmt.Sprintf("row-%d", evaluate[int](p, "window.marks = (window.marks || 0) + 1"))
	p.wait("(() => { for (const row of document.querySelectorAll('#%s-rows tr')) if (row.querySelector('.key').textContent === %s) { row.dataset.mark = %q; return true } })()", list, quoted, mark)
	return fmt.Sprintf("[data-mark=%q]", mark)
}

// confirm confirms the change in the dialog, and waits until it is made.
func (p *page) confirm() {
	p.t.Helper()
	p.wait("document.getElementById('change-dialog').open")
	p.click("#change-confirm")
	p.wait("!document.getElementById('change-dialog').open")
}
