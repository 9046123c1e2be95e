package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
)

//go:embed ban.lua
var banLua string

// ban: no limit, but what becomes of those whom a zone's limits refuse again and
// again: after so many refusals within a window, everything is refused for a while.
// Each further ban is twice as long as the one before, up to most; once most has
// passed since the end of the last one, it is forgotten.
//
// Nothing is ever charged. Commit counts a refusal when the zone's own limits are
// what refuses, and [Take] says so with the outcome refused. While a ban stands
// nothing is counted.
//
// State: A is the instant of the first denial that counts or, if there was none since, of
// the beginning of the last ban. B is when the last ban ends or ended. C is the number of
// denials that count, times banLevels, plus the number of bans. Without denials there is
// no window, and without bans no last one.
//
// A is the newest instant; B can be ahead of A by the duration of a ban. If the clock is
// more than a second behind A, A becomes now, and B moves with it.
var banAlgorithm = &Algorithm{
	Name: "ban",
	bit:  1 << 63, // it isn't among those registered: nobody can configure it as a limit
	lua:  banLua,
	args: func(l *Limit) []int64 { return []int64{l.ban.After, l.ban.Window, l.ban.Duration, l.ban.Most} },
	longestDelay: func(*Limit) Micros {
		return longest // other limits hold requests back, a ban doesn't
	},
	decide: banDecide,
	commit: banCommit,
	refund: func(*Limit, *State, Micros, int64, int64, int64) {},
}

// banLevels is above the number of bans that are told apart; lengths don't double
// more often.
const banLevels = 64

// Ban says who is banned from a zone, and for how long.
type Ban struct {
	// After is how many refusals within Window it takes; above 0.
	After int64
	// Window is a span in microseconds; above 0.
	Window Micros
	// Duration is how long the first ban stands, in microseconds; above 0.
	Duration Micros
	// Most is how long any ban stands at most, in microseconds; at least Duration.
	Most Micros
}

// NewBan makes a ban ready: what stands as the last of a zone's Checks. Its errors
// name the setting, its value and what to write instead.
func NewBan(b Ban) (*Limit, error) {
	const mostAfter, mostMost = 1<<31 - 1, longest / 2
	switch {
	case b.After < 1 || b.After > mostAfter:
		return nil, fmt.Errorf("after must be from 1 to %d, not %d: write how many refusals it takes", int64(mostAfter), b.After)
	case b.Window < 1 || b.Window > longest:
		return nil, errors.New("the window of a ban must be that of a limit")
	case b.Duration < 1:
		return nil, fmt.Errorf("the duration must be at least 1us, not %s: write how long a ban stands, such as 1h", describeDuration(b.Duration))
	case b.Duration > mostMost:
		return nil, fmt.Errorf("the duration must be at most %s, not %s", describeDuration(mostMost), describeDuration(b.Duration))
	case b.Most < b.Duration || b.Most > mostMost:
		return nil, fmt.Errorf("max must be from %s, the duration, to %s, not %s: write how long a ban stands at most", describeDuration(b.Duration), describeDuration(mostMost), describeDuration(b.Most))
	}
	l := &Limit{Quota: Quota{Algorithm: "ban", Events: b.After, Window: b.Window}, algorithm: banAlgorithm, ban: b, work: counterWork}
	l.args = banAlgorithm.args(l)
	return l, nil
}

// Bans tells whether this is no limit, but the ban of a zone; see [NewBan].
func (l *Limit) Bans() bool { return l.algorithm == banAlgorithm }

// BeginBan makes a ban stand from now on for span, above 0, as if it was the next to come.
// It returns how long the state must be kept.
//
// change.lua is its other half.
func BeginBan(s *State, now, span Micros, l *Limit) (reset Micros) {
	v := banDecide(l, s, now, 0)
	level := min(v.c%banLevels+1, banLevels-1)
	s.A, s.B, s.C = now, now+span, level
	return span + l.ban.Most
}

func banDecide(l *Limit, s *State, now Micros, _ int64) verdict {
	window, most := l.ban.Window, l.ban.Most
	start, ends := s.A, s.B
	refusals, level := s.C/banLevels, s.C%banLevels
	dirty := int64(0)
	if start-now > stepBack {
		start, ends, dirty = now, ends-start+now, 1
	}
	if now-start >= window {
		start, refusals = 0, 0
	}
	if level == 0 || now >= ends+most {
		ends, level = 0, 0
	}
	fits, retry := Forever, int64(0)
	if ends > now {
		fits, retry = -1, ends-now // what costs nothing doesn't fit either
	}
	return verdict{fits: fits, retry: retry, a: start, b: ends, c: refusals*banLevels + level, d: dirty}
}

func banCommit(l *Limit, s *State, now Micros, _ int64, o outcome, v verdict) (charged, a, b, remaining int64, more, reset Micros) {
	after, window, duration, most := l.ban.After, l.ban.Window, l.ban.Duration, l.ban.Most
	start, ends := v.a, v.b
	refusals, level := v.c/banLevels, v.c%banLevels
	if o == refused {
		if refusals == 0 {
			start = now
		}
		refusals++
		if refusals >= after {
			for range level {
				duration = min(2*duration, most)
			}
			start, refusals = now, 0
			ends, level = now+duration, min(level+1, banLevels-1)
		}
	}
	remaining = Forever
	if ends > now {
		remaining, more = 0, ends-now
	}
	if refusals > 0 {
		reset = start + window - now
	}
	if level > 0 {
		reset = max(reset, ends+most-now)
	}
	if o == refused || v.d == 1 && o != peek {
		s.A, s.B, s.C = start, ends, refusals*banLevels+level
	}
	return 0, 0, 0, remaining, more, reset
}
