package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// bar is the processor time of a request, in microseconds.
type bar struct {
	label        string
	caddy, redis float64
}

// plot draws the processor time of a request near Redis and in memory.
func plot(all []*part) []byte {
	var bars []bar
	for _, p := range all {
		for _, s := range p.setups {
			if p.name == "memory" || p.name == "redis" && s.name != bare {
				bars = append(bars, bar{s.name, micros(s.inCaddy, s.requests), inRedis(s)})
			}
		}
	}
	return draw("Processor time of a request, in microseconds", bars)
}

// draw draws a row for each bar: Caddy's part, then that of Redis.
func draw(title string, bars []bar) []byte {
	const left, width, right, top, row = 150, 440, 90, 60, 24
	most := 1.0
	for _, b := range bars {
		most = max(most, b.caddy+b.redis)
	}
	scale := width / most
	height := top + len(bars)*row + 30

	var b bytes.Buffer
	const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">` + "\n"
	fmt.Fprintf(&b, svg, left+width+right, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(title))
	b.WriteString("<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.end{text-anchor:end}.mid{text-anchor:middle}" +
		".caddy{fill:#1b5fc1}.redis{fill:#b7cdf0}.grid{stroke:#d8dee4}</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="6" fill="#fff"/>`+"\n", left+width+right, height)
	fmt.Fprintf(&b, `<text x="%d" y="22">%s</text>`+"\n", left, html.EscapeString(title))
	for i, kind := range []string{"caddy", "redis"} {
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="32" width="12" height="12"/>`, kind, left+i*90)
		fmt.Fprintf(&b, `<text x="%d" y="43">in %s</text>`+"\n", left+i*90+18, []string{"Caddy", "Redis"}[i])
	}
	gap := math.Pow(10, math.Floor(math.Log10(most)))
	if most/gap < 4 {
		gap /= 2
	}
	for at := 0.0; at <= most; at += gap {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/>`, left+at*scale, top, height-24)
		fmt.Fprintf(&b, `<text class="mid" x="%.1f" y="%d">%g</text>`+"\n", left+at*scale, height-8, at)
	}
	for i, bar := range bars {
		y := top + i*row
		fmt.Fprintf(&b, `<text class="end" x="%d" y="%d">%s</text>`, left-8, y+16, html.EscapeString(bar.label))
		fmt.Fprintf(&b, `<rect class="caddy" x="%d" y="%d" width="%.1f" height="%d"/>`, left, y+3, bar.caddy*scale, row-6)
		text := fmt.Sprintf("%.1f", bar.caddy)
		if bar.redis > 0 {
			fmt.Fprintf(&b, `<rect class="redis" x="%.1f" y="%d" width="%.1f" height="%d"/>`, left+bar.caddy*scale, y+3, bar.redis*scale, row-6)
			text += fmt.Sprintf(" + %.1f", bar.redis)
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", left+(bar.caddy+bar.redis)*scale+6, y+16, text)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
