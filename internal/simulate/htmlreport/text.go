package htmlreport

import (
	"html/template"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// The page writes numbers as the text does.
var (
	number  = report.Number
	count   = report.Counted
	share   = report.Percent
	shareOf = report.PercentOf
	span    = report.Window
)

// short writes an integer in about four characters, such as 1.5M.
func short(n int64) string {
	if n < 10_000 {
		return number(n)
	}
	return strings.ReplaceAll(humanize.SIWithDigits(float64(n), 1, ""), " ", "")
}

// instant writes a time in UTC, with fractions of a second only if asked for.
func instant(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05") }

// plain returns a text without characters that can't be seen, or that change the direction of the text.
func plain(text string) string { return terminal.Printable(text) }

// shown returns a text as HTML. It is safe for every text, and isolates its direction.
func shown(text string) template.HTML {
	return template.HTML("<bdi>" + template.HTMLEscapeString(plain(text)) + "</bdi>")
}

// lines returns the lines of a Caddyfile as HTML.
func lines(text string) template.HTML {
	var all []string
	for line := range strings.Lines(strings.ReplaceAll(text, "\t", "    ")) {
		all = append(all, string(shown(strings.TrimSuffix(line, "\n"))))
	}
	return template.HTML(strings.Join(all, "\n"))
}
