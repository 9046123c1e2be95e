package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// Number is a number, or a text with placeholders that becomes a number for each request. In JSON it
// is a number or a string.
type Number string

// UnmarshalJSON implements [json.Unmarshaler].
func (n *Number) UnmarshalJSON(data []byte) error {
	var number json.Number
	if len(data) > 0 && data[0] != '"' && json.Unmarshal(data, &number) == nil {
		*n = Number(number)
		return nil
	}
	var text string
	if json.Unmarshal(data, &text) != nil {
		return fmt.Errorf("must be a number or a string with placeholders, not %.100s", data)
	}
	*n = Number(text)
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (n Number) MarshalJSON() ([]byte, error) {
	if _, err := strconv.ParseFloat(string(n), 64); err == nil && json.Valid([]byte(n)) {
		return []byte(n), nil
	}
	return json.Marshal(string(n))
}

// varies reports whether the number depends on the request.
func (n Number) varies() bool { return strings.Contains(string(n), "{") }

// check checks the value of an option. A number that varies is only checked for matching braces.
func (n Number) check(option string, parse func(string) (int64, error)) error {
	if n == "" || n.varies() {
		return checkBraces(option, string(n))
	}
	if _, short := expandShorthand(string(n)); short || strings.HasPrefix(string(n), "http.") {
		return fmt.Errorf("%s %q is the name of a placeholder without its braces: write {%[2]s}", option, string(n))
	}
	_, err := parse(string(n))
	if f, _ := strconv.ParseFloat(string(n), 64); err == nil && math.IsInf(f, 0) {
		err = fmt.Errorf("%w, not %q", errNumber, n)
	}
	if err != nil {
		return fmt.Errorf("%s %w: write for example 2, or a placeholder in braces", option, err)
	}
	return nil
}

// evaluate returns the number for a request. If a placeholder gives no valid number, parse returns
// a default beside its error. Then evaluate returns this default, and logs a warning once per zone. If
// warned is nil, it logs nothing.
func (n Number) evaluate(repl *caddy.Replacer, option string, parse func(string) (int64, error), z *zone, warned *atomic.Bool) int64 {
	value, err := parse(repl.ReplaceAll(string(n), ""))
	if err != nil && warned != nil && !warned.Swap(true) {
		z.logger.Warn("a "+option+" is not a number from 0: it counts as 1 for such requests (logged once per zone)",
			zap.String("zone", z.name), zap.String(option, string(n)))
	}
	return value
}

var errNumber = errors.New("must be a number from 0 or a placeholder")

// parseNumber reads a number from 0, with or without a fraction. It returns the number in units of
// 1/scale, rounded by round, but at most maximum. With an error it returns scale, which is the
// number 1.
func parseNumber(text string, scale, maximum float64, round func(float64) float64) (int64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if math.IsInf(n, 1) { // also for numbers too large to be parsed
		return int64(maximum), nil
	}
	if err != nil || math.IsNaN(n) || math.Signbit(n) {
		return int64(scale), fmt.Errorf("%w, not %q", errNumber, text)
	}
	return int64(min(round(n*scale), maximum)), nil
}

// maxCost is the largest cost of a request. Larger numbers count as maxCost.
const maxCost = math.MaxInt32

// parseCost reads the cost of a request, in events. Fractions are rounded up.
func parseCost(text string) (int64, error) { return parseNumber(text, 1, maxCost, math.Ceil) }

// unitFactor is the factor 1, in millionths. Bursts divided by it stay the same.
const unitFactor = 1_000_000

// parseFactor returns a factor in millionths. The factor 0 means that nothing is charged. A factor
// above 0 is rounded to at least 1 millionth.
func parseFactor(text string) (int64, error) {
	const maxFactor = 1 << 50
	n, err := parseNumber(text, unitFactor, maxFactor, math.Round)
	if err == nil && n == 0 {
		n, err = parseNumber(text, unitFactor, maxFactor, math.Ceil)
	}
	return n, err
}
