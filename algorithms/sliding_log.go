package algorithms

import (
	_ "embed"
	"fmt"
)

//go:embed sliding_log.lua
var slidingLogLua string

// sliding_log: the instant of every event is remembered, and never more than
// events of them lie in any window: an event counts until it is exactly one
// window old. With min_interval, two requests that are charged, whatever they
// cost, are at least so far apart, and nothing remains before that time. With
// buckets, instants are rounded up to the end of a bucket, so an event counts up
// to one bucket longer, and what is remembered is bounded.
//
// State: Log holds the instants, oldest first, at most events of them. In Redis it is a ring as
// well; see sliding_log.lua. With buckets it holds, for each bucket with events in it, three
// numbers: its end, the number of its first event, and that of the first event
// after it. Events that no longer count stay until the next charge. Instants are in the
// log's own time, which is A ahead of the clock.
//
// The newest instant is the last of the log or, with buckets, the first instant that is
// rounded up to it, which is never ahead of the charge. If the clock is more than a second
// behind the newest instant, A grows until the newest instant is now, which moves all
// others back as well. When all events have expired, the next charge begins a new log
// with A = 0.
func init() {
	register(&Algorithm{
		Name: "sliding_log", Options: []*Option{minInterval, buckets},
		lua: slidingLogLua,
		numbers: func(l *Limit) []int64 {
			return []int64{l.Events, l.Window, l.MinInterval, slidingLogGrid(l), l.Buckets}
		},
		bound:     slidingLogBound,
		log:       true,
		work:      slidingLogWork,
		untouched: slidingLogUntouched,
		decide:    slidingLogDecide,
		commit:    slidingLogCommit,
		refund:    slidingLogRefund,
	})
}

var minInterval = &Option{
	Name: "min_interval", Example: "1s", min: 1, max: longest, write: describeDuration, phrase: " at least %s apart",
	value: func(q *Quota) *int64 { return unlessZero(&q.MinInterval) },
}

var buckets = &Option{
	Name: "buckets", Example: "60", min: 1, max: mostBuckets, write: writeCount, phrase: " in %s buckets",
	advice: ": write into how many parts a window is divided, or leave it out to remember every instant",
	value:  func(q *Quota) *int64 { return unlessZero(&q.Buckets) },
}

// The largest logs. Their work leaves room for other limits of the same request; see
// [MostWork].
const (
	// MostLogged is how many events a sliding_log without buckets can hold.
	MostLogged = 200_000
	// mostBuckets bounds the buckets that a refund has to renumber.
	mostBuckets = 2000
)

// slidingLogWork returns the work of the limit. Its log is searched in large pieces. To charge,
// it may have to grow, and to give back, the events on the nearer side move, or with buckets
// all behind are renumbered.
func slidingLogWork(l *Limit) work {
	if l.Buckets > 0 {
		take := 600 + 2*l.Buckets
		return work{take: take, back: take + 8*l.Buckets}
	}
	take := 300 + l.Events/15
	return work{take: take, perStep: 6, back: take + l.Events/10}
}

// slidingLogBound returns an error if a limit takes too much work, or if instants that are rounded
// up are too far away.
func slidingLogBound(l *Limit) error {
	if l.Events > MostLogged && l.Buckets == 0 {
		return fmt.Errorf("sliding_log remembers every event, so events must be at most %d, not %d: write sliding_log %d %s with buckets 1000, or sliding_window %d %s",
			MostLogged, l.Events, l.Events, describeDuration(l.Window), l.Events, describeDuration(l.Window))
	}
	if l.Buckets > 0 && l.Window+slidingLogGrid(l) > longest {
		return errBound
	}
	return nil
}

// slidingLogGrid is the length of a bucket; 1 µs tells all instants apart.
func slidingLogGrid(l *Limit) Micros {
	if l.Buckets == 0 {
		return 1
	}
	return ceilDiv(l.Window, l.Buckets)
}

func slidingLogUntouched(l *Limit, s *State) Micros {
	if slidingLogHeld(l, s.Log) == 0 {
		return 0
	}
	return slidingLogNewest(l, s.Log) - s.A + max(l.Window, l.MinInterval)
}

func slidingLogDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, interval, grid := l.Events, l.Window, l.MinInterval, slidingLogGrid(l)
	held, ahead := slidingLogHeld(l, s.Log), s.A
	newest := -max(interval, grid)
	if held > 0 {
		newest = slidingLogNewest(l, s.Log) - ahead
	}
	if back := newest - grid + 1 - now; back > stepBack {
		newest, ahead = newest-back, ahead+back
	}
	eff := max(now, newest-grid+1)
	dead := slidingLogDead(l, s.Log, held, eff-window+ahead)
	live := held - dead
	fits := max(events-live, 0)
	retry := int64(0)
	if cost > fits && cost <= events {
		retry = slidingLogAt(l, s.Log, dead+live+cost-events-1) - ahead + window - now
	}
	if early := newest + interval - now; interval > 0 && early > 0 {
		fits = 0
		if cost > 0 {
			retry = max(retry, early)
		}
	}
	if cost > events {
		retry = Forever
	}
	return verdict{fits: fits, retry: retry, a: eff, b: dead, c: live, d: ahead}
}

func slidingLogCommit(l *Limit, s *State, now Micros, charge int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	events, window, interval, grid := l.Events, l.Window, l.MinInterval, slidingLogGrid(l)
	eff, dead, live, ahead := v.a, v.b, v.c, v.d
	if charge > 0 && live == 0 {
		ahead = 0
	}
	stamp := ceilDiv(eff+ahead, grid) * grid
	oldest, newest := stamp-ahead, stamp-ahead
	if charge == 0 && dead+live > 0 {
		newest = slidingLogNewest(l, s.Log) - ahead
	}
	charge = min(charge, events)
	if over := live + charge - events; over > 0 { // the newest events of them are kept
		dead, live = dead+over, live-over
	}
	if live > 0 {
		oldest = slidingLogAt(l, s.Log, dead) - ahead
	}
	remaining = max(events-live-charge, 0)
	if live+charge > 0 {
		more = oldest + window - now
		reset = newest + window - now
	}
	if early := newest + interval - now; interval > 0 && early > 0 && dead+live+charge > 0 {
		if remaining > 0 {
			more = early
		}
		remaining, more, reset = 0, max(more, early), max(reset, early)
	}
	if charge > 0 {
		if s.Log == nil {
			s.Log = new(Log)
		}
		slidingLogDrop(l, s.Log, dead)
		slidingLogPush(l, s.Log, stamp, charge)
	}
	if o != peek {
		s.A = ahead
	}
	return charge, stamp, 0, remaining, more, reset
}

// slidingLogRefund removes up to n events of the instant at, by the log's own time.
func slidingLogRefund(l *Limit, s *State, _ Micros, at, _, n int64) {
	held := slidingLogHeld(l, s.Log)
	low, high := slidingLogDead(l, s.Log, held, at-1), slidingLogDead(l, s.Log, held, at)
	n = min(n, high-low)
	if n == 0 {
		return
	}
	if l.Buckets == 0 {
		s.Log.cut(low, n)
	} else {
		slidingLogRenumber(s.Log, slidingLogBucket(s.Log, low+s.Log.At(1)), n)
	}
	if s.Log.Len() == 0 {
		*s = State{}
	}
}

// slidingLogDead counts the events up to and including edge. It looks at 1, 2, 4, …
// entries of the log, instants or buckets, from the oldest on and then halves, so a
// log with few of them costs little.
func slidingLogDead(l *Limit, log *Log, held int64, edge Micros) int64 {
	entries := slidingLogEntries(l, log)
	low, high := int64(0), int64(1)
	for high <= entries && slidingLogStamp(l, log, high-1) <= edge {
		low, high = high, high*2
	}
	high = min(high, entries+1)
	for high-low > 1 {
		middle := floorDiv(low+high, 2)
		if slidingLogStamp(l, log, middle-1) <= edge {
			low = middle
		} else {
			high = middle
		}
	}
	if low == entries {
		return held
	} else if l.Buckets == 0 {
		return low
	}
	return log.At(3*low+1) - log.At(1)
}

// What follows reads and writes the log in its two forms.

// slidingLogHeld is how many events are in the log.
func slidingLogHeld(l *Limit, log *Log) int64 {
	if l.Buckets == 0 || log.Len() == 0 {
		return log.Len()
	}
	return log.At(log.Len()-1) - log.At(1)
}

// slidingLogEntries is how many instants or buckets are in the log.
func slidingLogEntries(l *Limit, log *Log) int64 {
	if l.Buckets == 0 {
		return log.Len()
	}
	return log.Len() / 3
}

// slidingLogStamp is the instant of an entry.
func slidingLogStamp(l *Limit, log *Log, entry int64) Micros {
	if l.Buckets == 0 {
		return log.At(entry)
	}
	return log.At(3 * entry)
}

// slidingLogNewest is the instant of the newest event.
func slidingLogNewest(l *Limit, log *Log) Micros {
	return slidingLogStamp(l, log, slidingLogEntries(l, log)-1)
}

// slidingLogAt is the instant of an event, the oldest being 0.
func slidingLogAt(l *Limit, log *Log, event int64) Micros {
	if l.Buckets == 0 {
		return log.At(event)
	}
	return slidingLogStamp(l, log, slidingLogBucket(log, log.At(1)+event))
}

// slidingLogBucket is the bucket an event is in, by its number.
func slidingLogBucket(log *Log, number int64) int64 {
	low, high := int64(0), log.Len()/3
	for high-low > 1 {
		middle := floorDiv(low+high, 2)
		if log.At(3*middle+1) <= number {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// slidingLogDrop forgets the n oldest events.
func slidingLogDrop(l *Limit, log *Log, n int64) {
	switch {
	case l.Buckets == 0 || n == 0:
		log.drop(n)
	case n == slidingLogHeld(l, log):
		log.drop(log.Len())
	default:
		first := log.At(1) + n
		log.drop(3 * slidingLogBucket(log, first))
		log.set(1, first)
	}
}

// slidingLogPush appends n events of one instant, which is none before the newest.
func slidingLogPush(l *Limit, log *Log, stamp Micros, n int64) {
	if l.Buckets == 0 {
		log.push(stamp, n, l.Events)
		return
	}
	number, most := int64(0), 3*(l.Buckets+1)
	if size := log.Len(); size > 0 {
		number = log.At(size - 1)
		if log.At(size-3) == stamp {
			log.set(size-1, number+n)
			return
		}
	}
	log.push(stamp, 1, most)
	log.push(number, 1, most)
	log.push(number+n, 1, most)
}

// slidingLogRenumber takes n events out of a bucket.
func slidingLogRenumber(log *Log, bucket, n int64) {
	log.set(3*bucket+2, log.At(3*bucket+2)-n)
	for i := 3 * (bucket + 1); i < log.Len(); i += 3 {
		log.set(i+1, log.At(i+1)-n)
		log.set(i+2, log.At(i+2)-n)
	}
	if log.At(3*bucket+1) == log.At(3*bucket+2) {
		log.cut(3*bucket, 3)
	}
}
