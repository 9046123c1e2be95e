package redistest

import (
	"fmt"
	"maps"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Report is the result of [Audit.Replay].
type Report struct {
	Calls      int // script calls that Redis answered
	Granted    int // takes that were allowed
	Denied     int
	Overridden int // takes that ended because other overrides were in force
	Refunds    int // refunds, each of one budget
	Slots      int // slots taken
	Sets       int // counts of slots that an instance has set
	Bans       int // bans that denials began
	Changes    int // operators' changes
	Late       int // calls that did nothing, because their clients had given up
	Failed     int // operations that failed, each because of a spoiled key
	NotRun     int // calls that Redis answered with an error
	Unanswered int // calls without an answer, because Redis was killed
	Doubtful   int // operations on values that such a call may have changed
	States     int // values in Redis that were compared at the end
	Eras       int // how often all budgets began untouched: 1 and each kill and flush

	// Charges has the charges of allowed takes, in order, by the name of the budget.
	Charges map[string][]Charge
	// Differences has the first 20 differences between Redis and Go. Different is the number of
	// all differences.
	Differences []string
	Different   int
}

// String returns a table of the numbers.
func (r *Report) String() string {
	var b strings.Builder
	for _, line := range []struct {
		name string
		n    int
	}{
		{"script calls", r.Calls},
		{"takes granted", r.Granted},
		{"denied", r.Denied},
		{"overridden", r.Overridden},
		{"failed", r.Failed},
		{"budgets refunded", r.Refunds},
		{"slots taken", r.Slots},
		{"counts set", r.Sets},
		{"bans begun", r.Bans},
		{"changes", r.Changes},
		{"calls too late", r.Late},
		{"calls not run", r.NotRun},
		{"calls unanswered", r.Unanswered},
		{"in doubt", r.Doubtful},
		{"states compared", r.States},
		{"eras", r.Eras},
		{"differences", r.Different},
	} {
		fmt.Fprintf(&b, "  %-18s %5d\n", line.name, line.n)
	}
	return b.String()
}

// Add adds the report of another Redis. The two must have no budget in common.
func (r *Report) Add(other *Report) {
	for _, sum := range []struct {
		to *int
		n  int
	}{
		{&r.Calls, other.Calls},
		{&r.Granted, other.Granted},
		{&r.Denied, other.Denied},
		{&r.Overridden, other.Overridden},
		{&r.Refunds, other.Refunds},
		{&r.Slots, other.Slots},
		{&r.Sets, other.Sets},
		{&r.Bans, other.Bans},
		{&r.Changes, other.Changes},
		{&r.Late, other.Late},
		{&r.Failed, other.Failed},
		{&r.NotRun, other.NotRun},
		{&r.Unanswered, other.Unanswered},
		{&r.Doubtful, other.Doubtful},
		{&r.States, other.States},
		{&r.Eras, other.Eras},
		{&r.Different, other.Different},
	} {
		*sum.to += sum.n
	}
	maps.Copy(r.Charges, other.Charges)
	r.Differences = append(r.Differences, other.Differences...)
}

func (r *Report) addDifference(format string, args ...any) {
	const maxKept = 20
	if r.Different++; r.Different <= maxKept {
		r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
	}
}

// Charge is the charge of one allowed take to one budget.
type Charge struct {
	Era    int
	At     algorithms.Micros
	Events int64
}

// Zone returns the zone in the name of a budget.
func Zone(budget string) string {
	zone, _, _ := strings.Cut(idOf(budget), ":")
	return zone
}

// Key returns the key in the name of a budget, as it is encoded there.
func Key(budget string) string {
	_, rest, _ := strings.Cut(budget, ":{")
	key, _, _ := strings.Cut(rest, "}:")
	return key
}

// idOf returns the ID of the limit, ban or slots in a name.
func idOf(name string) string {
	_, id, _ := strings.Cut(name, "}:")
	return id
}
