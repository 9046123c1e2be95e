package algorithms

import (
	_ "embed"
	"fmt"
)

//go:embed sliding_log.lua
var slidingLogLua string

// sliding_log remembers the instant of every event. It promises that at most events of them pass in
// any window: an event counts until it is exactly one window old. With min_interval, two charged requests are
// at least that far apart, whatever they cost, and nothing remains before that time.
//
// For example, a limit of 3 events per 10 seconds has events at 0 s, 4 s and 9 s. A request at 9.5 s
// is denied, with a retry after 0.5 s. At 10 s it passes.
//
// With buckets, instants are rounded up to the end of a bucket. So an event counts up to one
// bucket longer, and the size of the log is bounded. With 10 buckets, the event at 3.2 s of the
// same limit counts as one at 4 s, until 14 s.
//
// State: Log holds the instants, oldest first, at most events of them, or as many as a larger limit has allowed. A correction
// that costs more than events is charged events, because the newest of them decide the same. With buckets the log holds
// three numbers for each bucket that has events. They are its end, the number of its first event,
// and the number of the first event after it. Expired events stay until the next charge. Instants are
// in the log's own time, which is A µs ahead of the clock.
//
// The newest instant is the last one of the log or, with buckets, the first instant that is
// rounded up to it. It is never ahead of the charge. If the clock is more than a second behind
// it, A grows until the newest instant is now, which moves all others back as well. When all
// events have expired, the next charge begins a new log with A = 0.
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
		keepUntil: slidingLogKeepUntil,
		decide:    slidingLogDecide,
		commit:    slidingLogCommit,
		balance:   4,
		outlook:   slidingLogOutlook,
		refund:    slidingLogRefund,
	})
}

var minInterval = &Option{
	Name: "min_interval", Example: "1s", min: 1, max: maxSpan, write: describeDuration, phrase: " at least %s apart",
	value: func(q *Quota) *int64 { return unlessZero(&q.MinInterval) },
}

var buckets = &Option{
	Name: "buckets", Example: "60", min: 1, max: maxBuckets, write: writeCount, phrase: " in %s buckets",
	advice: ": write into how many parts a window is divided, or leave it out to remember every instant",
	value:  func(q *Quota) *int64 { return unlessZero(&q.Buckets) },
}

// The largest logs. Their work leaves room for other limits of the same request; see
// [MaxWork].
const (
	// MaxLogged is how many events a sliding_log without buckets can hold.
	MaxLogged = 200_000
	// maxBuckets bounds the buckets that a refund has to renumber.
	maxBuckets = 2000
)

// slidingLogWork returns the work of the limit. A search reads the log in large pieces. A charge
// may grow the log. A refund moves the events on the nearer side or, with buckets, renumbers
// the later buckets.
func slidingLogWork(l *Limit) work {
	if l.Buckets > 0 {
		take := 600 + 2*l.Buckets
		return work{take: take, refund: take + 8*l.Buckets}
	}
	take := 300 + l.Events/15
	return work{take: take, eventsPerStep: 6, refund: take + l.Events/10}
}

// slidingLogBound returns an error if a limit takes too much work, or if instants that are rounded
// up are too far away.
func slidingLogBound(l *Limit) error {
	if l.Events > MaxLogged && l.Buckets == 0 {
		return fmt.Errorf("sliding_log remembers every event, so events must be at most %d, not %d: "+
			"write sliding_log %d %s with buckets 1000, or sliding_window %d %s",
			MaxLogged, l.Events, l.Events, describeDuration(l.Window), l.Events, describeDuration(l.Window))
	}
	if l.Buckets > 0 && l.Window+slidingLogGrid(l) > maxSpan {
		return errBound
	}
	return nil
}

// slidingLogGrid returns the length of a bucket, or 1 µs without buckets.
func slidingLogGrid(l *Limit) Micros {
	if l.Buckets == 0 {
		return 1
	}
	return ceilDiv(l.Window, l.Buckets)
}

func slidingLogKeepUntil(l *Limit, s *State) Micros {
	if slidingLogLength(l, s.Log) == 0 {
		return 0
	}
	return slidingLogNewest(l, s.Log) - s.A + max(l.Window, l.MinInterval)
}

// slidingLogLength returns the number of events in the log.
func slidingLogLength(l *Limit, log *Log) int64 {
	if l.Buckets == 0 || log.Len() == 0 {
		return log.Len()
	}
	return log.At(log.Len()-1) - log.At(1)
}

// slidingLogEntries returns the number of entries of the log, instants or buckets.
func slidingLogEntries(l *Limit, log *Log) int64 {
	if l.Buckets == 0 {
		return log.Len()
	}
	return log.Len() / 3
}

// slidingLogStamp returns the instant of an entry.
func slidingLogStamp(l *Limit, log *Log, entry int64) Micros {
	if l.Buckets == 0 {
		return log.At(entry)
	}
	return log.At(3 * entry)
}

// slidingLogNewest returns the instant of the newest event.
func slidingLogNewest(l *Limit, log *Log) Micros {
	return slidingLogStamp(l, log, slidingLogEntries(l, log)-1)
}

// slidingLogEventStamp returns the instant of an event; the oldest is event 0.
func slidingLogEventStamp(l *Limit, log *Log, event int64) Micros {
	if l.Buckets == 0 {
		return log.At(event)
	}
	return slidingLogStamp(l, log, slidingLogBucket(log, log.At(1)+event))
}

// slidingLogBucket returns the bucket of the event with that number.
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

// slidingLogExpired returns the number of events up to and including edge. It first doubles the
// number of entries it looks at, from the oldest on, then halves. So few expired entries cost little.
func slidingLogExpired(l *Limit, log *Log, length int64, edge Micros) int64 {
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
		return length
	} else if l.Buckets == 0 {
		return low
	}
	return log.At(3*low+1) - log.At(1)
}

// slidingLogDrop removes the n oldest events.
func slidingLogDrop(l *Limit, log *Log, n int64) {
	switch {
	case l.Buckets == 0 || n == 0:
		log.drop(n)
	case n == slidingLogLength(l, log):
		log.drop(log.Len())
	default:
		first := log.At(1) + n
		log.drop(3 * slidingLogBucket(log, first))
		log.set(1, first)
	}
}

// slidingLogPush appends n events of one instant, not before the newest one.
func slidingLogPush(l *Limit, log *Log, stamp Micros, n int64) {
	if l.Buckets == 0 {
		log.push(stamp, n, l.Events)
		return
	}
	number, maxLength := int64(0), 3*(l.Buckets+1)
	if size := log.Len(); size > 0 {
		number = log.At(size - 1)
		if log.At(size-3) == stamp {
			log.set(size-1, number+n)
			return
		}
	}
	log.push(stamp, 1, maxLength)
	log.push(number, 1, maxLength)
	log.push(number+n, 1, maxLength)
}

// slidingLogRenumber removes n events from a bucket, and renumbers the later ones.
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

func slidingLogDecide(l *Limit, s *State, now Micros, cost int64) room {
	events, window, interval, grid := l.Events, l.Window, l.MinInterval, slidingLogGrid(l)
	length, shift := slidingLogLength(l, s.Log), s.A
	newest := -max(interval, grid)
	if length > 0 {
		newest = slidingLogNewest(l, s.Log) - shift
	}
	step := newest - grid + 1 - now
	if step > stepBack {
		newest, shift = newest-step, shift+step
	}
	eff := max(now, newest-grid+1)
	expired := slidingLogExpired(l, s.Log, length, eff-window+shift)
	live := length - expired
	fits := events - live
	retry := int64(0)
	if cost > max(fits, 0) && cost <= events {
		retry = slidingLogEventStamp(l, s.Log, expired+live+cost-events-1) - shift + window - now
	}
	intervalWait := newest + interval - now
	if interval > 0 && intervalWait > 0 {
		fits = -Forever // never Reserved: the interval ends at a known instant
		if cost > 0 {
			retry = max(retry, intervalWait)
		}
	}
	if cost > events {
		retry = Forever
	}
	return room{fits: fits, retry: retry, a: eff, b: expired, c: live, d: shift}
}

func slidingLogCommit(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance {
	events, window, interval, grid := l.Events, l.Window, l.MinInterval, slidingLogGrid(l)
	eff, expired, live, shift := r.a, r.b, r.c, r.d
	if charge > 0 && live == 0 {
		shift = 0
	}
	stamp := ceilDiv(eff+shift, grid) * grid
	oldest, newest := stamp-shift, stamp-shift
	if charge == 0 && expired+live > 0 {
		newest = slidingLogNewest(l, s.Log) - shift
	}
	charge = min(charge, events)
	excess := max(live+charge-max(events, live), 0) // the newest ones are kept; a larger limit may have allowed more than events
	expired, live = expired+excess, live-excess
	if beyond := max(live+charge-events, 0); live > beyond { // the oldest event that counts for events
		oldest = slidingLogEventStamp(l, s.Log, expired+beyond) - shift
	}
	remaining, more, reset := max(events-live-charge, 0), Micros(0), Micros(0)
	if live+charge > 0 {
		more = oldest + window - now
		reset = newest + window - now
	}
	intervalWait := newest + interval - now
	if interval > 0 && intervalWait > 0 && expired+live+charge > 0 {
		if remaining > 0 {
			more = intervalWait
		}
		remaining, more, reset = 0, max(more, intervalWait), max(reset, intervalWait)
	}
	if charge > 0 {
		if s.Log == nil {
			s.Log = new(Log)
		}
		slidingLogDrop(l, s.Log, expired)
		slidingLogPush(l, s.Log, stamp, charge)
	}
	if o != peek {
		s.A = shift
	}
	return Balance{Charged: charge, A: stamp, B: remaining, C: more, D: reset}
}

// slidingLogOutlook finds the numbers in the balance, because the log isn't in it.
func slidingLogOutlook(_ *Limit, b Balance, _ Micros) (remaining int64, more, reset Micros) {
	return b.B, b.C, b.D
}

// slidingLogRefund removes up to n events of the receipt's instant, in the log's own time.
func slidingLogRefund(l *Limit, s *State, _ Micros, r Receipt, n int64) {
	receiptStamp := r.A
	length := slidingLogLength(l, s.Log)
	low, high := slidingLogExpired(l, s.Log, length, receiptStamp-1), slidingLogExpired(l, s.Log, length, receiptStamp)
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
