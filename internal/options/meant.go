package options

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"
)

// kind is a kind of values, in a Caddyfile and in JSON.
type kind struct {
	name    string
	example string                   // in JSON
	meant   func(text string) string // returns the value that was probably meant by a text, or ""
}

var (
	wholeNumber = kind{"a whole number", "10", meantInteger}
	number      = kind{"a number", "2.5", meantNumber}
	duration    = kind{"a duration with a unit of ns, us, ms, s, m, h or d", `"1m"`, meantDuration}
)

// wrong returns the error for a value of another kind. shown is the value as the error shows it.
func (k kind) wrong(shown, text string) mustError {
	return mustError{"must be " + k.name + ", not " + shown[:min(len(shown), 100)], k.meant(text)}
}

// units has the units of durations by their other spellings.
var units = map[string]string{
	"": "s", "sec": "s", "second": "s", "min": "m", "minute": "m", "hr": "h", "hour": "h", "day": "d", "msec": "ms", "millisecond": "ms",
}

// days has the units that Caddy doesn't know, in days.
var days = map[string]int{"w": 7, "week": 7, "mo": 30, "month": 30, "year": 365}

var (
	spanForm    = regexp.MustCompile(`^([0-9.]+)[ _-]?([a-zA-Z]*?)s?;?$`)
	integerForm = regexp.MustCompile(`^[0-9]+([_,'][0-9]{3})*([kKMG]i?B?)?;?$`) // 10_000, 10k, 64KiB, or 10; with a semicolon
	limitForm   = regexp.MustCompile(`^(?:rate=|events=)?([0-9][0-9_,']*[kK]?) ?(?:r|req|requests)?(?: ?/ ?| per | window=| )` +
		`([0-9]* ?[a-zA-Z]*)(?: (burst[= ])?([0-9]+))?(?: nodelay)?;?$`)
)

// meantDuration returns 1m for 1min, and 60s for 60.
func meantDuration(text string) string {
	span := spanForm.FindStringSubmatch(text)
	if span == nil {
		return ""
	}
	digits, unit := span[1], strings.ToLower(span[2])
	if short, ok := units[unit]; ok {
		unit = short
	}
	if n, err := strconv.Atoi(digits); err == nil && days[unit] > 0 {
		digits, unit = strconv.Itoa(days[unit]*n), "d"
	}
	if d, err := caddy.ParseDuration(digits + unit); err != nil || d <= 0 {
		return ""
	}
	return digits + unit
}

// meantInteger returns 10000 for 10_000 and 10k, and 65536 for 64KiB.
func meantInteger(text string) string {
	if !integerForm.MatchString(text) {
		return ""
	}
	n, err := humanize.ParseBytes(strings.NewReplacer("_", "", "'", "", ";", "").Replace(text))
	if err != nil {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// meantNumber returns a number, which JSON has in quotes.
func meantNumber(text string) string {
	if _, err := ParseNumber(text); err != nil {
		return ""
	}
	return text
}

// MeantLimit returns the events, window and burst that were probably meant by the values of a limit, or "". For
// example, 10r/s, 10 per second and 10 1sec mean 10 1s.
func MeantLimit(values string) (events, window, burst string) {
	parts := limitForm.FindStringSubmatch(values)
	if parts == nil {
		return "", "", ""
	}
	events, window, burst = meantInteger(parts[1]), parts[2], parts[4]
	if window != "" && (window[0] < '0' || window[0] > '9') { // 10 per second
		window = "1" + window
	}
	if n, err := strconv.Atoi(burst); err == nil && parts[3] == "burst=" { // nginx doesn't count the first request
		burst = strconv.Itoa(n + 1)
	}
	if window = meantDuration(strings.ReplaceAll(window, " ", "")); events == "" || events == "0" || window == "" {
		return "", "", ""
	}
	return events, window, burst
}

// ParseNumber returns the number in a text, such as -12.5 or 1.5e3. Texts that only Go reads as numbers, such as 1_000, 0x10
// and Infinity, are errors.
func ParseNumber(text string) (float64, error) {
	if strings.Trim(text, "+-.0123456789eE") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(text, 64)
}

// NumberJSON returns a text as JSON: without quotes if JSON has such a number, which has no 05, +5 or .5.
func NumberJSON(text string) ([]byte, error) {
	if _, err := ParseNumber(text); err == nil && json.Valid([]byte(text)) {
		return []byte(text), nil
	}
	return json.Marshal(text)
}
