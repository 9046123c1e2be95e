package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// browser is the one browser of all tests. Each page has a separate profile in it.
var browser context.Context

func TestMain(m *testing.M) { caddytest.Main(inBrowser{m}) }

// inBrowser runs the tests beside a browser.
type inBrowser struct{ *testing.M }

func (m inBrowser) Run() int {
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if _, err := exec.LookPath("apt-get"); err != nil && os.Getenv("CI") == "" {
			fmt.Println("SKIPPED: all tests of pages in a browser, because there is no chromium, and no apt-get to install it with")
			return 0
		}
		fmt.Println("chromium is not installed: run ./scripts/install.sh chromium")
		return 1
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	defer stop()
	var end context.CancelFunc
	browser, end = chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(browser); err != nil {
		fmt.Println("chromium does not start:", err)
		return 1
	}
	return m.M.Run()
}
