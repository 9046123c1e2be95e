package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// This file has a reader for each kind of value in a Caddyfile. Errors name the option, the value
// and an example.

// value reads the one value of an option.
func value(d *caddyfile.Dispenser, example string) (string, error) {
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

// secret reads the one value of an option like [value], but its errors don't show the value.
func secret(d *caddyfile.Dispenser, example string) (string, error) {
	option := d.Val()
	if n := d.CountRemainingArgs(); n > 1 {
		return "", fmt.Errorf("%s takes one value, not %d (not shown, because it is a secret): "+
			"write quotes around a value with spaces, or for example %[1]s %[3]s", option, n, example)
	}
	return value(d, example)
}

// noValue returns an error if an option without a value has one.
func noValue(d *caddyfile.Dispenser) error {
	option := d.Val()
	if d.NextArg() {
		return fmt.Errorf("%s takes no value, not %q", option, d.Val())
	}
	return nil
}

// matcherSet reads an option with request matchers, in a block or on one line.
func matcherSet(d *caddyfile.Dispenser, example string) (caddy.ModuleMap, error) {
	option := d.Val()
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if name, ok := unknownMatcherName(err); ok {
		return nil, noMatcherError(option, name)
	}
	if err != nil && strings.Contains(err.Error(), ", at "+d.File()+":") {
		return nil, positionedError{err} // Caddy's own matchers say where they are
	}
	if err != nil {
		return nil, err
	}
	for name, matcher := range set {
		if string(matcher) == "null" {
			return nil, fmt.Errorf("%s %s takes at least one value", option, name)
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("%s takes at least one matcher: write for example %s %s", option, option, example)
	}
	return set, nil
}

// onOff reads an option that is true without a value, and false with the value off.
func onOff(d *caddyfile.Dispenser) (*bool, error) {
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
	text, err := value(d, example)
	if err != nil {
		return v, err
	}
	return parse(option, text, example)
}

func integer(d *caddyfile.Dispenser, example string) (int64, error) {
	return parseValue(d, example, parseInteger)
}

// positive reads a number above 0, as read does.
func positive[T int64 | float64](read func(*caddyfile.Dispenser, string) (T, error), d *caddyfile.Dispenser, example string) (T, error) {
	option := d.Val()
	n, err := read(d, example)
	if err == nil && n <= 0 {
		return 0, fmt.Errorf("%s must be above 0, not %v: write for example %s %s", option, n, option, example)
	}
	return n, err
}

// number reads a number, or text with placeholders that give one.
func number(d *caddyfile.Dispenser, parse func(string) (int64, error)) (Number, error) {
	option := d.Val()
	text, err := value(d, "2")
	if err == nil && text == "" {
		err = fmt.Errorf("%s %w, not nothing", option, errNumber)
	}
	if err != nil {
		return "", err
	}
	return Number(text), Number(text).check(option, parse)
}

// smallInteger reads a whole number of up to 32 bits.
func smallInteger(d *caddyfile.Dispenser, example string) (int, error) {
	option := d.Val()
	n, err := integer(d, example)
	if err == nil && n != int64(int32(n)) {
		return 0, fmt.Errorf("%s is out of range with %d: write for example %s", option, n, example)
	}
	return int(n), err
}

func duration(d *caddyfile.Dispenser, example string) (caddy.Duration, error) {
	return parseValue(d, example, parseDuration)
}

func positiveDuration(d *caddyfile.Dispenser, example string) (caddy.Duration, error) {
	option := d.Val()
	n, err := duration(d, example)
	if err == nil && n <= 0 {
		return 0, fmt.Errorf("%s must be above 0, not %v: write for example %s", option, time.Duration(n), example)
	}
	return n, err
}

func fraction(d *caddyfile.Dispenser, example string) (float64, error) {
	return parseValue(d, example, parseFraction)
}

func parseFraction(what, text, example string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if percent, ok := strings.CutSuffix(text, "%"); ok && isInteger(percent) {
		n, _ := strconv.ParseFloat(percent, 64)
		if strings.HasPrefix(example, "0.") { // the option takes a fraction
			n /= 100
		}
		return 0, fmt.Errorf("%s must be a number without a percent sign, not %q: write %v", what, text, n)
	}
	if err != nil || math.IsNaN(n) {
		return 0, fmt.Errorf("%s must be a number, not %q: write for example %s", what, text, example)
	}
	return n, nil
}

func parseInteger(what, text, example string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s is out of range with %.40s: write for example %s", what, text, example)
	}
	if err != nil {
		if events, window, ok := readRate(text); ok {
			return 0, fmt.Errorf("%s must be a whole number, not %q: write %s, and the window, %s, by itself", what, text, events, window)
		}
		if meant, ok := meantInteger(text); ok {
			return 0, fmt.Errorf("%s must be a whole number in digits alone, not %q: write %d", what, text, meant)
		}
		return 0, fmt.Errorf("%s must be a whole number, not %q: write for example %s", what, text, example)
	}
	return n, nil
}

func parseDuration(what, text, example string) (caddy.Duration, error) {
	n, err := caddy.ParseDuration(text)
	if err != nil {
		withUnit := text
		if isInteger(text) && strings.HasSuffix(example, "ms") {
			withUnit += "ms"
		}
		if meant, ok := meantDuration(withUnit); ok {
			return 0, fmt.Errorf("%s must be a duration with a unit of ns, us, ms, s, m, h or d, not %q: write %s", what, text, meant)
		}
		return 0, fmt.Errorf("%s must be a duration with a unit of ns, us, ms, s, m, h or d, not %q: write for example %s", what, text, example)
	}
	return caddy.Duration(n), nil
}

// wholeMicros returns d truncated to whole microseconds, but at least 1µs. Errors suggest it.
func wholeMicros(d time.Duration) time.Duration {
	return max(d.Truncate(time.Microsecond), time.Microsecond)
}

// microsExample returns what an error suggests instead of d. A few nanoseconds are usually a JSON
// number that was meant as seconds.
func microsExample(d time.Duration) string {
	example := wholeMicros(d).String()
	if d > 0 && d < time.Microsecond {
		example += inNanoseconds
	}
	return example
}

// inNanoseconds ends an error about a few nanoseconds.
const inNanoseconds = " (in JSON, a number without a unit is nanoseconds)"
