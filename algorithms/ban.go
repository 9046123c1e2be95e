package algorithms

import (
	"errors"
	"fmt"
)

// Ban denies everything of a key for a while, after the limits of its zone have denied a number
// of requests within a window. Each further ban is twice as long as the one before, up to Most.
// Bans are forgotten when Most has passed since the end of the last one.
//
// While a ban stands nothing is counted.
type Ban struct {
	// After is how many denials within Window begin a ban; above 0.
	After int64
	// Window is a span in microseconds; above 0.
	Window Micros
	// Duration is how long the first ban stands, in microseconds; above 0.
	Duration Micros
	// Most is how long any ban stands at most, in microseconds; at least Duration.
	Most Micros
}

// banLevels is above the number of bans that are told apart; lengths don't double
// more often.
const banLevels = 64

// Check returns an error if the ban can't be counted. The error names the setting, its value
// and what to write instead.
func (b *Ban) Check() error {
	const mostAfter, mostMost = 1<<31 - 1, longest / 2
	switch {
	case b.After < 1 || b.After > mostAfter:
		return fmt.Errorf("after must be from 1 to %d, not %d: write how many denials it takes", int64(mostAfter), b.After)
	case b.Window < 1 || b.Window > longest:
		return errors.New("the window of a ban must be that of a limit")
	case b.Duration < 1:
		return fmt.Errorf("the duration must be at least 1us, not %s: write how long a ban stands, such as 1h", describeDuration(b.Duration))
	case b.Duration > mostMost:
		return fmt.Errorf("the duration must be at most %s, not %s", describeDuration(mostMost), describeDuration(b.Duration))
	case b.Most < b.Duration || b.Most > mostMost:
		return fmt.Errorf("max must be from %s, the duration, to %s, not %s: write how long a ban stands at most", describeDuration(b.Duration), describeDuration(mostMost), describeDuration(b.Most))
	}
	return nil
}

// AppendMessage appends the numbers of the ban, as ban.lua reads them.
func (b *Ban) AppendMessage(message []byte) []byte {
	return appendNumbers(message, b.After, b.Window, b.Duration, b.Most)
}

// BanCheck asks whether a ban stands, and counts a denial.
type BanCheck struct {
	Ban *Ban
	// State: A is the instant of the first denial that counts. If no denial has counted since
	// the last ban began, A is the instant of that beginning. B is when the last ban ends or
	// ended. C is the number of denials that count, times banLevels, plus the number of bans.
	// Without denials A begins no window, and without bans B means nothing.
	//
	// A is the newest instant; B can be ahead of A by the duration of a ban. If the clock is
	// more than a second behind A, A becomes now, and B moves with it.
	State *State
	// Decision is filled in by [Take].
	Decision BanDecision

	start, ends    Micros
	denials, level int64
	steppedBack    bool
}

// BanDecision is the decision of a ban about one request.
type BanDecision struct {
	// Stands reports whether the ban stood before the request.
	Stands bool
	// Began reports whether the request began a ban.
	Began bool
	// EndsAfter is how long until the ban ends; 0 if there is none.
	EndsAfter Micros
	// ResetAfter is how long the state must be kept.
	ResetAfter Micros
}

func (c *BanCheck) stands() bool { return c != nil && c.Decision.Stands }

// banUntouched returns the instant from which on neither denials nor bans count.
func banUntouched(b *Ban, s *State) Micros {
	window, most := b.Window, b.Most
	start, ends := s.A, s.B
	denials, level := s.C/banLevels, s.C%banLevels
	untouched := start
	if denials > 0 {
		untouched = start + window
	}
	if level > 0 {
		untouched = max(untouched, ends+most)
	}
	return untouched
}

func (c *BanCheck) decide(now Micros) {
	window, most := c.Ban.Window, c.Ban.Most
	start, ends := c.State.A, c.State.B
	denials, level := c.State.C/banLevels, c.State.C%banLevels
	c.steppedBack = start-now > stepBack
	if c.steppedBack {
		start, ends = now, ends-start+now
	}
	if now-start >= window {
		start, denials = 0, 0
	}
	if level == 0 || now >= ends+most {
		ends, level = 0, 0
	}
	c.start, c.ends, c.denials, c.level = start, ends, denials, level
	c.Decision = BanDecision{Stands: ends > now}
}

// commit counts a denial by the zone's limits. A peek saves nothing unless a denial counts.
func (c *BanCheck) commit(now Micros, denied, peek bool) {
	after, window, duration, most := c.Ban.After, c.Ban.Window, c.Ban.Duration, c.Ban.Most
	counts := denied && !c.Decision.Stands
	if counts {
		if c.denials == 0 {
			c.start = now
		}
		c.denials++
		if c.denials >= after {
			for range c.level {
				duration = min(2*duration, most)
			}
			c.start, c.denials = now, 0
			c.ends, c.level = now+duration, min(c.level+1, banLevels-1)
			c.Decision.Began = true
		}
	}
	if c.ends > now {
		c.Decision.EndsAfter = c.ends - now
	}
	if c.denials > 0 {
		c.Decision.ResetAfter = c.start + window - now
	}
	if c.level > 0 {
		c.Decision.ResetAfter = max(c.Decision.ResetAfter, c.ends+most-now)
	}
	if counts || c.steppedBack && !peek {
		*c.State = State{A: c.start, B: c.ends, C: c.denials*banLevels + c.level}
	}
}

// Begin makes a ban stand from now on for span, above 0. It counts as the next ban.
// It returns how long the state must be kept.
//
// change.lua is its other half.
func (b *Ban) Begin(s *State, now, span Micros) (reset Micros) {
	c := BanCheck{Ban: b, State: s}
	c.decide(now)
	s.A, s.B, s.C = now, now+span, min(c.level+1, banLevels-1)
	return span + b.Most
}
