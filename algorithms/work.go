package algorithms

// Redis does nothing else while a script runs. So what one script call does is bounded by
// its work, counted in steps of about 0.1 µs on one core: a log takes one step for each of
// its events that is charged or given back.

// MostWork is the most steps of one script call, about 6 ms. On a slower or busier core it
// is still less than 10.
const MostWork = 60_000

// work is how many steps a limit takes. The numbers were measured with BenchmarkLongest of
// package redisstore, and are rounded up.
type work struct {
	take  int64 // to decide and charge
	event int64 // the same, further for each event of the cost
	back  int64 // to give back one event, or to renew it
	most  int64 // to decide, charge or give back whatever is legal
}

// counterWork is the work of a limit whose state is a few numbers, and of a ban. Reading
// the limit's own numbers and an override is part of it.
var counterWork = work{take: 100, back: 100, most: 100}

// Work returns how many steps it takes at most to decide a request of that cost and to
// charge it.
func (l *Limit) Work(cost int64) int64 { return l.work.take + l.work.event*min(cost, l.Events) }

// BackWork returns how many steps it takes at most to give back one event, or to renew it.
func (l *Limit) BackWork() int64 { return l.work.back }

// WorstWork returns how many steps it takes at most to decide, charge or give back a
// request of any cost.
func (l *Limit) WorstWork() int64 { return l.work.most }

// Lighter returns the nearest limit whose WorstWork is less by at least so many steps, or
// nil if there is none.
func (l *Limit) Lighter(steps int64) *Limit {
	q := l.Quota
	q.Burst = 0
	switch {
	case l.work == counterWork:
		return nil
	case q.Buckets > 0:
		if q.Buckets -= ceilDiv(steps, bucketWork); q.Buckets < 1 {
			return nil
		}
	default:
		q.Events -= steps
	}
	lighter, err := NewLimit(q)
	if err != nil {
		return nil
	}
	return lighter
}
