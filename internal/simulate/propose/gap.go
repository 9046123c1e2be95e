package propose

import (
	"cmp"
	"math"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// gap is a range of limits that all deny the same number of keys.
type gap struct{ least, largest judged }

const (
	// leastGap is the least quotient of the largest and the least limit of a gap.
	leastGap = 2
	// mostGapKeys: a gap denies at most one in so many keys.
	mostGapKeys = 10
)

func (g *gap) ratio() float64 { return float64(g.largest.events) / float64(g.least.events) }

// widestGap returns the gap of a curve with the largest quotient. It returns nil if no gap is wide enough. A gap between
// two adjacent points of the curve is not found.
func (s *search) widestGap(current *judged, curve []judged) *report.Gap {
	if s.total.keys < fewKeys {
		return nil
	}
	runs := s.runsOf(curve)
	slices.SortStableFunc(runs, func(x, y run) int { return cmp.Compare(y.most(), x.most()) })
	var widest *gap
	for _, r := range runs {
		if widest != nil && r.most() <= widest.ratio() || r.most() < leastGap {
			break
		}
		if g := s.measureGap(r); g.ratio() >= leastGap && (widest == nil || g.ratio() > widest.ratio()) {
			widest = g
		}
	}
	if widest == nil {
		return nil
	}
	return s.reportGap(current, widest)
}

// run is neighboring points of a curve that deny equally many keys.
type run struct {
	before      *judged // nil if there is none
	first, last judged
	after       judged
}

// most returns the largest possible quotient of the gap around a run.
func (r *run) most() float64 {
	least := r.first.events
	if r.before != nil {
		least = r.before.events + 1
	}
	return float64(r.after.events-1) / float64(least)
}

// runsOf returns the runs that deny some keys, but few.
func (s *search) runsOf(curve []judged) (runs []run) {
	for from := 0; from < len(curve); {
		to := from
		for to+1 < len(curve) && curve[to+1].denied.keys == curve[from].denied.keys {
			to++
		}
		n := curve[from].denied.keys
		if n > 0 && n*mostGapKeys <= s.total.keys && to+1 < len(curve) {
			r := run{first: curve[from], last: curve[to], after: curve[to+1]}
			if from > 0 {
				r.before = &curve[from-1]
			}
			runs = append(runs, r)
		}
		from = to + 1
	}
	return runs
}

// measureGap returns the gap around a run.
func (s *search) measureGap(r run) *gap {
	g := &gap{least: r.first, largest: r.last}
	n := r.first.denied.keys
	if r.before != nil {
		_, least := s.narrow(*r.before, r.first, func(j judged) bool { return j.denied.keys <= n })
		g.least = *least
	}
	largest, _ := s.narrow(r.last, r.after, func(j judged) bool { return j.denied.keys < n })
	g.largest = *largest
	return g
}

// reportGap returns a gap with a limit in its middle.
func (s *search) reportGap(current *judged, g *gap) *report.Gap {
	r, ok := s.candidates.atMost(middleOf(g.least.events, g.largest.events))
	if !ok || r.events < g.least.events {
		r = g.least.candidate
	}
	middle := &s.judgeAll([]*candidate{r})[0]
	return &report.Gap{Least: *s.point(&g.least), Largest: *s.point(&g.largest), Middle: *s.point(middle), Change: *s.change(current, middle)}
}

// middleOf returns the geometric middle of two numbers, with one digit that is not 0 if this lies between them.
func middleOf(least, largest int64) int64 {
	middle := math.Sqrt(float64(least) * float64(largest))
	unit := math.Pow(10, math.Floor(math.Log10(middle)))
	if round := int64(math.Round(middle/unit) * unit); round >= least && round <= largest {
		return round
	}
	return int64(middle)
}
