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
	Overridden int // takes that were made by other overrides than there were
	Refunds    int // budgets that were given something back
	Slots      int // slots taken
	Sets       int // counts of slots that an instance has set
	Bans       int // bans that denials brought about
	Changes    int // changes at an operator's wish
	Late       int // calls that did nothing, because no client waited any more
	Failed     int // operations that failed, each at a key that holds something else
	NotRun     int // calls that Redis answered with an error
	Unanswered int // calls that were under way when Redis was killed
	Doubtful   int // operations that these may have come before
	States     int // values in Redis that were compared at the end
	Eras       int // how often all budgets began afresh, from 1

	// Charges are those of the takes that were allowed, by the names of the
	// budgets, in their order.
	Charges map[string][]Charge
	// Differences are the first ones between Redis and the functions, of Different in all.
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

// Add adds the report of another Redis, which has other keys.
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

func (r *Report) differ(format string, args ...any) {
	const most = 20
	if r.Different++; r.Different <= most {
		r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
	}
}

// Charge is what one take that was allowed has taken from one budget.
type Charge struct {
	Era    int
	At     algorithms.Micros
	Events int64
}

// Zone returns the zone in the name of a budget.
func Zone(budget string) string {
	zone, _, _ := strings.Cut(id(budget), ":")
	return zone
}

// Key returns the key in the name of a budget, as it is encoded there.
func Key(budget string) string {
	_, rest, _ := strings.Cut(budget, ":{")
	key, _, _ := strings.Cut(rest, "}:")
	return key
}

// id returns the ID of the limit, ban or slots in a name.
func id(name string) string {
	_, id, _ := strings.Cut(name, "}:")
	return id
}
