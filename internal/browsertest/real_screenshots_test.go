//go:build real

package main

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

const pictures = "../../docs/status-page/"

// shopZones are the zones in the pictures.
const shopZones = `zone api {
	key {header.X-Api-Key}
	token_bucket 20 1s 40
	fixed_window 50000 1d
	plan {header.X-Plan} {
		gold {
			token_bucket 200 1s
		}
	}
	runtime_overrides
	override partner-shop unlimited
}
zone login {
	match path /login
	key {header.X-Client}
	gcra 30 1m 10
	ban 15m after 40
}
zone search {
	match path /search
	key {header.X-Client}
	sliding_window 600 1m
	concurrency 20
}
redis `

// The pictures of the page show a real run. TestScreenshotsAreSmall looks at them.
//
// Simulated: TestScreenshotsAreSmall.
func TestRealScreenshots(t *testing.T) {
	names := []string{"light.png", "dark.png", "phone.png"}
	if !*caddytest.Update {
		t.Skip("-update takes the pictures")
	}
	redis := redistest.Start(t)
	site := caddytest.Site(shopZones + redis.Addr)
	a, b := caddytest.Start(t, site), caddytest.Start(t, site)
	address := serve(t, a.Admin, b.Admin)
	views := []view{{width: 1280, height: 1000}, {width: 1280, height: 1000, dark: true}, {width: 390, height: 844, phone: true}}
	heights := []int{1352, 2640, 1980}
	var pages []*page
	for _, v := range views {
		pages = append(pages, open(t, address, v))
	}
	begin := time.Now()
	shop(t, a, begin, 1)
	shop(t, b, begin, 0.6)
	redistest.WaitFor(t, "half a minute of traffic", func() bool { return time.Since(begin) > 45*time.Second })
	for _, change := range [][2]string{
		{"zones/api/override?key=customer-7", `{"limits":["token_bucket 100 1s"],"ttl":"24h"}`},
		{"zones/login/ban?key=198.51.100.23", `{"duration":"2h"}`},
	} {
		a.Operate(t, 204, http.MethodPut, change[0], change[1])
	}
	redistest.WaitFor(t, "55 seconds of traffic", func() bool { return time.Since(begin) > 57*time.Second })
	for i, p := range pages {
		p.row("overrides", "customer-7")
		if i == 1 {
			p.click("[data-zone=login] .zone-name")
			p.row("bans", "198.51.100.23")
			p.fill("#explain-url", "http://"+a.Site+"/login")
			evaluate[bool](p, `(document.getElementById('explain-headers').value = 'X-Client: 203.0.113.9\nX-Api-Key: customer-3', true)`)
			p.click("#explain-send")
			p.wait("document.querySelector('.verdict')")
		}
		evaluate[bool](p, "(document.activeElement.blur(), document.querySelectorAll('.message').forEach((m) => m.remove()), scrollTo(0, 0), true)")
		shot, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
		errtest.None(t, err)
		errtest.None(t, os.MkdirAll(pictures, 0o755))
		errtest.None(t, os.WriteFile(pictures+names[i], smaller(t, shot, heights[i]), 0o644))
	}
}

// shop sends the traffic of a shop until the test ends: customers who come and go, and somebody who
// tries passwords.
func shop(t *testing.T, c *caddytest.Caddy, begin time.Time, share float64) {
	t.Helper()
	end := make(chan struct{})
	ended := make(chan struct{})
	t.Cleanup(func() { close(end); <-ended })
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		due := make(map[string]float64)
		send := func(rate float64, path string, fields ...string) {
			name := path + fmt.Sprint(fields)
			due[name] += rate * share / 10
			for ; due[name] >= 1; due[name]-- {
				c.Get(t, path, fields...)
			}
		}
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				s := now.Sub(begin).Seconds()
				wave := func(period, phase float64) float64 { return 0.5 + 0.5*math.Sin(2*math.Pi*s/period+phase) }
				for i := range 6 {
					send(3+9*wave(17+3*float64(i), float64(i)), "/", "X-Api-Key", fmt.Sprintf("customer-%d", i))
				}
				if s > 14 {
					send(18+22*wave(11, 2), "/", "X-Api-Key", "customer-7")
				}
				send(5*wave(30, 1), "/", "X-Api-Key", "partner-shop")
				for i := range 4 {
					send(0.3, "/login", "X-Client", fmt.Sprintf("192.0.2.%d", 10+i))
				}
				if s > 24 {
					send(4*wave(9, 0), "/login", "X-Client", "203.0.113.9")
					send(1.5, "/login", "X-Client", "198.51.100.23")
				}
				for i := range 3 {
					send(5*wave(13, float64(i)), "/search", "X-Client", fmt.Sprintf("192.0.2.%d", 10+i))
				}
			}
		}
	}()
}

// smaller cuts a picture, and encodes it with its 256 most frequent colors.
func smaller(t *testing.T, shot []byte, height int) []byte {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(shot))
	errtest.None(t, err)
	bounds := picture.Bounds()
	bounds.Max.Y = min(bounds.Max.Y, height)
	counts := make(map[color.RGBA]int)
	for y := range bounds.Max.Y {
		for x := range bounds.Max.X {
			counts[rounded(picture.At(x, y))]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int { return counts[b] - counts[a] })
	var palette color.Palette
	for _, c := range colors[:min(len(colors), 256)] {
		palette = append(palette, c)
	}
	small := image.NewPaletted(bounds, palette)
	nearest := make(map[color.RGBA]uint8)
	for y := range bounds.Max.Y {
		for x := range bounds.Max.X {
			c := rounded(picture.At(x, y))
			if _, known := nearest[c]; !known {
				nearest[c] = uint8(palette.Index(c))
			}
			small.SetColorIndex(x, y, nearest[c])
		}
	}
	var b bytes.Buffer
	errtest.None(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small))
	return b.Bytes()
}

// rounded returns a color with values that are multiples of 4.
func rounded(c color.Color) color.RGBA {
	r, g, b, _ := c.RGBA()
	value := func(v uint32) uint8 { return uint8(min(255, (v>>8+2)&^3)) }
	return color.RGBA{value(r), value(g), value(b), 255}
}
