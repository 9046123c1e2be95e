package simulate

import (
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// maxBuckets is the largest number of buckets of a timeline.
const maxBuckets = 200

// bucketLengths are the lengths of buckets. Each length is a multiple of the one before, so that whole
// buckets can be merged. Weeks are doubled.
var bucketLengths = func() (lengths []algorithms.Micros) {
	for _, d := range []time.Duration{
		10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		24 * time.Hour, 7 * 24 * time.Hour,
	} {
		lengths = append(lengths, d.Microseconds())
	}
	return lengths
}()

// timelines count requests over time, in several series with common buckets. Buckets begin at multiples
// of their length since the Unix epoch. The length grows with the span of the log, which is unknown until
// its end.
type timelines struct {
	begins, length algorithms.Micros // of the first bucket
	used           int               // buckets
	series         [][maxBuckets]report.Tally
}

func newTimelines(series int) timelines {
	return timelines{length: bucketLengths[0], series: make([][maxBuckets]report.Tally, series)}
}

// bucket returns the index of the bucket of an instant, which must not be before the instant of the call
// before. It makes the buckets longer if the instant is beyond the last one.
func (t *timelines) bucket(at algorithms.Micros) int {
	if t.used == 0 {
		t.begins = floor(at, t.length)
	}
	for (at-t.begins)/t.length >= maxBuckets {
		t.merge()
	}
	i := int((at - t.begins) / t.length)
	t.used = i + 1
	return i
}

// merge makes all buckets longer by one step.
func (t *timelines) merge() {
	length := 2 * t.length
	for _, l := range bucketLengths {
		if l > t.length {
			length = l
			break
		}
	}
	begins := floor(t.begins, length)
	into := func(i int) int { return int((t.begins + int64(i)*t.length - begins) / length) }
	for n := range t.series {
		var merged [maxBuckets]report.Tally
		for i, b := range t.series[n][:t.used] {
			merged[into(i)].Add(b)
		}
		t.series[n] = merged
	}
	t.begins, t.length = begins, length
}

// floor returns the last multiple of length that is not after the instant.
func floor(at, length algorithms.Micros) algorithms.Micros {
	return at - (at%length+length)%length
}

// report returns the buckets of a series.
func (t *timelines) report(series int) []report.Tally {
	return append([]report.Tally{}, t.series[series][:t.used]...)
}
