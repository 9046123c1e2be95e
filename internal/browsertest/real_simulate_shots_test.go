//go:build real

package main

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

const simulatePictures = "../../docs/simulate/"

// simulatedSite is the site in the pictures of a simulation.
const simulatedSite = `shop.example.com

rate_limit {
	zone api {
		match path /api/*
		key {header.X-Api-Key}
		token_bucket 20 1s 40
	}
	zone login {
		match path /login
		key {client_ip}
		ipv6_prefix 64
		gcra 10 1m 5
	}
	zone search {
		match path /search
		key {client_ip}
		ipv6_prefix 64
		sliding_window 120 1m
	}
}
respond "ok"
`

// The pictures of a report show a real simulation of a generated log. TestScreenshotsAreSmall looks at them.
//
// Simulated: TestScreenshotsAreSmall.
func TestRealSimulateScreenshots(t *testing.T) {
	names := []string{"light.png", "dark.png", "phone.png"}
	if !*caddytest.Update {
		t.Skip("-update takes the pictures")
	}
	report := simulateShop(t)
	errtest.None(t, os.MkdirAll(simulatePictures, 0o755))
	heights := []int{2440, 2440, 2400}
	for i, v := range []view{{width: 1180, height: 1000}, {width: 1180, height: 1000, dark: true}, {width: 390, height: 844, phone: true}} {
		p := openPage(t, report, v)
		shot, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
		errtest.None(t, err)
		errtest.None(t, os.WriteFile(simulatePictures+names[i], smaller(t, shot, heights[i]), 0o644))
	}
}

// simulateShop runs the command over a day of a shop, and returns the report.
func simulateShop(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	errtest.None(t, os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(simulatedSite), 0o600))
	writeShopLog(t, filepath.Join(dir, "access.log"))
	c := &caddytest.Caddy{File: filepath.Join(dir, "Caddyfile"), Env: []string{"XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}}
	return []byte(c.RateLimit(t, "simulate", "--propose", "0.1%", "--format", "html", "access.log").Succeeds(t).Out)
}

// logged is a request of the generated log.
type logged struct {
	at          time.Time
	path        string
	client, key string
	status      int
}

// writeShopLog writes the log of a day, as Caddy writes it. Customers come and go by day. One customer's
// import is too fast at noon, and somebody tries passwords at night and in the evening.
func writeShopLog(t *testing.T, name string) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	begins := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	var all []logged
	address := func(n int) string { return fmt.Sprintf("192.0.%d.%d", 2+n/250, 1+n%250) }
	peak := func(hour, at, width float64) float64 { return math.Exp(-(hour - at) * (hour - at) / width) }
	// visits begin in one minute. Each makes some requests, with pauses of so many seconds between them.
	visits := func(minute int, number float64, most int, pause float64, r func(visitor int) logged) {
		for at := random.ExpFloat64() / number; at < 1; at += random.ExpFloat64() / number {
			second := (float64(minute) + at) * 60
			visitor := int(2400 * math.Pow(random.Float64(), 2)) // some are more active
			for range 1 + int(float64(most)*math.Pow(random.Float64(), 3)) {
				l := r(visitor)
				l.at = begins.Add(time.Duration(second * float64(time.Second)))
				if second < 86400 {
					all = append(all, l)
				}
				second += random.ExpFloat64() * pause
			}
		}
	}
	for minute := range 24 * 60 {
		hour := float64(minute) / 60
		day := 0.06 + peak(hour, 11, 9) + 0.8*peak(hour, 16.5, 7)
		visits(minute, 9*day, 40, 0.12, func(v int) logged {
			return logged{path: []string{"/api/products", "/api/products", "/api/cart"}[random.IntN(3)], client: address(v), key: fmt.Sprintf("customer-%d", v), status: 200}
		})
		visits(minute, 5*day, 60, 3, func(v int) logged { return logged{path: "/search", client: address(v), status: 200} })
		visits(minute, 7*day, 6, 8, func(v int) logged {
			return logged{path: "/login", client: address(v), status: []int{302, 302, 302, 401}[random.IntN(4)]}
		})
		visits(minute, 8*day, 3, 10, func(v int) logged { return logged{path: "/", client: address(v), status: 200} })
		if math.Abs(hour-11.5) < 0.4 && minute%3 == 0 { // an import: 60 requests in a second
			for i := range 180 {
				all = append(all, logged{begins.Add(time.Duration(minute)*time.Minute + time.Duration(i)*time.Second/60), "/api/import", "198.51.100.40", "customer-77", 200})
			}
		}
		for i := range 14 { // passwords are tried from several addresses, of which some are faster
			rate := (55*peak(hour, 20.5, 0.3) + 40*peak(hour, 3.2, 0.03)) / float64(i+1)
			if rate > 0.05 {
				visits(minute, rate, 1, 0, func(int) logged {
					return logged{path: "/login", client: fmt.Sprintf("203.0.113.%d", 9+i*13), status: 401}
				})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b logged) int { return a.at.Compare(b.at) })
	file, err := os.Create(name)
	errtest.None(t, err)
	w := bufio.NewWriter(file)
	for _, l := range all {
		headers := ""
		if l.key != "" {
			headers = fmt.Sprintf(`"X-Api-Key":[%q]`, l.key)
		}
		fmt.Fprintf(w, `{"level":"info","ts":%.6f,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":%q,"remote_port":"40112","client_ip":%q,"proto":"HTTP/2.0","method":"GET","host":"shop.example.com","uri":%q,"headers":{%s},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"shop.example.com"}},"bytes_read":0,"user_id":"","duration":0.002,"size":2,"status":%d,"resp_headers":{}}`+"\n",
			float64(l.at.UnixMicro())/1e6+0.002, l.client, l.client, l.path, headers, l.status)
	}
	errtest.None(t, w.Flush())
	errtest.None(t, file.Close())
}
