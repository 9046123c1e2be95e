package htmlreport

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAxisTicks(t *testing.T) {
	tests := []struct {
		low, high float64
		most      int
		log       bool
		want      []float64
	}{
		{1, 9, 8, false, []float64{2, 4, 6, 8}},
		{3, 8, 8, false, []float64{3, 4, 5, 6, 7, 8}},
		{20, 100, 8, false, []float64{20, 40, 60, 80, 100}},
		{95, 105, 4, false, []float64{95, 100, 105}},
		{7, 7, 4, false, []float64{6, 7, 8}},
		{5, 100, 8, true, []float64{5, 10, 20, 50, 100}},
		{1, 1000, 8, true, []float64{1, 3, 10, 30, 100, 300, 1000}},
		{2, 90_000_000, 8, true, []float64{10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000}},
		{1, 1e18, 8, true, []float64{1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18}},
	}
	for _, test := range tests {
		a := newAxis(test.low, test.high)
		if got := a.ticks(test.most); a.log != test.log || !slices.EqualFunc(got, test.want, func(a, b float64) bool { return math.Abs(a/b-1) < 1e-9 }) {
			t.Errorf("%v to %v: logarithmic %v, ticks %v, want %v, %v", test.low, test.high, a.log, got, test.log, test.want)
		}
	}
}

// On every axis larger numbers are further right, the ends are at the ends, and ticks are between them.
func TestAxisOrder(t *testing.T) {
	for low := 1.0; low < 1e12; low = math.Ceil(low * 3.7) {
		for high := low; high < 1e15; high = math.Ceil(high*5.3) + 1 {
			a := newAxis(low, high)
			if low < high && (a.position(low) != 0 || a.position(high) != 1) || low == high && a.position(low) != 0.5 {
				t.Errorf("%v to %v: the ends are at %v and %v", low, high, a.position(low), a.position(high))
			}
			ticks := a.ticks(8)
			if len(ticks) == 0 || len(ticks) > 8 || !slices.IsSorted(ticks) || ticks[0] < a.low || ticks[len(ticks)-1] > a.high {
				t.Errorf("%v to %v: ticks %v", low, high, ticks)
			}
			for i := 1; i < len(ticks); i++ {
				if a.position(ticks[i])-a.position(ticks[i-1]) < 0.05 {
					t.Errorf("%v to %v: ticks %v are too close", low, high, ticks)
				}
			}
		}
	}
	if a := newAxis(1, 100); a.position(10) != 0.5 || a.position(1000) != 1 || a.position(0.1) != 0 {
		t.Errorf("10, 1000 and 0.1 are at %v, %v and %v", a.position(10), a.position(1000), a.position(0.1))
	}
}

func TestCountTicks(t *testing.T) {
	for peak, want := range map[int64][]int64{
		0: {0, 1}, 1: {0, 1}, 3: {0, 1, 2, 3}, 7: {0, 2, 4, 6, 8}, 3640: {0, 1000, 2000, 3000, 4000}, 4000: {0, 1000, 2000, 3000, 4000}, 4001: {0, 2000, 4000, 6000},
	} {
		if got := countTicks(peak, 4); !slices.Equal(got, want) {
			t.Errorf("ticks of %d are %v, want %v", peak, got, want)
		}
	}
}

func TestShareAxis(t *testing.T) {
	tests := []struct {
		shares    []float64
		low, high int
	}{
		{nil, -2, 0},
		{[]float64{0, 0}, -2, 0},
		{[]float64{1, 1}, -1, 0},
		{[]float64{1, 0.5, 0.001, 0}, -3, 0},
		{[]float64{0.1, 0.01}, -2, -1},
		{[]float64{0.012, 1e-12}, -5, -1},
		{[]float64{1e-9}, -5, -4},
	}
	for _, test := range tests {
		a := newShareAxis(test.shares)
		if a.low != test.low || a.high != test.high {
			t.Errorf("the axis of %v is from 10^%d to 10^%d, want %d to %d", test.shares, a.low, a.high, test.low, test.high)
		}
		if a.position(0) != 0 || a.position(math.Pow(10, float64(a.high))) != 1 {
			t.Errorf("%v: the ends are at %v and %v", test.shares, a.position(0), a.position(math.Pow(10, float64(a.high))))
		}
		before := -1.0
		for _, tick := range a.ticks() {
			at := a.position(tick)
			if before >= 0 && math.Abs(at-before-1/float64(a.high-a.low+1)) > 1e-9 {
				t.Errorf("%v: the tick %v is %v above the one before", test.shares, tick, at-before)
			}
			before = at
		}
		for share := 1e-7; share < 0.9; share *= 1.3 {
			if a.position(share*1.3) < a.position(share) || a.position(share) < 0 || a.position(share) > 1 {
				t.Errorf("%v: %v is at %v, and %v at %v", test.shares, share, a.position(share), share*1.3, a.position(share*1.3))
			}
		}
	}
}

func TestTimeTicks(t *testing.T) {
	tests := []struct {
		from, to string
		want     string
	}{
		{"2026-11-20 00:00:00", "2026-11-21 00:00:00", "Nov 20, 03:00, 06:00, 09:00, 12:00, 15:00, 18:00, 21:00, Nov 21"},
		{"2026-11-20 13:07:30", "2026-11-20 13:08:00", "13:07:30, 13:07:35, 13:07:40, 13:07:45, 13:07:50, 13:07:55, 13:08:00"},
		{"2026-11-20 23:50:00", "2026-11-21 00:20:00", "23:50, 23:55, Nov 21, 00:05, 00:10, 00:15, 00:20"},
		{"2026-11-20 12:00:00", "2026-11-22 01:00:00", "12:00, 18:00, Nov 21, 06:00, 12:00, 18:00, Nov 22"},
		{"2026-11-18 12:00:00", "2026-12-20 01:00:00", "Nov 23, Nov 30, Dec 7, Dec 14"},
		{"2026-01-01 00:00:00", "2026-12-20 01:00:00", "2026-02-02, 2026-03-30, 2026-05-25, 2026-07-20, 2026-09-14, 2026-11-09"},
		{"2021-05-01 00:00:00", "2026-12-20 01:00:00", "2022-05-30, 2023-08-21, 2024-11-11, 2026-02-02"},
	}
	for _, test := range tests {
		from, _ := time.Parse(time.DateTime, test.from)
		to, _ := time.Parse(time.DateTime, test.to)
		var labels []string
		for _, tick := range timeTicks(from, to, 9) {
			labels = append(labels, tick.label)
			if tick.at.Before(from) || tick.at.After(to) {
				t.Errorf("%s to %s: a tick at %s", test.from, test.to, tick.at)
			}
		}
		if got := strings.Join(labels, ", "); got != test.want {
			t.Errorf("%s to %s: ticks\n%s, want\n%s", test.from, test.to, got, test.want)
		}
	}
	// There are some ticks, and not too many, for every span of whole buckets.
	from := time.Date(2026, 11, 20, 13, 7, 0, 0, time.UTC)
	for span := 20 * time.Millisecond; span < 200*365*day; span += span / 3 {
		if n := len(timeTicks(from, from.Add(span), 9)); n < 2 || n > 9 {
			t.Errorf("%v has %d ticks", span, n)
		}
	}
}

func TestStepArea(t *testing.T) {
	none := []int64{0, 0, 0, 0}
	for _, test := range []struct {
		lower, upper []int64
		want         string
	}{
		{none, none, ""},
		{none, []int64{5, 10, 0, 10}, "M0.0 1000.0V500.0H250.0V0.0H500.0V1000.0H250.0V1000.0H0.0ZM750.0 1000.0V0.0H1000.0V1000.0H750.0Z"},
		{[]int64{5, 10, 0, 2}, []int64{5, 10, 0, 4}, "M750.0 800.0V600.0H1000.0V800.0H750.0Z"},
	} {
		if got := stepArea(test.lower, test.upper, 10); got != test.want {
			t.Errorf("the area between %v and %v is %s, want %s", test.lower, test.upper, got, test.want)
		}
	}
}
