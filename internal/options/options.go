// Package options reads the values and blocks of a Caddyfile, and strict JSON. Each error has the
// correction. It never knows what an option does: the caller passes the names of options.
package options

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// This file has a reader for each kind of value in a Caddyfile. Errors name the option, the value
// and an example. No error text of the module holds < > or &, because Caddy's admin API sends errors
// as JSON, where < becomes \u003c.

// Value reads the one value of an option.
func Value(d *caddyfile.Dispenser, example string) (string, error) {
	option := d.Val()
	args := d.RemainingArgs()
	if len(args) == 0 {
		return "", fmt.Errorf("%s has no value: write for example %[1]s %s", option, example)
	}
	if len(args) > 1 {
		return "", fmt.Errorf("%s takes one value, not %q: write for example %[1]s %[3]s", option, strings.Join(args, " "), example)
	}
	return args[0], nil
}

// Secret reads the one value of an option like [Value], but its errors don't show the value.
func Secret(d *caddyfile.Dispenser, example string) (string, error) {
	option := d.Val()
	if n := d.CountRemainingArgs(); n > 1 {
		return "", fmt.Errorf("%s takes one value, not %d (not shown, because it is a secret): "+
			"write quotes around a value with spaces, or for example %[1]s %[3]s", option, n, example)
	}
	return Value(d, example)
}

// NoValue returns an error if an option without a value has one.
func NoValue(d *caddyfile.Dispenser) error {
	option := d.Val()
	if d.NextArg() {
		correction := ": write it alone, or leave it out"
		switch d.Val() {
		case "on":
			correction = ": write " + option
		case "off":
			correction = ": leave it out"
		}
		return fmt.Errorf("%s takes no value, not %q%s", option, d.Val(), correction)
	}
	return nil
}

// OnOff reads an option that is true without a value, and false with the value off.
func OnOff(d *caddyfile.Dispenser) (*bool, error) {
	option := d.Val()
	args := d.RemainingArgs()
	if len(args) > 1 || len(args) == 1 && args[0] != "off" {
		return nil, fmt.Errorf("%s takes nothing or off, not %q", option, strings.Join(args, " "))
	}
	on := len(args) == 0
	return &on, nil
}

// parseValue reads the one value of an option, and returns what parse makes of it.
func parseValue[T any](d *caddyfile.Dispenser, example string, parse func(what, text, example string) (T, error)) (v T, err error) {
	option := d.Val()
	text, err := Value(d, example)
	if err != nil {
		return v, err
	}
	return parse(option, text, example)
}

// Integer reads a whole number.
func Integer(d *caddyfile.Dispenser, example string) (int64, error) {
	return parseValue(d, example, ParseInteger)
}

// Positive reads a number above 0, as read does.
func Positive[T int64 | float64](read func(*caddyfile.Dispenser, string) (T, error), d *caddyfile.Dispenser, example string) (T, error) {
	option := d.Val()
	n, err := read(d, example)
	if err == nil && n <= 0 {
		return 0, fmt.Errorf("%s must be above 0, not %v: write for example %s %s", option, n, option, example)
	}
	return n, err
}

// SmallInteger reads a whole number of up to 32 bits.
func SmallInteger(d *caddyfile.Dispenser, example string) (int, error) {
	option := d.Val()
	n, err := Integer(d, example)
	if err == nil && n != int64(int32(n)) {
		return 0, fmt.Errorf("%s is out of range with %d: write for example %s", option, n, example)
	}
	return int(n), err
}

// Duration reads a duration.
func Duration(d *caddyfile.Dispenser, example string) (caddy.Duration, error) {
	return parseValue(d, example, ParseDuration)
}

// PositiveDuration reads a duration above 0.
func PositiveDuration(d *caddyfile.Dispenser, example string) (caddy.Duration, error) {
	option := d.Val()
	n, err := Duration(d, example)
	if err == nil && n <= 0 {
		return 0, fmt.Errorf("%s must be above 0, not %v: write for example %s", option, time.Duration(n), example)
	}
	return n, err
}

// Fraction reads a number that can have decimals.
func Fraction(d *caddyfile.Dispenser, example string) (float64, error) {
	return parseValue(d, example, parseFraction)
}

func parseFraction(what, text, example string) (float64, error) {
	n, err := ParseNumber(text)
	if percent, ok := strings.CutSuffix(text, "%"); ok && IsInteger(percent) {
		n, _ := strconv.ParseFloat(percent, 64)
		if strings.HasPrefix(example, "0.") { // the option takes a fraction
			n /= 100
		}
		return 0, fmt.Errorf("%s must be a number without a percent sign, not %q: write %v", what, text, n)
	}
	if err != nil {
		return 0, fmt.Errorf("%s must be a number, not %q: write for example %s", what, text, example)
	}
	return n, nil
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

// ParseInteger returns the whole number in a text. what names it in errors.
func ParseInteger(what, text, example string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s is out of range with %.40s: write for example %s", what, text, example)
	}
	if err != nil {
		if events, window, ok := ReadRate(text); ok {
			return 0, fmt.Errorf("%s must be a whole number, not %q: write %s, and the window, %s, by itself", what, text, events, window)
		}
		if meant, ok := meantInteger(text); ok {
			return 0, fmt.Errorf("%s must be a whole number in digits alone, not %q: write %d", what, text, meant)
		}
		return 0, fmt.Errorf("%s must be a whole number, not %q: write for example %s", what, text, example)
	}
	return n, nil
}

// ParseDuration returns the duration in a text. what names it in errors.
func ParseDuration(what, text, example string) (caddy.Duration, error) {
	n, err := caddy.ParseDuration(text)
	if err != nil {
		withUnit := text
		if IsInteger(text) && strings.HasSuffix(example, "ms") {
			withUnit += "ms"
		}
		if meant, ok := meantDuration(withUnit); ok {
			return 0, fmt.Errorf("%s must be a duration with a unit of ns, us, ms, s, m, h or d, not %q: write %s", what, text, meant)
		}
		return 0, fmt.Errorf("%s must be a duration with a unit of ns, us, ms, s, m, h or d, not %q: write for example %s", what, text, example)
	}
	return caddy.Duration(n), nil
}

// MicrosExample returns a duration in whole microseconds, as an example for errors about d.
func MicrosExample(d time.Duration) string {
	return max(d.Truncate(time.Microsecond), time.Microsecond).String()
}
