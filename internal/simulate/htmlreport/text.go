package htmlreport

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// The page writes numbers as the text does.
var (
	number  = report.Number
	count   = report.Counted
	share   = report.Percent
	shareOf = report.PercentOf
	span    = report.Window
)

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
