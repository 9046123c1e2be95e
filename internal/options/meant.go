package options

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"
)

// This file finds out which number, duration or limit was probably meant by a text.

var (
	rateForm    = regexp.MustCompile(`^([0-9]+)(?:r|req|requests)?/([0-9]*)([a-zA-Z]+)$`)
	spanForm    = regexp.MustCompile(`([0-9.]+)[ _-]?([a-zA-Zµ]*)`)
	groupedForm = regexp.MustCompile(`^[0-9]{1,3}([_,' ][0-9]{3})+$|^[0-9]+[kK;]$`) // 10_000, 10k, or 10; with a semicolon
	sizeForm    = regexp.MustCompile(`^[0-9.]+(?:[MG]|[kKMGT]i?B)$`)                // 1GB

	spanUnits = map[string]string{
		"": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
		"hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "msec": "ms", "millis": "ms", "milliseconds": "ms",
		"ms": "ms", "s": "s", "m": "m", "h": "h", "d": "d",
	}

	// daysOf has the units that Caddy doesn't know, in days.
	daysOf = map[string]int{"w": 7, "week": 7, "weeks": 7, "mo": 30, "month": 30, "months": 30}
)

// ReadRate reads events and window out of a text such as 10r/s.
func ReadRate(text string) (events, window string, ok bool) {
	parts := rateForm.FindStringSubmatch(text)
	if parts == nil {
		return "", "", false
	}
	window, ok = meantDuration(cmp.Or(parts[2], "1") + parts[3])
	return parts[1], window, ok
}

// meantDuration returns the duration that was probably meant by a text: 1m for 1min, and
// 60s for 60.
func meantDuration(text string) (span string, ok bool) {
	if len(text) > 40 {
		return "", false
	}
	last := ""
	span = spanForm.ReplaceAllStringFunc(strings.Trim(text, " ;"), func(part string) string {
		s := spanForm.FindStringSubmatch(part)
		unit := strings.ToLower(s[2])
		if unit == "" && last == "h" { // 1h30
			unit = "m"
		}
		if n, err := strconv.Atoi(s[1]); err == nil && daysOf[unit] > 0 {
			return strconv.Itoa(n*daysOf[unit]) + "d"
		}
		if short, ok := spanUnits[unit]; ok {
			unit = short
		}
		last = unit
		return s[1] + unit
	})
	d, err := caddy.ParseDuration(span)
	return span, err == nil && d > 0
}

// meantInteger returns the whole number that was probably meant by a text: 10000 for 10_000.
func meantInteger(text string) (n int64, ok bool) {
	if sizeForm.MatchString(text) {
		bytes, err := humanize.ParseBytes(text)
		return int64(min(bytes, math.MaxInt64)), err == nil
	}
	if !groupedForm.MatchString(text) {
		return 0, false
	}
	digits := strings.NewReplacer("_", "", ",", "", "'", "", " ", "", "k", "000", "K", "000", ";", "").Replace(text)
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}

// CheckLimitValues returns an error with the correction if the values of a limit can't be
// read but their meaning is clear. The limit takes up to maxValues values.
func CheckLimitValues(name string, args []string, maxValues int) error {
	if len(args) > 1 && isPositive(args[0]) && slices.Contains([]string{"day", "week", "month", "year"}, args[1]) {
		return fmt.Errorf("%s: window must be a duration, not %q: write calendar %s %[2]s", name, args[1], args[0])
	}
	meant := meantValues(args)
	isAsWritten := slices.Equal(meant, args)
	if len(meant) < 2 || isAsWritten && len(args) <= maxValues || !isPositive(meant[0]) {
		return nil
	}
	if window, err := caddy.ParseDuration(meant[1]); err != nil || window < time.Microsecond {
		return nil
	}
	if meant = meant[:min(len(meant), maxValues)]; len(meant) == 3 && !isPositive(meant[2]) { // as in 10/s 1s
		meant = meant[:2]
	}
	if isAsWritten {
		return fmt.Errorf("%s takes up to %d values, so %q is too many: write %[1]s %[4]s",
			name, maxValues, strings.Join(args[len(meant):], " "), strings.Join(meant, " "))
	}
	why := ""
	burst, err := strconv.Atoi(meant[len(meant)-1])
	if err == nil && len(meant) == 3 && name != "smooth" && strings.Contains(strings.Join(args, " "), "burst=") {
		meant[2], why = strconv.Itoa(burst+1), ", because the burst of nginx doesn't count the first request"
	}
	return fmt.Errorf("%s: %q is not how events and window are written: write %[1]s %[3]s%[4]s",
		name, strings.Join(args, " "), strings.Join(meant, " "), why)
}

var nginxZone = regexp.MustCompile(`^zone=|:[0-9]+[kmKM]$`)

// CheckZoneWords returns an error with the correction if a name of a zone is written as in nginx, or has a path.
func CheckZoneWords(words []string) error {
	if len(words) == 2 && strings.HasPrefix(words[1], "/") {
		return fmt.Errorf("zone takes a name and no path: write zone %s, and below it match path %s", words[0], words[1])
	}
	for _, word := range words {
		if bare := nginxZone.ReplaceAllString(word, ""); bare != word {
			return fmt.Errorf("%q is written as in nginx: write %s", word, bare)
		}
		if strings.HasPrefix(word, "burst=") || strings.HasPrefix(word, "rate=") {
			return fmt.Errorf("%q belongs in a limit of the zone: write for example gcra 10 1s 21", word)
		}
	}
	return nil
}

// meantValues returns the events, window and burst that were probably meant. For example, 10r/s
// burst=20 probably means 10 1s 20. Each of 10 per minute, 10 1 minute, and 1m 10 means 10 1m.
func meantValues(args []string) (meant []string) {
	for i, arg := range args {
		before := ""
		if i > 0 {
			before = args[i-1]
		}
		for _, name := range []string{"rate", "events", "window", "burst"} {
			arg = strings.TrimPrefix(arg, name+"=")
		}
		events, window, isRate := ReadRate(arg)
		isUnit := arg != "" && spanUnits[strings.ToLower(arg)] != ""
		switch span, _ := meantDuration(before + arg); {
		case isRate:
			meant = append(meant, events, window)
		case isUnit && IsInteger(before) && len(meant) > 1:
			meant[len(meant)-1] = span
		case isUnit && (before == "per" || before == "/"):
			span, _ = meantDuration("1" + arg)
			meant = append(meant, span)
		case arg == "per" || arg == "/" || arg == "rate" || arg == "burst" || arg == "nodelay":
		default:
			meant = append(meant, arg)
		}
	}
	if len(meant) >= 2 && IsInteger(meant[1]) && !IsInteger(meant[0]) {
		slices.Reverse(meant[:2])
	}
	return meant
}

func isPositive(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && n > 0
}

// IsInteger reports whether a text is a whole number in digits.
func IsInteger(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}
