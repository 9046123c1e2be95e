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
// cost, are at least so far apart, and nothing remains before that time.
//
// State: Log holds the instants, oldest first, at most events of them; in Redis
// it is a list. Events that no longer count stay until the next charge.
func init() {
	register(&Algorithm{
		Name: "sliding_log", Options: []string{"min_interval"},
		lua:    slidingLogLua,
		args:   func(l *Limit) []int64 { return []int64{l.Events, l.Window, l.MinInterval} },
		bound:  slidingLogBound,
		decide: slidingLogDecide,
		commit: slidingLogCommit,
	})
}

// slidingLogBound refuses limits nobody would want to remember every event of.
func slidingLogBound(l *Limit) error {
	const most = 10_000_000
	if l.Events > most {
		return fmt.Errorf("sliding_log remembers every event, so events must be at most %d, not %d: write a sliding_window, which only counts them", most, l.Events)
	}
	return nil
}

func slidingLogDecide(l *Limit, s *State, now Micros, cost int64) verdict {
	events, window, interval := l.Events, l.Window, l.MinInterval
	held := s.Log.Len()
	newest := -interval
	if held > 0 {
		newest = s.Log.At(held - 1)
	}
	eff := max(now, newest)
	dead := slidingLogDead(s.Log, held, eff-window)
	live := held - dead
	fits := max(events-live, 0)
	retry := int64(0)
	if cost > fits && cost <= events {
		retry = s.Log.At(dead+live+cost-events-1) + window - now
	}
	if early := newest + interval - now; early > 0 {
		fits = 0
		if cost > 0 {
			retry = max(retry, early)
		}
	}
	if cost > events {
		retry = Forever
	}
	return verdict{fits: fits, retry: retry, a: eff, b: dead, c: live}
}

func slidingLogCommit(l *Limit, s *State, now Micros, charge int64, v verdict) (charged, remaining int64, more, reset Micros) {
	events, window, interval := l.Events, l.Window, l.MinInterval
	eff, dead, live := v.a, v.b, v.c
	oldest, newest := eff, eff
	if charge == 0 && dead+live > 0 {
		newest = s.Log.At(dead + live - 1)
	}
	charge = min(charge, events)
	if over := live + charge - events; over > 0 { // the newest events of them are kept
		dead, live = dead+over, live-over
	}
	if live > 0 {
		oldest = s.Log.At(dead)
	}
	remaining = max(events-live-charge, 0)
	if live+charge > 0 {
		more = oldest + window - now
		reset = newest + window - now
	}
	if early := newest + interval - now; early > 0 && dead+live+charge > 0 {
		if remaining > 0 {
			more = early
		}
		remaining, more, reset = 0, max(more, early), max(reset, early)
	}
	if charge > 0 {
		if s.Log == nil {
			s.Log = new(Log)
		}
		s.Log.drop(dead)
		s.Log.push(eff, charge, events)
	}
	return charge, remaining, more, reset
}

// slidingLogDead counts the instants up to and including edge. It looks at 1, 2,
// 4, … of them from the oldest on and then halves, so a log with few of them
// costs little.
func slidingLogDead(log *Log, held int64, edge Micros) int64 {
	low, high := int64(0), int64(1)
	for high <= held && log.At(high-1) <= edge {
		low, high = high, high*2
	}
	high = min(high, held+1)
	for high-low > 1 {
		middle := floorDiv(low+high, 2)
		if log.At(middle-1) <= edge {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
