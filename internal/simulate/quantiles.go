package simulate

import (
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

func seconds(span algorithms.Micros) float64 { return float64(span) / 1e6 }
