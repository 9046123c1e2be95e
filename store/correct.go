package store

import (
	"context"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Correct implements [Store]. It never fails.
func (b *Memory) Correct(corrections []Correction, _ func(error)) {
	_ = b.CorrectAt(context.Background(), 0, corrections)
}

// CorrectAt is Correct at an instant that the caller chooses; 0 stands for the store's clock.
func (b *Memory) CorrectAt(_ context.Context, now algorithms.Micros, corrections []Correction) error {
	t := b.begin()
	defer t.release()
	for i := range corrections {
		t.addKey(corrections[i].Request.Key)
	}
	t.lock(now)
	for i := range corrections {
		c := &corrections[i]
		if c.Refund > 0 {
			t.refund(i, c.Request, c.Refund)
		}
		if c.Charge > 0 {
			t.charge(i, c.Request, c.Charge)
		}
		if c.Leave && c.Request.Outcome.Slots.Taken {
			t.leaveSlot(i, c.Request)
		}
	}
	return nil
}

// refund gives back n events of what a request was charged.
func (t *transaction) refund(i int, r *Request, n int64) {
	for j, d := range r.Outcome.Decisions {
		if d.Charged == 0 {
			continue
		}
		l := r.Limits[j]
		f := t.findCharged(i, r.Zone, l.ID, d.Receipt.Shared)
		if !f.held || l.Lingers() && f.expires <= t.now { // it would linger as full once more
			continue
		}
		algorithms.Refund(l.Limit, &f.state, t.now, d.Receipt, min(n, d.Charged))
		expires := f.expires
		if l.Lingers() {
			expires = l.Expires(&f.state)
		}
		t.save(&f, expires)
	}
}

// charge charges n events to the limits of a request, as far as there is room.
func (t *transaction) charge(i int, r *Request, n int64) {
	t.forgetFound()
	c := &t.charges[0]
	*c = Request{
		Zone: r.Zone, Key: r.Key, Limits: r.Limits, Mode: algorithms.Force, Cost: n,
		Outcome: Outcome{Decisions: c.Outcome.Decisions},
	}
	t.decide(i, t.charges[:])
}

// Count counts slots that another store has granted. Even a full store counts them for their own
// key, because they are given back to that key.
func (b *Memory) CountSlots(requests []Request) {
	t := b.begin()
	defer t.release()
	for i := range requests {
		t.addKey(requests[i].Key)
	}
	t.lock(0)
	for i := range requests {
		if r := &requests[i]; r.Outcome.Slots.Taken {
			f := t.findCharged(i, r.Zone, r.Slots.ID, false)
			f.state.A++
			t.save(&f, neverExpires)
		}
	}
}

// leaveSlots gives back the slot of a request.
func (t *transaction) leaveSlot(i int, r *Request) {
	shared := r.Outcome.Slots.Shared
	f := t.findCharged(i, r.Zone, r.Slots.ID, shared)
	switch {
	case f.state.A > 1:
		f.state.A--
		t.save(&f, neverExpires)
	case shared:
		f.shard.dropLocked(f.key, uncounted)
	default:
		f.shard.dropLocked(f.key, t.shared.dropped)
	}
}

// findCharged returns the budget that a request was charged to.
func (t *transaction) findCharged(request int, zone, id string, shared bool) found {
	if shared {
		return findInShard(t.lockOverflow(), t.shared.hashes.shared(id), nil)
	}
	return findInShard(t.shard(request), t.shared.hashes.budget(t.keys[request], id), t.shared.zones.of(zone))
}
