package redisstore

import (
	"math/rand/v2"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// requestAt returns the request to a zone, with the limits that are in force at a step.
func (p *program) requestAt(s step, z int) store.ZoneRequest {
	q := p.requests[z]
	if s.limits != nil && s.limits[z] != nil {
		q.Limits = s.limits[z]
	}
	return q
}

// changedLimits returns limits with other events, or another burst, that share the budgets.
func changedLimits(r *rand.Rand, limits []store.Limit) []store.Limit {
	limits = slices.Clone(limits)
	for i, l := range limits {
		q := l.Quota
		q.Events = pick(r, q.Events, 1, q.Events+1, 2*q.Events, (q.Events+1)/2, 1+r.Int64N(3*q.Events), 1+r.Int64N(1<<r.IntN(40)))
		if q.Burst = 0; l.Scalable() && r.IntN(3) > 0 {
			q.Burst = pick(r, l.Burst, 1, 2*l.Burst, 1+r.Int64N(2*l.Burst))
		}
		if changed, err := algorithms.NewLimit(q); err == nil && changed.Fingerprint() == l.Fingerprint() {
			limits[i].Limit = changed
		}
	}
	return limits
}

// take decides requests to zones in Go, and notes which limits have written their budgets.
func (p *program) take(requests []algorithms.ZoneRequest, now algorithms.Micros, s step, zones []int) {
	before := make([][]algorithms.State, len(zones))
	for i, z := range zones {
		before[i] = slices.Clone(p.states[z].budgets)
	}
	algorithms.Take(requests, now)
	for i, z := range zones {
		for n, c := range requests[i].Checks {
			if c.Decision.Charged > 0 || *c.State != before[i][n] {
				p.wrote(s, z, n)
			}
		}
	}
}

// wrote notes that the limit n of a zone has written its budget.
func (p *program) wrote(s step, z, n int) {
	of := &p.states[z]
	if of.writers == nil {
		of.writers = slices.Clone(p.requests[z].Limits)
	}
	of.writers[n] = p.requestAt(s, z).Limits[n]
	of.most = max(of.most, of.writers[n].Events)
}
