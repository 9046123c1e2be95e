package accesslog

import (
	"bytes"
	"strconv"
	"time"
)

// layouts are the layouts of times that are texts. A layout needn't have a fraction of a second. The layouts of
// Caddy's encoders and of the combined format come first.
var layouts = []string{
	time.RFC3339,
	"2006-01-02T15:04:05Z0700", // iso8601
	"2006/01/02 15:04:05",      // wall, wall_milli and wall_nano
	"02/Jan/2006:15:04:05 -0700",
	time.DateTime,
	"2006-01-02 15:04:05 -0700",
}

// timeReader reads times. It remembers the layout of the last one, because a log has mostly one.
type timeReader struct{ last int }

// The times of requests are from earliest on and before latest: 1990 and 2100. A damaged line can have
// another time. A server without a clock can write one, too. One line with such a time would stretch the time
// of the whole log.
const (
	earliest = 631_152_000_000_000
	latest   = 4_102_444_800_000_000
)

func isPlausible(instant int64) bool { return earliest <= instant && instant < latest }

// read returns the time in a text, in microseconds since the Unix epoch. Other times than those of requests have no
// meaning.
func (t *timeReader) read(text []byte) (int64, bool) {
	if len(text) == 0 || len(text) > 64 {
		return 0, false
	}
	if instant, ok := unixTime(text); ok {
		return instant, true
	}
	if instant, ok := readLayout(text, layouts[t.last]); ok {
		return instant, true
	}
	for i, layout := range layouts {
		if instant, ok := readLayout(text, layout); ok {
			t.last = i
			return instant, true
		}
	}
	return 0, false
}

// readLayout returns the time in a text with a layout. It is UTC if the layout has no zone.
func readLayout(text []byte, layout string) (int64, bool) {
	instant, err := time.Parse(layout, textOf(text))
	if err != nil {
		return 0, false
	}
	micros := instant.Round(time.Microsecond).UnixMicro()
	return micros, isPlausible(micros)
}

// unixTime returns the time in a number. The number of its digits tells its unit, because logs have times between
// 1973 and 2286.
func unixTime(text []byte) (int64, bool) {
	text = withoutExponent(text)
	digits := 0
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		digits++
	}
	unit := time.Nanosecond
	switch {
	case digits <= 11:
		unit = time.Second
	case digits <= 14:
		unit = time.Millisecond
	case digits <= 17:
		unit = time.Microsecond
	}
	instant, ok := microseconds(text, unit)
	return instant, ok && isPlausible(instant)
}

// maxNanoseconds bounds times and durations to 285 years, so that sums and differences of two don't overflow.
const maxNanoseconds = 1 << 63 / 1024 * 1000

// microseconds returns a number of units that is not negative, rounded to microseconds.
func microseconds(text []byte, unit time.Duration) (int64, bool) {
	whole, fraction, _ := bytes.Cut(withoutExponent(text), []byte("."))
	n, ok := digits(whole)
	if !ok || len(whole) == 0 || n > maxNanoseconds/int64(unit) {
		return 0, false
	}
	billionths, ok := digits(fraction[:min(len(fraction), 9)])
	if !ok {
		return 0, false
	}
	for i := len(fraction); i < 9; i++ {
		billionths *= 10
	}
	return (n*int64(unit) + billionths*int64(unit)/1e9 + 500) / 1000, true
}

// digits returns the value of at most 19 digits.
func digits(text []byte) (n int64, ok bool) {
	if len(text) > 19 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || '9' < c {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n >= 0 // 19 digits can overflow
}

// withoutExponent returns a number without an exponent, which tools other than Caddy write. Another text is returned
// as it is.
func withoutExponent(text []byte) []byte {
	if len(text) == 0 || text[0] < '0' || '9' < text[0] || bytes.IndexByte(text, 'e') < 0 {
		return text
	}
	n, err := strconv.ParseFloat(textOf(text), 64)
	if err != nil || n > 1e19 {
		return text
	}
	return strconv.AppendFloat(nil, n, 'f', -1, 64)
}
