package store

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// SlotRetryAfter is the retry after of a request without a free slot. It is only a guess, because the end of
// a running request is unknown.
const SlotRetryAfter algorithms.Micros = 1_000_000

// The reasons of denials. See [ZoneRequest.DenialReason].
const (
	DeniedByLimit       = "limit"
	DeniedByConcurrency = "concurrency"
	DeniedByReserved    = "reserved" // by a limit that would have room if nothing was reserved
	DeniedByBan         = "ban"
	DeniedByHold        = "hold" // by a ban that a response has begun
)

// ClearOutcome sets the Outcome as if no rule was asked.
func (r *ZoneRequest) ClearOutcome() {
	r.Outcome = Outcome{Decisions: r.Outcome.Decisions[:0], Slots: SlotsOutcome{Free: true}}
	for range r.Limits {
		r.Outcome.Decisions = append(r.Outcome.Decisions, algorithms.Decision{NotAsked: true})
	}
}

// Denies reports whether the zone denies the request, or would without shadow mode.
func (r *ZoneRequest) Denies() bool {
	return r.Outcome.Verdict == Denied || r.Outcome.Verdict == Banned
}

// IsBanned reports whether a ban of the key is in force, or began with this request.
func (r *ZoneRequest) IsBanned() bool { return r.Outcome.Ban.EndsAfter > 0 }

// IsHeldByResponses reports whether responses begin the key's bans, and denials don't.
func (r *ZoneRequest) IsHeldByResponses() bool { return r.Ban != nil && r.Ban.After == 0 }

// LacksSlot reports whether the zone denies the request because no slot is free.
func (r *ZoneRequest) LacksSlot() bool { return r.Slots != nil && !r.Outcome.Slots.Free }

// LacksReserved reports whether the zone denies the request because of events that other requests have reserved, or for
// which they wait.
func (r *ZoneRequest) LacksReserved() bool {
	return slices.ContainsFunc(r.Outcome.Decisions, func(d algorithms.Decision) bool { return d.Reserved })
}

// RetryAfter returns how long it takes until the zone has room for the request, as far as is known.
func (r *ZoneRequest) RetryAfter() algorithms.Micros {
	wait := r.Outcome.Ban.EndsAfter
	for _, d := range r.Outcome.Decisions {
		wait = max(wait, d.RetryAfter)
	}
	if r.LacksSlot() {
		wait = max(wait, SlotRetryAfter)
	}
	return wait
}

// DenialReason returns the reason why the zone denies the request, or "". If the reason is DeniedByLimit, limit
// is the index of the limit with the longest wait. If it is DeniedByReserved, limit is the index of the first such limit.
func (r *ZoneRequest) DenialReason() (reason string, limit int) {
	switch {
	case r.Outcome.Verdict == Banned && r.IsHeldByResponses():
		return DeniedByHold, 0
	case r.Outcome.Verdict == Banned:
		return DeniedByBan, 0
	}
	longest := algorithms.Micros(-1)
	for n, d := range r.Outcome.Decisions {
		if d.Denies() && d.RetryAfter > longest {
			longest, reason, limit = d.RetryAfter, DeniedByLimit, n
		}
	}
	if r.LacksSlot() && SlotRetryAfter > longest {
		return DeniedByConcurrency, 0
	}
	if reason == "" && r.LacksReserved() {
		return DeniedByReserved, slices.IndexFunc(r.Outcome.Decisions, func(d algorithms.Decision) bool { return d.Reserved })
	}
	return reason, limit
}

// RequiredDelay returns the delay that the zone requires: the longest wait of its limits.
func (r *ZoneRequest) RequiredDelay() (delay algorithms.Micros) {
	if r.Shadow {
		return 0
	}
	for _, d := range r.Outcome.Decisions {
		delay = max(delay, d.Wait)
	}
	return delay
}

// AskedForSlot reports whether the store was asked for a slot.
func (r *ZoneRequest) AskedForSlot() bool {
	return r.Slots != nil && r.Outcome.Verdict != NotAsked && !r.Outcome.Cached
}

// GrantedLimit returns the limit with index i as it decided: its Share, if local budgets decided.
func (r *ZoneRequest) GrantedLimit(i int) *algorithms.Limit {
	if r.Outcome.Local {
		return r.Limits[i].localLimit()
	}
	return r.Limits[i].Limit
}

// GrantedSlots returns the number of slots as it decided: the Share, if local budgets decided.
func (r *ZoneRequest) GrantedSlots() int64 {
	if r.Outcome.Local {
		return r.Slots.localLimit()
	}
	return r.Slots.Limit
}

// SlotsDecision returns the state of the slots in the form of a limit's decision.
func (r *ZoneRequest) SlotsDecision() algorithms.Decision {
	limit, o := r.GrantedSlots(), &r.Outcome.Slots
	d := algorithms.Decision{Allowed: o.Free, Remaining: max(limit-o.InFlight, 0)}
	if o.Taken {
		d.Charged = 1
	}
	if d.Remaining < limit {
		d.ResetAfter = SlotRetryAfter
	}
	if !d.Allowed {
		d.Remaining, d.MoreAfter, d.RetryAfter = 0, SlotRetryAfter, SlotRetryAfter // a free slot can be for another request
	}
	return d
}

// localLimit returns the limit of the local budgets.
func (l *Limit) localLimit() *algorithms.Limit {
	if l.Share != nil {
		return l.Share
	}
	return l.Limit
}

// localLimit returns the number of slots that the local budgets grant.
func (s *Slots) localLimit() int64 {
	if s.Share > 0 {
		return s.Share
	}
	return s.Limit
}
