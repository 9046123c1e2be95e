package htmlreport

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// nbsp stands between a number and its unit, so that no line ends there.
const nbsp = "\u00a0"

// number writes an integer with thousands separators.
func number(n int64) string { return strings.Replace(humanize.Comma(n), "-", "−", 1) }

// short writes an integer in about four characters.
func short(n int64) string {
	v, unit := float64(n), ""
	for _, u := range []string{"k", "M", "G", "T"} {
		if v < 999.5 || n < 10_000 {
			break
		}
		v, unit = v/1000, u
	}
	switch {
	case unit == "":
		return number(n)
	case v < 9.95:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + unit
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + unit
}

// decimal writes a number with at most two digits after the point, and fewer if it is large.
func decimal(v float64) string {
	whole := int64(v)
	if v >= 100 || v == float64(whole) {
		return number(int64(v + 0.5))
	}
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(v, 'f', 2, 64), "0"), ".")
}

// share writes a fraction in percent, with two significant digits. It writes 0 % and 100 % only for
// exactly these.
func share(fraction float64) string {
	text := report.Percent(fraction)
	if p := fraction * 100; p > 99 && p <= 99.9 { // one digit after the point
		text = strings.TrimSuffix(strconv.FormatFloat(p, 'f', 1, 64), ".0") + "%"
	}
	return strings.Replace(text, "%", nbsp+"%", 1)
}

// shareOf writes a part of a whole in percent.
func shareOf(part, whole int64) string { return share(float64(part) / float64(max(whole, 1))) }

// count writes a number with its noun, whose plural has an s.
func count(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return number(n) + nbsp + noun
}

// span writes seconds with their two largest units.
func span(seconds float64) string {
	if seconds < 10 {
		if seconds > 0 && seconds < 0.9995 {
			return decimal(seconds*1000) + nbsp + "ms"
		}
		return decimal(seconds) + nbsp + "s"
	}
	rest := int64(seconds + 0.5)
	var parts []string
	for _, unit := range []struct {
		name    string
		seconds int64
	}{{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}} {
		if n := rest / unit.seconds; n > 0 {
			parts = append(parts, number(n)+nbsp+unit.name)
		} else if len(parts) > 0 {
			break
		}
		if len(parts) == 2 {
			break
		}
		rest %= unit.seconds
	}
	return strings.Join(parts, " ")
}

// instant writes a time in UTC, with fractions of a second only if asked for.
func instant(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05") }

// plain returns a text without characters that can't be seen, or that change the direction of the text.
// Their code points stand for them.
func plain(text string) string {
	var b strings.Builder
	eachRun(text, func(run string, isCodePoint bool) { b.WriteString(run) })
	return b.String()
}

// shown returns a text as HTML. It is safe for every text, and isolates its direction.
func shown(text string) template.HTML {
	var b strings.Builder
	b.WriteString("<bdi>")
	eachRun(text, func(run string, isCodePoint bool) {
		if isCodePoint {
			b.WriteString(`<span class="code-point">` + run + `</span>`)
		} else {
			b.WriteString(template.HTMLEscapeString(run))
		}
	})
	b.WriteString("</bdi>")
	return template.HTML(b.String())
}

// lines returns the lines of a Caddyfile as HTML.
func lines(text string) template.HTML {
	var all []string
	for line := range strings.Lines(strings.ReplaceAll(text, "\t", "    ")) {
		all = append(all, string(shown(strings.TrimSuffix(line, "\n"))))
	}
	return template.HTML(strings.Join(all, "\n"))
}

// eachRun calls yield with the printable parts of a text, and with the code points of all else.
func eachRun(text string, yield func(run string, isCodePoint bool)) {
	begin := 0
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		broken := r == utf8.RuneError && size == 1
		if !broken && unicode.IsPrint(r) {
			i += size
			continue
		}
		if begin < i {
			yield(text[begin:i], false)
		}
		if broken {
			yield(fmt.Sprintf("0x%02X", text[i]), true)
		} else {
			yield(fmt.Sprintf("U+%04X", r), true)
		}
		i += size
		begin = i
	}
	if begin < len(text) {
		yield(text[begin:], false)
	}
}
