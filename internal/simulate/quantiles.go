package simulate

import (
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// rank returns the index of a percentile among n sorted values. At least that percentage of the values is
// at most the percentile.
func rank(percent, n int64) int64 { return (percent*n+99)/100 - 1 }

// quantilesOf returns the exact quantiles of values, which it sorts. There must be a value.
func quantilesOf(values []int64) report.Quantiles {
	slices.Sort(values)
	at := func(percent int64) float64 { return float64(values[rank(percent, int64(len(values)))]) }
	return report.Quantiles{P50: at(50), P95: at(95), P99: at(99), Max: at(100)}
}

// histogramOf counts sorted values in steps of the shape 1, 2, 5. The steps go from 1, or 0 if there is
// such a value, to the largest value.
func histogramOf(sorted []int64) []report.Step {
	var steps []report.Step
	for upTo := int64(0); len(sorted) > 0; upTo = nextStep(upTo) {
		n := int64(0)
		for int(n) < len(sorted) && sorted[n] <= upTo {
			n++
		}
		if sorted = sorted[n:]; upTo > 0 || n > 0 {
			steps = append(steps, report.Step{UpTo: upTo, Keys: n})
		}
	}
	return steps
}

// nextStep returns the step after 0, 1, 2, 5, 10, 20, 50 and so on.
func nextStep(step int64) int64 {
	leading := step
	for leading >= 10 {
		leading /= 10
	}
	switch {
	case step == 0:
		return 1
	case step > math.MaxInt64/5*2:
		return math.MaxInt64
	case leading == 2:
		return step / 2 * 5
	default:
		return step * 2
	}
}

// delays counts spans of time, in bounded memory. Spans below 512 µs are exact. A longer span counts as the
// longest span with the same 9 leading bits, which is at most 0.4 % too long.
type delays struct {
	counts map[algorithms.Micros]int64
	n      int64
	max    algorithms.Micros
}

// delayBits is the number of leading bits that delays keeps.
const delayBits = 9

func (d *delays) add(delay algorithms.Micros) {
	if d.counts == nil {
		d.counts = make(map[algorithms.Micros]int64)
	}
	d.max = max(d.max, delay)
	if rest := bits.Len64(uint64(delay)) - delayBits; rest > 0 {
		delay |= 1<<rest - 1
	}
	d.counts[delay]++
	d.n++
}

// report returns the quantiles in seconds, or nil if there was no delay.
func (d *delays) report() *report.Quantiles {
	if d.n == 0 {
		return nil
	}
	sorted := slices.Sorted(maps.Keys(d.counts))
	at := func(percent int64) float64 {
		below := rank(percent, d.n)
		for _, delay := range sorted {
			if below -= d.counts[delay]; below < 0 {
				return seconds(min(delay, d.max))
			}
		}
		return seconds(d.max)
	}
	return &report.Quantiles{P50: at(50), P95: at(95), P99: at(99), Max: seconds(d.max)}
}

func seconds(span algorithms.Micros) float64 { return float64(span) / 1e6 }
