package redisstore

import (
	"math/rand/v2"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// decide decides a step in Go.
func (p *program) decide(s step) {
	requests := make([]algorithms.ZoneRequest, len(s.zones))
	s.want = make([]store.Outcome, len(p.requests))
	stepped := make([]bool, len(requests))
	living, reserved := make([]wiretest.Slots, len(requests)), make([]wiretest.Slots, len(requests))
	steppedReserved := make([]bool, len(requests))
	for i, z := range s.zones {
		q, r, of := p.requestAt(s, z), &requests[i], &p.states[z]
		*r = algorithms.ZoneRequest{Mode: q.Mode, Cost: s.costs[z], MaxWait: maxWait(q, s.wait), Shadow: q.Shadow, Peek: s.peeks[z]}
		for n, l := range q.Limits {
			r.Checks = append(r.Checks, algorithms.Check{Limit: l.Limit, State: &of.budgets[n]})
		}
		if q.Ban != nil {
			r.Ban = &algorithms.BanCheck{Ban: q.Ban.Ban, State: &of.ban}
		}
		s.want[z].At = s.now
		if s.want[z].Slots.Free = true; q.Slots != nil {
			living[i], stepped[i] = slices.Clone(of.slots).Living(s.now, p.expiry)
			s.found = append(s.found, living[i].Of(s.holder(z)))
			r.Slots = living[i].Check(s.holder(z), s.slots[z], s.now, s.lines[z].Waited)
			s.want[z].Slots.Free = r.Slots.Free()
		}
		if q.ReservedID != "" {
			reserved[i], steppedReserved[i] = slices.Clone(of.reserved).Living(s.now, p.expiry)
			s.found = append(s.found, reserved[i].Of(s.reserver()))
			r.Reserved = &algorithms.ReservedCheck{
				Events: reserved[i].InFlight(), Ahead: reserved[i].Ahead(s.reserver(), s.now, s.lineFor(z, true).Waited),
			}
		}
	}
	p.take(requests, s.now, s, s.zones)
	for i, r := range requests {
		z := s.zones[i]
		o, of := &s.want[z], &p.states[z]
		for _, c := range r.Checks {
			o.Decisions = append(o.Decisions, c.Decision)
		}
		if r.Ban != nil {
			d := r.Ban.Decision
			o.Ban = store.BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
		}
		if r.Slots != nil {
			o.Slots.Taken, o.Slots.InFlight = r.Slots.Taken, r.Slots.InFlight
			taken := int64(0)
			if r.Slots.Taken {
				taken = 1
			}
			if slots, changed := living[i].Take(s.holder(z), s.lineFor(z, false), taken, s.now, p.expiry); (changed || stepped[i]) && !r.Peek {
				of.slots = slots
			}
		}
		if c := r.Reserved; c != nil {
			o.Reserved = store.ReservedOutcome{Events: c.Events, Added: c.Added}
			if slots, changed := reserved[i].Take(s.reserver(), s.lineFor(z, true), c.Added, s.now, p.expiry); (changed || steppedReserved[i]) && !r.Peek {
				of.reserved = slots
			}
		}
		o.SetVerdict()
	}
	p.steps = append(p.steps, s)
}

// holder returns for whom the request takes a slot of a zone.
func (s *step) holder(z int) wiretest.Holder {
	return wiretest.Holder{Instance: s.instance, Tenant: s.tenants[z]}
}

// reserver returns for whom the request reserves events.
func (s *step) reserver() wiretest.Holder { return wiretest.Holder{Instance: s.instance} }

// lineFor returns where the request of a zone stands among those that wait for slots, or for reserved events.
func (s *step) lineFor(z int, reserved bool) store.SlotLine {
	if s.waits[z] != reserved {
		return store.SlotLine{Waited: s.lines[z].Waited}
	}
	return s.lines[z]
}

// maxWait is how long a request may wait, if its limits can charge in advance.
func maxWait(q store.ZoneRequest, wait algorithms.Micros) algorithms.Micros {
	if q.Mode != algorithms.Binary {
		return 0
	}
	for _, l := range q.Limits {
		if l.CheckDelay(wait) != nil {
			return 0
		}
	}
	return wait
}

// correct corrects an earlier step, right after the one decided last and at its instant.
func (p *program) correct(of int, refund, charge int64) {
	last := &p.steps[len(p.steps)-1]
	last.correction = correction{
		of: of, refund: refund, charge: charge, left: make(map[int]set), released: make(map[int]int64), charged: make(map[int][]algorithms.Decision),
	}
	for _, z := range p.steps[of].zones {
		q, outcome, state := p.requestAt(p.steps[of], z), p.steps[of].want[z], &p.states[z]
		for n, d := range outcome.Decisions {
			if refund > 0 && d.Charged > 0 {
				before := state.budgets[n]
				algorithms.Refund(q.Limits[n].Limit, &state.budgets[n], last.now, d.Receipt, min(refund, d.Charged))
				if state.budgets[n] != before && !q.Limits[n].Algorithm().IsLog() { // which keeps the expiry
					p.wrote(p.steps[of], z, n)
				}
			}
		}
		if outcome.Reserved.Added > 0 && p.lines.IntN(4) > 0 {
			state.reserved, _ = state.reserved.Living(last.now, p.expiry)
			found := state.reserved.Of(last.reserver())
			state.reserved = state.reserved.Set(last.reserver(), max(found-outcome.Reserved.Added, 0), last.now+p.expiry)
			last.correction.released[z] = found
		}
		if p.chargesAnew(z, last.correction) {
			r := algorithms.ZoneRequest{Mode: algorithms.Settle, Cost: charge}
			c := store.Correction{Request: &q}
			if c.ChargeRequest().ReservedID != "" {
				living, stepped := slices.Clone(state.reserved).Living(last.now, p.expiry)
				r.Reserved = &algorithms.ReservedCheck{Events: living.InFlight()}
				if stepped {
					state.reserved = living
				}
			}
			for n, l := range q.Limits {
				r.Checks = append(r.Checks, algorithms.Check{Limit: l.Limit, State: &state.budgets[n]})
			}
			p.take([]algorithms.ZoneRequest{r}, last.now, p.steps[of], []int{z})
			for _, c := range r.Checks {
				last.correction.charged[z] = append(last.correction.charged[z], c.Decision)
			}
		}
		if outcome.Slots.Taken {
			state.slots, _ = state.slots.Living(last.now, p.expiry)
			holder := wiretest.Holder{Instance: last.instance, Tenant: p.steps[of].tenants[z]}
			found := state.slots.Of(holder)
			now := set{found, max(found-1, 0), last.now%3 == 0}
			if state.slots = state.slots.Set(holder, now.left, last.now+p.expiry); now.endsLine {
				state.slots = state.slots.EndLine(holder)
			}
			last.correction.left[z] = now
		}
	}
}

// chargesAnew reports whether a zone is charged by a correction, or claims what it was charged before.
func (p *program) chargesAnew(z int, c correction) bool {
	return (c.charge > 0 || c.refund == 0) && len(p.requests[z].Limits) > 0
}

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
