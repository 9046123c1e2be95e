package faultsim

import (
	"slices"
	"time"
)

// checkSilence checks that no request waits for a Redis that is known to be silent.
func (o *oracle) checkSilence() {
	const known = 6 // messages without an answer
	for _, f := range o.scenario.faults {
		if f.kind != "freeze" || o.cluster != nil {
			continue
		}
		for _, q := range o.scenario.requests {
			if o.scenario.delays() || q.killed || q.sent.After(o.end(f)) || q.answered().Sub(q.sent) < timeout/2 {
				continue
			}
			failed, last := 0, o.start(f)
			for _, other := range o.scenario.requests { // those of one message fail once
				if other.instance == q.instance && !other.killed && other.sent.After(last.Add(timeout)) && other.sent.Before(q.sent.Add(-4*timeout)) {
					failed, last = failed+1, other.sent
				}
			}
			if failed >= known && o.count(o.start(f), q.sent, killed) == 0 {
				o.add("waited, although %d messages before had no answer: %v", failed, q)
			}
		}
	}
}

// isFrozenOut reports whether a request was sent and answered while the only Redis was frozen.
func (o *oracle) isFrozenOut(q *record) bool {
	return o.cluster == nil && slices.ContainsFunc(o.scenario.faults, func(f *fault) bool {
		return f.kind == "freeze" && q.sent.After(o.start(f).Add(time.Millisecond)) && q.answered().Before(o.end(f)) && !q.killed
	}) && !slices.ContainsFunc(o.scenario.faults, steps)
}
