package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// The measures of a picture, in pixels. Colors and background are fixed, so a picture is the same on
// a light page and on a dark one. No meaning depends on color alone.
const (
	left, right  = 84, 24 // of the plot
	top          = 14     // above the caption
	lineHeight   = 18     // of the caption
	perSecond    = 34
	perEvent     = 16
	maxRemaining = 6
	rowHeight    = 22 // of passed, delayed and denied
	axisHeight   = 36
	legendHeight = 24

	width = left + int(end/second)*perSecond + right
)

const style = `<style>
text{font:12px system-ui,sans-serif;fill:#1f2328}
.code{font:14px ui-monospace,monospace}
.mid{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:#d8dee4;fill:none}
.area{fill:#dbe9ff}.level{stroke:#1b5fc1;stroke-width:1.5;fill:none}
.pass{fill:#116329}.held{fill:#fff;stroke:#116329;stroke-width:1.5}
.wait{stroke:#116329}.deny{stroke:#b3261e;stroke-width:2}
</style>
`

// render draws a picture. From above it has the caption and the remaining events over time. Then rows
// show the requests that passed, were delayed (if any can be), and were denied. The seconds and a legend
// of the marks follow.
func render(caption []string, answers []answer, levels []level, holds bool) []byte {
	floor := top + len(caption)*lineHeight + 12 + maxRemaining*perEvent // where 0 remain
	passed := floor + rowHeight
	held := passed
	if holds {
		held += rowHeight
	}
	denied := held + rowHeight
	axis := denied + rowHeight/2 + 4
	height := axis + axisHeight + legendHeight

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, "<title>What %s does with the same requests</title>\n%s", strings.Join(caption, " "), style)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="6" fill="#fff"/>`+"\n", width, height)
	for i, line := range caption {
		fmt.Fprintf(&b, `<text class="code" x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", left, top+(i+1)*lineHeight-4, line)
	}

	b.WriteString(`<path class="grid" d="`)
	for n := range maxRemaining + 1 {
		fmt.Fprintf(&b, "M%d %dH%d", left, floor-n*perEvent, width-right)
	}
	for s := range int(end/second) + 1 {
		fmt.Fprintf(&b, "M%d %dV%d", left+s*perSecond, floor, axis)
	}
	b.WriteString("\"/>\n")

	line := staircase(levels, floor)
	fmt.Fprintf(&b, `<path class="area" d="M%d %d%sV%dZ"/>`+"\n", left, floor, "V"+line, floor)
	fmt.Fprintf(&b, `<path class="level" d="M%d %s"/>`+"\n", left, line)

	for _, state := range answers {
		if !state.passed {
			cross(&b, x(state.arrived), denied)
			continue
		}
		if state.wait > 0 {
			fmt.Fprintf(&b, `<path class="wait" d="M%.1f %dL%.1f %d"/>`, x(state.arrived), held, x(state.arrived+state.wait), passed)
			hollow(&b, x(state.arrived), held)
		}
		dot(&b, x(state.arrived+state.wait), passed)
	}

	row := func(text string, y int) {
		fmt.Fprintf(&b, `<text class="end" x="%d" y="%d">%s</text>`+"\n", left-8, y+4, text)
	}
	for _, n := range []int{0, maxRemaining - 1} {
		row(fmt.Sprint(n), floor-n*perEvent)
	}
	row("remaining", floor-maxRemaining*perEvent/2+4)
	row("passed", passed)
	if holds {
		row("held", held)
	}
	row("denied", denied)
	for s := 0; s <= int(end/second); s += 2 {
		fmt.Fprintf(&b, `<text class="mid" x="%d" y="%d">%d s</text>`+"\n", left+s*perSecond, axis+14, s)
	}
	legend(&b, axis+axisHeight+4, holds)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// x returns the horizontal position of an instant.
func x(at algorithms.Micros) float64 {
	return left + float64(at)/float64(second)*perSecond
}

// staircase returns the line of the remaining events, from its first height on.
func staircase(levels []level, floor int) string {
	var b bytes.Buffer
	for i, l := range levels {
		y := floor - int(l.remaining)*perEvent
		if i == 0 {
			fmt.Fprint(&b, y)
		} else {
			fmt.Fprintf(&b, "H%.1fV%d", x(l.from), y)
		}
	}
	fmt.Fprintf(&b, "H%.1f", x(end))
	return b.String()
}

func legend(b *bytes.Buffer, y int, holds bool) {
	at := float64(left)
	entry := func(mark func(*bytes.Buffer, float64, int), text string) {
		mark(b, at+5, y)
		fmt.Fprintf(b, `<text x="%.0f" y="%d">%s</text>`+"\n", at+16, y+4, text)
		at += 36 + 6*float64(len(text))
	}
	entry(dot, "passes")
	if holds {
		entry(hollow, "arrives, and is held until the line ends")
	}
	entry(cross, "is denied")
	entry(func(b *bytes.Buffer, x float64, y int) {
		fmt.Fprintf(b, `<path class="level" d="M%.1f %dh6v-6h6"/>`, x-6, y+3)
	}, "how many more fit")
}

func dot(b *bytes.Buffer, x float64, y int) {
	fmt.Fprintf(b, `<circle class="pass" cx="%.1f" cy="%d" r="4"/>`+"\n", x, y)
}

func hollow(b *bytes.Buffer, x float64, y int) {
	fmt.Fprintf(b, `<circle class="held" cx="%.1f" cy="%d" r="3.5"/>`+"\n", x, y)
}

func cross(b *bytes.Buffer, x float64, y int) {
	fmt.Fprintf(b, `<path class="deny" d="M%.1f %dl7 7m0-7l-7 7"/>`+"\n", x-3.5, y-3)
}
