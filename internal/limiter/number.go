package limiter

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// costOf returns the cost of a request in a zone, in events.
func (state *State) costOf(z *Zone, repl *caddy.Replacer) int64 {
	if z.Cost != "" {
		return z.evaluate(repl, "cost", z.Cost, ParseCost, state.unlessExplained(&z.warnedOfCost))
	}
	return z.FixedCost
}

// factorOf returns the divisor of the bursts for a request in a zone, in millionths.
func (state *State) factorOf(z *Zone, repl *caddy.Replacer) int64 {
	if z.Factor != "" {
		return z.evaluate(repl, "factor", z.Factor, ParseFactor, state.unlessExplained(&z.warnedOfFactor))
	}
	return UnitFactor
}

// unlessExplained returns warned, or nil if the request is only explained.
func (state *State) unlessExplained(warned *atomic.Bool) *atomic.Bool {
	if state.Explained {
		return nil
	}
	return warned
}

// evaluate expands the text of an option for a request, and returns it as a number. If the text is no valid number, parse
// returns a default beside its error. Then evaluate returns this default, and logs a warning once per zone. If
// warned is nil, it logs nothing.
func (z *Zone) evaluate(repl *caddy.Replacer, option, text string, parse func(string) (int64, error), warned *atomic.Bool) int64 {
	value, err := parse(repl.ReplaceAll(text, ""))
	if err != nil && warned != nil && !warned.Swap(true) {
		z.Logger.Warn("a "+option+" is not a number from 0: it counts as 1 for such requests (logged once per zone)",
			zap.String("zone", z.Name), zap.String(option, text))
	}
	return value
}

// ErrNumber is the error of a text that is no number.
var ErrNumber = errors.New("must be a number from 0 or a placeholder")

// parseNumber reads a number from 0, with or without a fraction. It returns the number in units of
// 1/scale, rounded by round, but at most maximum. With an error it returns scale, which is the
// number 1.
func parseNumber(text string, scale, maximum float64, round func(float64) float64) (int64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if math.IsInf(n, 1) { // also for numbers too large to be parsed
		return int64(maximum), nil
	}
	if err != nil || math.IsNaN(n) || math.Signbit(n) {
		return int64(scale), fmt.Errorf("%w, not %q", ErrNumber, text)
	}
	return int64(min(round(n*scale), maximum)), nil
}

// MaxCost is the largest cost of a request. Larger numbers count as MaxCost.
const MaxCost = math.MaxInt32

// ParseCost reads the cost of a request, in events. Fractions are rounded up.
func ParseCost(text string) (int64, error) { return parseNumber(text, 1, MaxCost, math.Ceil) }

// UnitFactor is the factor 1, in millionths. Bursts divided by it stay the same.
const UnitFactor = 1_000_000

// ParseFactor returns a factor in millionths. The factor 0 means that nothing is charged. A factor
// above 0 is rounded to at least 1 millionth.
func ParseFactor(text string) (int64, error) {
	const maxFactor = 1 << 50
	n, err := parseNumber(text, UnitFactor, maxFactor, math.Round)
	if err == nil && n == 0 {
		n, err = parseNumber(text, UnitFactor, maxFactor, math.Ceil)
	}
	return n, err
}
