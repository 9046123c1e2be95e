package command

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// printable returns a text that is safe on a terminal.
func printable(text string) string { return terminal.Printable(text) }

// quoteKey returns a key as it can be written in a command line. It is the key itself if no shell
// changes it. A printable key is in single quotes. Any other key is percent-encoded, with the flag
// for that.
func quoteKey(key string) string {
	switch {
	case key != "" && !strings.ContainsAny(key[:1], "-=~") && terminal.IsPrintable(key) && strings.IndexFunc(key, isSpecial) < 0:
		return key
	case terminal.IsPrintable(key) && !strings.HasPrefix(key, "-"):
		return "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
	}
	encoded := strings.ReplaceAll(url.QueryEscape(key), "+", "%20")
	if strings.HasPrefix(encoded, "-") {
		encoded = "%2D" + encoded[1:]
	}
	return "--encoded " + encoded
}

// quoteName returns the name of a zone, or a value of a plan, as it can be written in a command line
// if it is printable.
func quoteName(name string) string {
	if terminal.IsPrintable(name) && !strings.HasPrefix(name, "-") {
		return quoteKey(name)
	}
	return "'" + printable(name) + "'"
}

// isSpecial reports whether a character may mean something to a shell.
func isSpecial(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_./:@%+,=-", r)
}

// maxShown is how many characters of a key are shown.
const maxShown = 80

// shownKey returns a key as people see it. A long key is cut.
func shownKey(k adminapi.ShownKey) string {
	if k.Key == nil {
		return "hash " + printable(k.HashedKey)
	}
	key, err := url.PathUnescape(*k.Key)
	if err != nil {
		key = *k.Key
	}
	shown := quoteKey(key)
	long := ""
	if n := utf8.RuneCountInString(shown); n > maxShown {
		shown = string([]rune(shown)[:maxShown])
		long = fmt.Sprintf("… (%s bytes)", humanize.Comma(int64(len(key))))
	}
	if k.Cut {
		long = fmt.Sprintf("… (more than %s bytes)", humanize.Comma(int64(len(key))))
	}
	return shown + long
}

// span returns a span of time with at most two units, rounded up. So waiting that long is enough.
func span(seconds float64) string {
	if seconds <= 0 || math.IsNaN(seconds) {
		return "0s"
	}
	if ms := math.Ceil(seconds*1000 - 1e-6); ms < 1000 { // 0.057 * 1000 is a little more than 57
		return fmt.Sprintf("%.0fms", ms)
	}
	if seconds > 1e9 {
		return "over 30 years"
	}
	n := int64(math.Ceil(seconds))
	if n < 60 {
		return fmt.Sprintf("%ds", n)
	}
	if n < 3600 {
		return twoUnits(n, 60, "m", "s")
	}
	if n = (n + 59) / 60; n < 24*60 {
		return twoUnits(n, 60, "h", "m")
	}
	return twoUnits((n+59)/60, 24, "d", "h")
}

// twoUnits returns a number of small units as large and small ones.
func twoUnits(n, ratio int64, large, small string) string {
	if n%ratio == 0 {
		return fmt.Sprintf("%d%s", n/ratio, large)
	}
	return fmt.Sprintf("%d%s%d%s", n/ratio, large, n%ratio, small)
}

// since returns how long ago an instant was. Clocks can differ a little.
func since(now, then time.Time) string { return span(math.Floor(now.Sub(then).Seconds())) }

// instant returns an instant in local time, with the date unless it is today.
func instant(now, at time.Time) string {
	at = at.In(now.Location())
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format(time.TimeOnly)
	}
	return at.Format(time.DateTime)
}

// count returns a number with separators between thousands.
func count(n int64) string { return humanize.Comma(n) }

// rate returns a number per second.
func rate(perSecond float64) string {
	if perSecond >= 100 || perSecond == 0 {
		return humanize.Comma(int64(math.Round(perSecond)))
	}
	return strconv.FormatFloat(perSecond, 'f', 1, 64)
}
