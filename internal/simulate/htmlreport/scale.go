package htmlreport

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// This file has the arithmetic of the plots, without HTML. A position is a fraction of an axis: 0 is
// the left or lower end, 1 the right or upper end.

// axis is a linear or logarithmic axis of numbers.
type axis struct {
	low, high float64
	log       bool
}

// newAxis returns an axis for positive numbers. It is logarithmic if the numbers span a factor of
// 10.
func newAxis(low, high float64) axis {
	if low == high { // a single number is in the middle
		return axis{low: low - 1, high: high + 1}
	}
	return axis{low: low, high: high, log: low > 0 && high/low >= 10}
}

// position returns where a number is. Numbers outside of the axis are at its ends.
func (a axis) position(v float64) float64 {
	if a.log {
		return within((math.Log(v) - math.Log(a.low)) / (math.Log(a.high) - math.Log(a.low)))
	}
	return within((v - a.low) / (a.high - a.low))
}

func within(p float64) float64 {
	return max(0, min(1, p))
}

// ticks returns whole round numbers on the axis, at most maxTicks.
func (a axis) ticks(maxTicks int) []float64 {
	if !a.log {
		for step := roundUp((a.high - a.low) / float64(maxTicks)); ; step = roundUp(step * 1.5) {
			var ticks []float64
			for v := math.Ceil(a.low/step) * step; v <= a.high && len(ticks) <= maxTicks; v += step {
				ticks = append(ticks, v)
			}
			if len(ticks) <= maxTicks {
				return ticks
			}
		}
	}
	first, last := math.Floor(math.Log10(a.low)), math.Floor(math.Log10(a.high))
	for _, leading := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		var ticks []float64
		for e := first; e <= last; e++ {
			for _, l := range leading {
				if v := l * math.Pow(10, e); v >= a.low && v <= a.high {
					ticks = append(ticks, v)
				}
			}
		}
		if len(ticks) <= maxTicks {
			return ticks
		}
	}
	var ticks []float64
	for e, every := first, math.Ceil((last-first+1)/float64(maxTicks)); e <= last; e += every {
		if v := math.Pow(10, e); v >= a.low {
			ticks = append(ticks, v)
		}
	}
	return ticks
}

// roundUp returns the least number of the shape 1, 2, 5, 10, 20, 50 and so on that is not below v.
func roundUp(v float64) float64 {
	step := 1.0
	for {
		for _, leading := range []float64{1, 2, 5} {
			if leading*step >= v {
				return leading * step
			}
		}
		step *= 10
	}
}

// countTicks returns the ticks of an axis that begins at 0 and has room for the peak. The last tick is
// the upper end of the axis.
func countTicks(peak int64, maxTicks int) []int64 {
	step := int64(roundUp(float64(peak) / float64(maxTicks)))
	ticks := []int64{0}
	for ticks[len(ticks)-1] < max(peak, 1) {
		ticks = append(ticks, ticks[len(ticks)-1]+step)
	}
	return ticks
}

// shareAxis is a logarithmic axis of shares, whose lower end is 0. The decades and the part for 0 have
// the same height.
type shareAxis struct {
	low, high int // powers of ten
}

// leastShare is the power of ten below which shares are drawn near 0.
const leastShare = -5

// newShareAxis returns an axis that has room for all shares, and shows the least that is not 0.
func newShareAxis(shares []float64) shareAxis {
	least, greatest := 1.0, 0.0
	for _, s := range shares {
		if s > 0 {
			least = min(least, s)
		}
		greatest = max(greatest, s)
	}
	a := shareAxis{-2, 0}
	if greatest > 0 {
		a.high = min(0, max(int(math.Ceil(math.Log10(greatest)-1e-9)), leastShare+1))
		a.low = min(a.high-1, max(int(math.Floor(math.Log10(least)+1e-9)), leastShare))
	}
	return a
}

func (a shareAxis) position(share float64) float64 {
	parts := float64(a.high - a.low + 1)
	if least := math.Pow(10, float64(a.low)); share < least {
		return within(share / least / parts)
	}
	return within((math.Log10(share) - float64(a.low) + 1) / parts)
}

// ticks returns 0 and the powers of ten.
func (a shareAxis) ticks() []float64 {
	ticks := []float64{0}
	for e := a.low; e <= a.high; e++ {
		ticks = append(ticks, math.Pow(10, float64(e)))
	}
	return ticks
}

// timeTick is a tick of an axis of time.
type timeTick struct {
	at    time.Time
	label string
}

// steps are the distances between ticks up to a day.
var steps = []time.Duration{
	10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	day, 2 * day, 7 * day, 14 * day,
}

const day = 24 * time.Hour

// timeTicks returns round instants in UTC, at most maxTicks. Midnight is labeled with its day.
func timeTicks(from, to time.Time, maxTicks int) (ticks []timeTick) {
	from, to = from.UTC(), to.UTC()
	step := steps[0]
	for i := 0; to.Sub(from)/step >= time.Duration(maxTicks); i++ {
		if step *= 2; i+1 < len(steps) {
			step = steps[i+1]
		}
	}
	at := from.Truncate(step) // weeks begin on Monday, as the zero time does
	if at.Before(from) {
		at = at.Add(step)
	}
	for ; !at.After(to); at = at.Add(step) {
		ticks = append(ticks, timeTick{at, clockLabel(at, step)})
	}
	return ticks
}

func clockLabel(at time.Time, step time.Duration) string {
	switch {
	case step > 7*day:
		return at.Format(time.DateOnly)
	case at.Equal(at.Truncate(day)):
		return at.Format("Jan 2")
	case step < time.Second:
		return at.Format("15:04:05.00")
	case step < time.Minute:
		return at.Format("15:04:05")
	}
	return at.Format("15:04")
}

// Paths are in a square of 1000 by 1000, whose origin is the upper left corner. The page stretches
// the square to the size of the plot.

const square = 1000

func coordinate(p float64) string {
	return strconv.FormatFloat(p*square, 'f', 1, 64)
}

func height(v, top float64) float64 { return 1 - within(v/top) }

// stepArea returns the area between two series, with a step for each of their values. Values that are the
// same in both have no area. The result is empty if no value has an area.
func stepArea(lower, upper []int64, top float64) string {
	var path strings.Builder
	n := float64(len(upper))
	for begin := 0; begin < len(upper); {
		if upper[begin] <= lower[begin] {
			begin++
			continue
		}
		end := begin
		for end < len(upper) && upper[end] > lower[end] {
			end++
		}
		path.WriteString("M" + coordinate(float64(begin)/n) + " " + coordinate(height(float64(lower[begin]), top)))
		for i := begin; i < end; i++ {
			path.WriteString("V" + coordinate(height(float64(upper[i]), top)) + "H" + coordinate(float64(i+1)/n))
		}
		for i := end - 1; i >= begin; i-- {
			path.WriteString("V" + coordinate(height(float64(lower[i]), top)) + "H" + coordinate(float64(i)/n))
		}
		path.WriteString("Z")
		begin = end
	}
	return path.String()
}
