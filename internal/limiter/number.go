package limiter

import (
	"errors"
	"fmt"
	"math"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// costOf returns the cost of a request in a zone, in events.
func (state *State) costOf(z *Zone, repl *caddy.Replacer) int64 {
	if z.Cost == nil {
		return z.FixedCost
	}
	events, known := z.Cost.Of(func(placeholder string) string { return repl.ReplaceAll(placeholder, "") })
	if !known && !state.Explained && !z.warnedOfCost.Swap(true) {
		z.Logger.Warn("no placeholder of a cost is a number from 0: such requests cost what the field number says (logged once per zone)",
			zap.String("zone", z.Name), zap.Stringer("cost", z.Cost), zap.Int64("number", events))
	}
	return events
}

// MaxChargedCost returns the maximum number of events that one request can charge to a limit of the zone.
func (z *Zone) MaxChargedCost() int64 {
	most := z.FixedCost
	if z.Cost != nil {
		most = z.Cost.Most()
	}
	if z.Settle != nil && z.Settle.Cost != nil {
		most = max(most, z.Settle.Cost.Most())
	}
	return most
}

// factorOf returns the divisor of the bursts for a request in a zone, in millionths.
func (state *State) factorOf(z *Zone, repl *caddy.Replacer) int64 {
	if z.Factor != "" {
		factor, err := ParseFactor(repl.ReplaceAll(z.Factor, ""))
		if err != nil && !state.Explained && !z.warnedOfFactor.Swap(true) {
			z.Logger.Warn("a factor is not a number from 0: it counts as 1 for such requests (logged once per zone)",
				zap.String("zone", z.Name), zap.String("factor", z.Factor))
		}
		return factor
	}
	return UnitFactor
}

// ErrNumber is the error of a text that is no number.
var ErrNumber = errors.New("must be a number from 0 or a placeholder")

// UnitFactor is the factor 1, in millionths. Bursts divided by it stay the same.
const UnitFactor = 1_000_000

// ParseFactor returns a factor in millionths. The factor 0 means that nothing is charged. A factor
// above 0 is rounded to at least 1 millionth. With an error the factor is 1.
func ParseFactor(text string) (int64, error) {
	const maxFactor = 1 << 50
	n, err := options.ParseNumber(text)
	if math.IsInf(n, 1) { // the number is too large to be parsed
		return maxFactor, nil
	}
	if err != nil || math.Signbit(n) {
		return UnitFactor, fmt.Errorf("%w, not %q", ErrNumber, text)
	}
	millionths := math.Round(n * UnitFactor)
	if n > 0 {
		millionths = max(millionths, 1)
	}
	return int64(min(millionths, maxFactor)), nil
}
