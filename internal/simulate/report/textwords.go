package report

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// Number writes a number with separators between thousands.
func Number(n int64) string { return humanize.Comma(n) }

// Counted writes a number with its noun, whose plural has an s.
func Counted(n int64, noun string) string {
	return Number(n) + " " + oneOr(n, noun, noun+"s")
}

// verb writes a number with its noun and its verb.
func verb(n int64, noun, one, several string) string {
	return Counted(n, noun) + " " + oneOr(n, one, several)
}

// oneOr returns the word for one thing, or for several.
func oneOr(n int64, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// partOf writes a part of a whole.
func partOf(part, whole int64, noun string) string {
	return Number(part) + " of " + Counted(whole, noun)
}

// PercentOf writes a part of a whole as [Percent] does. Nothing of nothing is 0%.
func PercentOf(part, whole int64) string { return Percent(float64(part) / float64(max(whole, 1))) }

// Percent writes a share with two significant digits, or three above 99%. It writes 0% and 100% only for
// exactly these.
func Percent(share float64) string {
	p := share * 100
	switch {
	case p <= 0:
		return "0%"
	case p >= 100:
		return "100%"
	case p < 0.001:
		return "<0.001%"
	case p >= 99.9:
		return ">99.9%"
	case p >= 99:
		return strconv.FormatFloat(math.Floor(p*10)/10, 'f', -1, 64) + "%"
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(p, 'g', 2, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64) + "%"
}

// Span writes a span of time as a Caddyfile would.
func Span(microseconds int64) string {
	text := (time.Duration(microseconds) * time.Microsecond).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Window writes seconds as a Caddyfile would, such as 1m30s.
func Window(seconds float64) string { return Span(int64(math.Round(seconds * 1e6))) }

// short writes seconds with about three digits.
func short(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	unit := time.Microsecond
	for d >= 1000*unit && unit < time.Second {
		unit *= 10
	}
	return Span(d.Round(unit).Microseconds())
}

// instant writes a time in UTC, without the date if the log is of one day.
func (t *textReport) instant(at time.Time) string {
	if t.oneDay {
		return at.UTC().Format(time.TimeOnly)
	}
	return at.UTC().Format(time.DateTime)
}

// maxKeyColumns is how much of a key or of a client's address a text shows.
const maxKeyColumns = 80

// keyText writes a key, which clients choose.
func keyText(key string) string {
	if key == "" {
		return "''"
	}
	return cut(terminal.Printable(key), maxKeyColumns)
}

func zoneName(z *Zone) string {
	name := terminal.Printable(z.Name)
	if z.Shadow {
		name += " (shadow)"
	}
	return name
}

// more writes how many are not shown.
func more(n int64, noun string) string {
	if n <= 0 {
		return ""
	}
	return "and " + strings.Replace(Counted(n, noun), " ", " more ", 1) + "\n"
}

func titleIf(shown bool, title string) string {
	if shown {
		return title
	}
	return ""
}

func numberCell(n int64) terminal.Cell { return terminal.Plain(Number(n)) }

func percentCell(part, whole int64) terminal.Cell { return terminal.Plain(PercentOf(part, whole)) }

// redIf writes a number of denials.
func redIf(n int64) terminal.Cell { return colorIf(n, terminal.Red) }

// yellowIf writes a number of denials in shadow mode.
func yellowIf(n int64) terminal.Cell { return colorIf(n, terminal.Yellow) }

func colorIf(n int64, color string) terminal.Cell {
	if n == 0 {
		return terminal.Plain("0")
	}
	return terminal.Colored(Number(n), color)
}

// wrap breaks a text into lines. All lines but the first begin with the indent.
func (t *textReport) wrap(text, indent string) string {
	width := 100
	if t.Width > 0 {
		width = max(min(t.Width, width), 40)
	}
	width -= t.margin
	lead := text[:len(text)-len(strings.TrimLeft(text, " "))]
	line, lines := "", []string{}
	for _, word := range strings.Split(strings.TrimLeft(text, " "), " ") {
		switch {
		case line == "":
			line = lead + word
		case terminal.Columns(line)+1+terminal.Columns(word) > width:
			lines = append(lines, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	return strings.ReplaceAll(strings.Join(append(lines, line), "\n"), noBreak, " ")
}

// noBreak is a space at which wrap doesn't break a line. Printable texts don't have it.
const noBreak = "\u00a0"

// limitText writes a limit within a sentence.
func limitText(line string) string {
	return strings.ReplaceAll(terminal.Printable(OneLine(line)), " ", noBreak)
}

// fit cuts the lines of a table at the width of the terminal.
func (t *textReport) fit(table string) string {
	if t.Width == 0 {
		return table
	}
	var b strings.Builder
	for line := range strings.Lines(table) {
		b.WriteString(cut(strings.TrimSuffix(line, "\n"), t.Width-t.margin) + "\n")
	}
	return b.String()
}

// table writes a table.
func (t *textReport) table(table *terminal.Table) string { return t.fit(table.Text(t.style)) }

// cut cuts a text at a number of columns, and marks the end of a cut text. Colors take no columns.
func cut(text string, width int) string {
	var b strings.Builder
	n, color, colored := 0, false, false
	end := 0 // of the text before the mark
	for _, r := range text {
		switch {
		case r == '\x1b':
			color = true
		case !color:
			n += terminal.Columns(string(r))
		}
		if n > width {
			cut := b.String()[:end] + "…"
			if colored {
				cut += "\x1b[0m"
			}
			return cut
		}
		b.WriteRune(r)
		if color && r == 'm' {
			color, colored = false, true
		}
		if n < width {
			end = b.Len()
		}
	}
	return text
}
