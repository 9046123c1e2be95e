package faultsim

import (
	"fmt"
	"slices"
	"time"
)

// verdict has the findings of the oracle.
type verdict struct {
	tried   *scenario
	broken  []string // the promises that were broken
	history []string // requests, faults and failures, in the order of time

	passed, denied, failed, doubtful int // requests
	virtual                          time.Duration
}

func (v *verdict) add(format string, args ...any) {
	v.broken = append(v.broken, fmt.Sprintf(format, args...))
}

// tell writes the history.
func (o *oracle) tell() {
	type event struct {
		at   time.Time
		text string
	}
	var all []event
	for _, f := range o.scenario.faults {
		all = append(all, event{o.start(f), f.String()})
	}
	for _, q := range o.scenario.requests {
		all = append(all, event{o.began.Add(q.at), q.String()})
	}
	for _, op := range o.scenario.operated {
		all = append(all, event{o.began.Add(op.at), op.String()})
	}
	for _, f := range o.failures {
		all = append(all, event{f.at, fmt.Sprintf("%v instance %d: %s: %v", f.at.Sub(o.began), f.instance, f.what, f.err)})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	for _, e := range all {
		o.history = append(o.history, e.text)
	}
}
