package algorithms

import (
	"errors"
	"fmt"
)

// Ban denies all requests of a key for a time, after the limits of its zone have denied After
// requests within Window. Each further ban is twice as long as the one before, up to Max. Bans are
// forgotten when Max has passed since the end of the last one. While a ban stands, nothing is
// counted.
//
// For example, with After 3, Window and Duration 1 minute, and Max 10 minutes, 3 denials within a
// minute begin a ban of 1 minute. The next bans last 2, 4, 8 and 10 minutes. After 10 minutes
// without a ban the next one lasts 1 minute again.
//
// ban.lua mirrors it.
type Ban struct {
	// After is the number of denials within Window that begin a ban; 0 if denials begin none.
	After int64
	// Window is a span in microseconds; above 0.
	Window Micros
	// Duration is the length of the first ban in microseconds; above 0.
	Duration Micros
	// Max is the greatest length of a ban in microseconds; at least Duration.
	Max Micros
}

// maxBanLevel is the largest level. The level is the number of bans: further bans don't double.
const maxBanLevel = 63

// Check returns an error if the ban can't be counted. The error names the setting, its value
// and what to write instead.
func (b *Ban) Check() error {
	const maxAfter, maxDuration = 1<<31 - 1, maxSpan / 2
	switch {
	case b.After < 0 || b.After > maxAfter:
		return fmt.Errorf("after must be from 0 to %d, not %d: write how many denials it takes", int64(maxAfter), b.After)
	case b.Window < 1 || b.Window > maxSpan:
		return errors.New("the window of a ban must be that of a limit")
	case b.Duration < 1:
		return fmt.Errorf("the duration must be at least 1us, not %s: write how long a ban lasts, such as 1h", describeDuration(b.Duration))
	case b.Duration > maxDuration:
		return fmt.Errorf("the duration must be at most %s, not %s", describeDuration(maxDuration), describeDuration(b.Duration))
	case b.Max < b.Duration || b.Max > maxDuration:
		return fmt.Errorf("max must be from %s, the duration, to %s, not %s: write the longest ban",
			describeDuration(b.Duration), describeDuration(maxDuration), describeDuration(b.Max))
	}
	return nil
}

// AppendMessage appends the numbers of the ban, as ban.lua reads them.
func (b *Ban) AppendMessage(message []byte) []byte {
	return appendNumbers(message, b.After, b.Window, b.Duration, b.Max)
}

// BanCheck asks whether a ban stands, and counts a denial.
type BanCheck struct {
	Ban *Ban
	// State: A is the start of the window, in µs: the first denial that counts. If no denial has
	// counted since the last ban began, A is the beginning of that ban. B is the end of the last
	// ban, in µs. C is the number of denials that count, whether an operator began the last ban,
	// and the level: see packBan. Without denials A starts no window, and without bans B means
	// nothing.
	//
	// A is the newest instant; B can be ahead of A by the duration of a ban. If the clock is
	// more than a second behind A, A becomes now, and B moves with it.
	State *State
	// Decision is filled in by [Take].
	Decision BanDecision

	start, ends    Micros
	denials, level int64
	byOperator     bool
	steppedBack    bool
}

// packBan returns the C of a state.
func packBan(denials int64, byOperator bool, level int64) int64 {
	operator := int64(0)
	if byOperator {
		operator = 1
	}
	return denials<<7 | operator<<6 | level
}

// unpackBan returns the parts of the C of a state.
func unpackBan(c int64) (denials int64, byOperator bool, level int64) {
	return c >> 7, c>>6&1 == 1, c & maxBanLevel
}

// BanDecision is the decision of a ban about one request.
type BanDecision struct {
	// Stands reports whether the ban stood before the request.
	Stands bool
	// Began reports whether the request began a ban.
	Began bool
	// EndsAfter is the time until the ban ends; 0 if there is none.
	EndsAfter Micros
	// ResetAfter is the time for which the state must be kept.
	ResetAfter Micros
}

func (c *BanCheck) stands() bool { return c != nil && c.Decision.Stands }

// banKeepUntil returns the instant from which on neither denials nor bans count.
func banKeepUntil(b *Ban, s *State) Micros {
	window, maxDuration := b.Window, b.Max
	start, ends := s.A, s.B
	denials, _, level := unpackBan(s.C)
	keepUntil := start
	if denials > 0 {
		keepUntil = start + window
	}
	if level > 0 {
		keepUntil = max(keepUntil, ends+maxDuration)
	}
	return keepUntil
}

func (c *BanCheck) decide(now Micros) {
	window, maxDuration := c.Ban.Window, c.Ban.Max
	start, ends := c.State.A, c.State.B
	denials, byOperator, level := unpackBan(c.State.C)
	c.steppedBack = start-now > stepBack
	if c.steppedBack {
		start, ends = now, ends-start+now
	}
	if now-start >= window {
		start, denials = 0, 0
	}
	if level == 0 || now >= ends+maxDuration {
		ends, level, byOperator = 0, 0, false
	}
	c.start, c.ends, c.denials, c.byOperator, c.level = start, ends, denials, byOperator, level
	c.Decision = BanDecision{Stands: ends > now}
}

// commit counts a denial by the zone's limits. A peek doesn't save the count.
func (c *BanCheck) commit(now Micros, limitsDeny, isPeek bool) {
	after, window, duration, maxDuration := c.Ban.After, c.Ban.Window, c.Ban.Duration, c.Ban.Max
	counts := limitsDeny && after > 0 && !c.Decision.Stands
	if counts {
		if c.denials == 0 {
			c.start = now
		}
		c.denials++
		if c.denials >= after {
			for range c.level {
				duration = min(2*duration, maxDuration)
			}
			c.start, c.denials, c.byOperator = now, 0, false
			c.ends, c.level = now+duration, min(c.level+1, maxBanLevel)
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
		c.Decision.ResetAfter = max(c.Decision.ResetAfter, c.ends+maxDuration-now)
	}
	if !isPeek && (counts || c.steppedBack) {
		*c.State = State{A: c.start, B: c.ends, C: packBan(c.denials, c.byOperator, c.level)}
	}
}

// Begin begins a ban that stands for span, above 0, from now on. It counts as the next ban.
// Begin returns the time for which the state must be kept.
//
// change.lua mirrors it.
func (b *Ban) Begin(s *State, now, span Micros) (reset Micros) {
	c := BanCheck{Ban: b, State: s}
	c.decide(now)
	s.A, s.B, s.C = now, now+span, packBan(0, true, min(c.level+1, maxBanLevel))
	return span + b.Max
}

// Hold begins a ban that stands for span, above 0, from now on, unless a ban stands that ends later. It doubles no later ban.
// Hold returns the time for which the state must be kept.
//
// change.lua mirrors it.
func (b *Ban) Hold(s *State, now, span Micros) (reset Micros) {
	c := BanCheck{Ban: b, State: s}
	c.decide(now)
	ends := max(c.ends, now+span)
	s.A, s.B, s.C = now, ends, packBan(0, c.byOperator && c.ends == ends, max(c.level, 1))
	return ends - now + b.Max
}

// StandingBan is a ban that is in force.
type StandingBan struct {
	// EndsAfter is the time until the ban ends.
	EndsAfter Micros
	// ByOperator reports whether an operator began the ban: see [Ban.Begin]. Otherwise denials did.
	ByOperator bool
}

// StandingBan returns the ban that is in force in the state of a ban. ok is false if there is none.
// The result is the same for every [Ban].
func (s *State) StandingBan(now Micros) (ban StandingBan, ok bool) {
	ends := s.B
	if s.A-now > stepBack {
		ends -= s.A - now
	}
	_, byOperator, level := unpackBan(s.C)
	if level == 0 || ends <= now {
		return StandingBan{}, false
	}
	return StandingBan{EndsAfter: ends - now, ByOperator: byOperator}, true
}
