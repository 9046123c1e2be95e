package faultsim

import (
	"slices"
	"time"
)

// midnight is when the day ends on which the simulation began.
func (o *oracle) midnight() time.Time { return o.began.Truncate(24 * time.Hour).Add(24 * time.Hour) }

// isYesterday reports whether all charges of a request belong to the day on which the simulation began, if the clock of
// Redis has not stepped.
func (o *oracle) isYesterday(q *record) bool {
	return q.ended.Add(giveBack).Before(o.midnight()) && !slices.ContainsFunc(o.scenario.faults, steps)
}

// resets returns how often a calendar can begin from zero in a span of time. A clock that steps back passes midnight again.
func (o *oracle) resets(z *zonePlan, from, to time.Time) int {
	switch {
	case !z.isCalendar():
		return 0
	case slices.ContainsFunc(o.scenario.faults, steps):
		return 1 + o.count(o.began, to, stepsBack)
	case from.After(o.midnight()) || to.Before(o.midnight()):
		return 0
	}
	return 1
}
