// Package algorithms has the arithmetic of rate limiting. It never does I/O, reads a clock, or starts a goroutine.
//
// [NewLimit] makes a [Limit], for example 10 events per second with a burst of 20. The caller keeps
// a [State] for each budget, and passes it with the present instant to [Take]. Take decides one
// request about any number of limits, and charges all of them or none. [Refund] gives back a charge.
// The zero State is a full budget. Package store keeps states, for concurrent use.
//
// All numbers are integers: instants and spans in microseconds, and counts of events. Decisions
// depend on the arguments alone, so tests and simulations can use any clock.
//
// Every algorithm is written twice, in Go and in Lua for Redis. The two files have the same names in
// the same order, and a test compares them on a real Redis. An algorithm works in two steps. Decide
// reads a budget and returns how many events are free. Commit charges the budget.
//
// CONTRIBUTING.md says how to add an algorithm.
package algorithms

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Micros is an instant (since the Unix epoch, UTC) or a span of time in whole
// microseconds, the only unit of time in this package.
type Micros = int64

const (
	// Forever is the RetryAfter of a request that can never pass, because it
	// costs more than its limit ever holds.
	Forever Micros = 1 << 53

	// exact is the bound below which Lua's numbers, which are floating-point,
	// count integers without a gap.
	exact = 1 << 53

	// maxSpan is the longest span, about 142 years, that can be added to an
	// instant of this century and stay exact.
	maxSpan Micros = 1 << 52

	// stepBack is the largest difference between the clocks of two nodes. If a clock is
	// behind the newest instant in a budget's state by at most stepBack, the budget stands
	// still. A clock that is further behind has stepped back. Then the budget continues from
	// now, and used events stay used.
	stepBack Micros = 1_000_000
)

// State is the stored state of one budget. The zero State is a budget that was never charged. The
// comment of each algorithm defines A, B, C and D. Algorithms that remember single events use Log.
//
// A State isn't safe for concurrent use.
type State struct {
	A, B, C, D int64
	Log        *Log
}

// ParseState returns a state without a log as scripts store it: four little-endian integers of 7 bytes. ok is false if the
// text is something else.
func ParseState(stored string) (s State, ok bool) {
	const size = 7
	if len(stored) != 4*size {
		return State{}, false
	}
	for i, n := range []*int64{&s.A, &s.B, &s.C, &s.D} {
		for j := size - 1; j >= 0; j-- {
			*n = *n<<8 | int64(stored[size*i+j])
		}
		if *n > Forever {
			return State{}, false
		}
	}
	return s, true
}

// Decision is the decision of one limit on one request. It describes the budget after the charge.
//
// For example, a token bucket has 10 events per second and burst 10, and gets 6 requests of cost 1 at
// the same instant. The decision on the sixth has Allowed true, Charged 1, Remaining 4, MoreAfter
// 100000, RetryAfter 0 and ResetAfter 600000.
type Decision struct {
	// Allowed reports whether this limit had room for the request. The request
	// passes only if all its limits had room.
	Allowed bool
	// NotAsked reports whether the limit was not asked, because another limit or a ban was known to
	// deny the request. Then only RetryAfter means something, as an upper bound, and 0 if nothing is
	// known. The algorithms never set NotAsked.
	NotAsked bool
	// Reserved reports whether the limit lacks only events that other requests have reserved, or for which they wait. Such a
	// request isn't denied yet: it may wait. Allowed is false.
	Reserved bool
	// Charged is how many events were taken from this budget.
	Charged int64
	// Remaining is how many events of cost 1 could be taken right now.
	Remaining int64
	// Used is how many events are charged and not reserved in the period of a calendar. It can be more than
	// [Quota].Events. Other algorithms leave it 0.
	Used int64
	// MoreAfter is how long until Remaining next grows; 0 when the budget is full.
	MoreAfter Micros
	// Wait is how long the request must be delayed before it passes. Then it is charged in
	// advance. Wait is 0 unless [ZoneRequest].MaxWait is above 0.
	Wait Micros
	// RetryAfter is how long until this limit would allow the same request, if nothing else
	// is charged. A delay of up to MaxWait counts as allowed. RetryAfter is 0 if the limit allowed the
	// request, and [Forever] if it never will.
	// In mode Uniform a limit is also charged for a request that another zone denies. Then
	// RetryAfter can be above 0 although the limit had room.
	RetryAfter Micros
	// ResetAfter is how long until the budget is fully restored. The state must be kept at
	// least until then; see [Limit.Expires].
	ResetAfter Micros
	// Receipt identifies the charge, for [Refund].
	Receipt Receipt
}

// Denies reports whether the limit was asked, and denies the request, even if nothing was reserved.
func (d Decision) Denies() bool { return !d.Allowed && !d.NotAsked && !d.Reserved }

// Age updates the decision after a span in which nothing was charged.
func (d *Decision) Age(passed Micros) {
	d.MoreAfter = max(d.MoreAfter-passed, min(d.MoreAfter, 1))
	d.ResetAfter = max(d.ResetAfter-passed, min(d.ResetAfter, 1))
	if d.RetryAfter < Forever {
		d.RetryAfter = max(d.RetryAfter-passed, min(d.RetryAfter, 1))
	}
}

// Receipt identifies a charge, so that [Refund] can give it back.
type Receipt struct {
	// A and B are the A and B of the State right after the charge. With a log, A is the
	// instant of the charge in the log's own time, and B has no meaning. With a calendar, B is the C of the
	// State before, and both are also set if nothing was charged. Otherwise they are 0 then.
	A, B int64
	// At is the instant of the charge; 0 if nothing was charged.
	At Micros
	// Overflow reports whether the decision is about a budget that a store shares between
	// keys it has no room for. Only stores set it.
	Overflow bool
}

// ChargedLater reports whether the charge was made after another one, to the same budget. Both charges must be in
// advance (see [ZoneRequest].MaxWait) and not given back. Of two charges at the same instant, the later one leaves more
// debt behind.
func (r Receipt) ChargedLater(other Receipt) bool {
	return r.At > other.At || r.At == other.At && r.A+r.B > other.A+other.B
}

// Algorithm describes an algorithm.
type Algorithm struct {
	// Name is the name of the algorithm in configurations and in scripts.
	Name string
	// Burst reports whether the limits have a burst. Limits without one allow at most Events at
	// once.
	Burst bool
	// Calendar reports whether the limits have a period of a calendar instead of a window.
	Calendar bool
	// Options are the other settings of the limits.
	Options []*Option
	// BinaryOnly reports whether the limits work in mode [Binary] only.
	BinaryOnly bool

	// log reports whether the state holds single charges. Then a receipt names one of
	// them, and stays valid when the clock steps back.
	log bool
	bit Features
	lua string
	// luaName is the beginning of the names of the functions in lua; empty if that is the Name.
	luaName string
	// number stands for the algorithm in messages to scripts.
	number int
	// numbers returns the numbers of a limit for the algorithm's script, without the quantum.
	numbers func(*Limit) []int64
	// keepUntil returns the instant from which on a state decides like the zero State, and can
	// be dropped.
	keepUntil func(*Limit, *State) Micros
	// bound returns an error for a limit that can't be counted exactly, and prepares the numbers
	// for decide and commit.
	bound func(*Limit) error
	// work returns the work of a limit for a script; nil stands for counterWork.
	work func(*Limit) work
	// refillIn returns how long an empty budget takes to hold Burst events. It is nil for algorithms that
	// count in windows.
	refillIn func(*Limit) Micros
	// maxDelay returns the longest MaxWait whose debt can be counted exactly. It is nil if
	// requests can't be charged in advance.
	maxDelay func(*Limit) Micros
	decide   func(l *Limit, s *State, now Micros, cost int64) room
	// commit charges a request, and returns the charge and the state afterwards. It is called for each
	// request, with charge 0 for those that only look or are denied. In mode uniform denied requests are
	// charged, up to a bound.
	commit func(l *Limit, s *State, now Micros, charge int64, o outcome, r room) Balance
	// balance is how many of the numbers A, B, C and D a Balance has; the others are 0.
	balance int
	// outlook returns the numbers of a Decision that follow from a Balance. It has no counterpart in Lua.
	outlook func(l *Limit, b Balance, now Micros) (remaining int64, more, reset Micros)
	// refund gives back n events of the charge with the receipt, except for events that time has given
	// back. It reads only A and B of the receipt.
	refund func(l *Limit, s *State, now Micros, r Receipt, n int64)
}

// IsLog reports whether states of the algorithm hold single charges. In Redis such a state isn't
// read as a whole.
func (a *Algorithm) IsLog() bool { return a.log }

// BalanceSize returns how many of the numbers A, B, C and D a [Balance] has: the first 2, 3 or 4. The others are 0.
func (a *Algorithm) BalanceSize() int { return a.balance }

// outcome is the outcome of the request that commit charges.
type outcome uint8

const (
	peek    outcome = iota // the request only looked, and nothing is saved
	granted                // it passes, at once or after a delay
	denied
	settled // in mode Settle
)

// room is the result of the first step. fits is the number of events that fit, below 0 if more are used than the limit
// has. retry is how long the request would have to wait, 0 if it fits. a, b and c are numbers of the state for the second
// step. d is not 0 if the state differs from the stored one by more than the passed time, as after the
// clock has stepped back. Then every request but a peek saves the state.
type room struct {
	fits       int64
	retry      Micros
	a, b, c, d int64
	// reserved is how many events of the key requests have reserved, with this request. Take sets it for commit.
	reserved int64
}

// Balance is a charge, and the state of the budget after it. Scripts reply with it. A [Receipt] has the same A
// and B. Each algorithm's outlook says what else they are for.
type Balance struct {
	Charged    int64
	A, B, C, D int64
}

// Describe sets the fields of a decision that follow from the balance at now: Charged, Remaining, MoreAfter,
// ResetAfter and Receipt.
func (l *Limit) Describe(d *Decision, b Balance, now Micros) {
	d.Charged = b.Charged
	d.Remaining, d.MoreAfter, d.ResetAfter = l.algorithm.outlook(l, b, now)
	if l.algorithm.Calendar {
		d.Used = b.D
	}
	if b.Charged > 0 || l.algorithm.Calendar {
		d.Receipt = Receipt{A: b.A, B: b.B}
	}
	if b.Charged > 0 {
		d.Receipt.At = now
	}
}

var registered []*Algorithm

func register(a *Algorithm) {
	a.bit = 1 << len(registered)
	registered = append(registered, a)
	slices.SortFunc(registered, func(a, b *Algorithm) int { return strings.Compare(a.Name, b.Name) })
	for i, a := range registered {
		a.number = i + 1
	}
}

// script returns the algorithm in Lua: a function that defines it, known to scripts by its number.
func (a *Algorithm) script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\ndefine[%d] = function()\n%sreturn { is_log = %v, is_calendar = %v, is_binary_only = %v",
		a.number, a.lua, a.log, a.Calendar, a.BinaryOnly)
	for _, f := range []string{"read", "decide", "commit", "refund"} {
		fmt.Fprintf(&b, ", %s = %s_%[1]s", f, cmp.Or(a.luaName, a.Name))
	}
	b.WriteString(" }\nend\n")
	return b.String()
}

// All returns every algorithm, sorted by name.
func All() []*Algorithm { return slices.Clone(registered) }

// ExampleOf returns the values of a limit of the algorithm with that name, as a Caddyfile has them.
func ExampleOf(name string) string {
	if a, err := Lookup(name); err == nil && a.Calendar {
		return "100000 month Europe/Berlin"
	}
	return "10 1s"
}

// Lookup returns the algorithm of that name, or an error that lists all names.
func Lookup(name string) (*Algorithm, error) {
	var names []string
	for _, a := range registered {
		if a.Name == name {
			return a, nil
		}
		names = append(names, a.Name)
	}
	if name == "" {
		return nil, fmt.Errorf("algorithm is missing: write one of %s", strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("unknown algorithm %q: write one of %s", name, strings.Join(names, ", "))
}

var errBound = errors.New("too large to be counted exactly")

// productBound returns an error if the credit in events×µs, or the time to refill, leaves the exact
// integers. The credit includes the largest debt of a denied request.
func productBound(l *Limit) error {
	most := int64(exact)
	if l.events > most || l.window > most/(2*l.Burst+1) || (2*l.Burst+1)*l.window > most-l.events {
		return errBound
	}
	if 2*l.Burst*l.window/l.events > maxSpan {
		return errBound
	}
	return nil
}

// steadyRefill returns how long a budget takes to refill if events flow in evenly.
func steadyRefill(l *Limit) Micros { return mulAddDiv(l.Burst, l.window, l.events-1, l.events) }

// floorDiv and ceilDiv divide by a positive number, rounding down and up. Go's
// own division rounds toward zero; Lua's math.floor and math.ceil don't.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }

// windowsDelay returns the length of the windows whose events can be counted beside two
// bursts.
func windowsDelay(l *Limit) Micros {
	windows := floorDiv(exact-2*l.Burst, l.Events) - 2
	if windows > maxSpan/2/l.Window {
		return maxSpan / 2
	}
	return windows * l.Window
}

// productDelay returns the longest wait whose debt can be counted in events×µs beside the
// credit of productBound.
func productDelay(l *Limit) Micros {
	return min((exact-l.events-(2*l.Burst+1)*l.window)/l.events, maxSpan/2)
}
