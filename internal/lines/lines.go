// Package lines has the rules by which requests wait: which requests wait, in which line and place, and
// when they are denied. It never reads a clock, and starts nothing.
package lines

import (
	"container/list"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Micros is a duration, or an instant of any clock that never goes back.
type Micros = algorithms.Micros

// DelayPolicy is the option delay of a zone, and wait of its option settle.
type DelayPolicy struct {
	MaxDelay Micros // the longest delay of a request, for a slot and for limits together; 0: only for reserved events
	// MaxReserved is the longest wait for events that other requests have reserved, at least MaxDelay. 0: no request
	// waits for them. The limits can delay a request afterwards only for what is left of MaxDelay.
	MaxReserved Micros
	MaxPlaces   int64 // bounds the requests that are delayed, or decided, at the same time
	SingleKey   bool  // all requests of the zone have the same key
	Places      *Places
	// CountWaiting, if not nil, counts n more requests that wait for something in the zone. It must not call the SlotLines.
	CountWaiting func(need Need, n int64)
}

// Need is the thing for which a request waits in a zone: a slot, events that others have reserved, or the end of a ban that a
// response has begun.
type Need struct {
	Zone          int
	Reserved, Ban bool
}

// nothing is no Need.
var nothing = Need{Zone: -1}

// Request is a request that one handler decides. In a zone with a [DelayPolicy], a request without a free slot
// waits for one, and so does one that lacks only reserved events. While it waits, it holds no slot of the handler, not even
// in another zone, because the store takes all slots of a request or none. So requests of one handler never wait for each
// other in a circle. With slots of several handlers they can, until the longest delay is over.
//
// Its driver follows these steps, one at a time:
//
//   - Call [Request.Reserve], then [SlotLines.Begin].
//   - After [Ask], let the store decide, and call [SlotLines.Answered].
//   - After [Wait], call [SlotLines.Join], and then [SlotLines.Look] until it returns something else. If that is
//     Ask, first make the corrections of [Request.PrepareShadows].
//   - After [Decided], an allowed request that a limit delays may call [Request.Hold], and later
//     [Request.Pass] or [Request.Abandon].
//   - Call [Request.Release] in the end, also after an error, but not for a request that only peeks.
//
// The zero Request has no zones.
type Request struct {
	Came     Micros // to the handler
	Requests []store.ZoneRequest
	Zones    []ZoneWait // with the same indexes
	// Wake is called when it may be the turn of a request earlier than before. wait is how long to wait at
	// most before Look. Wake must not call the SlotLines. It must be set when the request joins a line.
	Wake func(wait Micros)

	asked   bool   // the store has decided
	allowed bool   // its last decision
	waits   bool   // in a line, and its charges are not being decided
	entered bool   // it counts as a user of its tenants' slots
	need    Need   // for which the request waits, or has waited last
	banEnds Micros // when a request that waits for the end of a ban asks again
	line    *line
	element *list.Element // in that line
}

// ZoneWait is how a [Request] waits in one zone.
type ZoneWait struct {
	Delay *DelayPolicy // nil: the zone delays no request

	hasPlace bool
	tenant   uint64       // whose place it is
	held     *heldRequest // on that place, while a limit delays the request
}

// Step is the next step of a request.
type Step uint8

// The steps.
const (
	Ask     Step = iota // let the store decide
	Wait                // for a slot, or for reserved events
	Decided             // the Outcomes hold
)

// Line returns the index of the zone in whose line the request stands, or has stood last.
func (r *Request) Line() int { return r.need.Zone }

// IsHeld reports whether a zone has delayed the request by Hold.
func (r *Request) IsHeld(zone int) bool { return r.Zones[zone].held != nil }

// Reserve takes a place in each zone that can delay the request, and reports whether it took one. It also
// sets MaxWait. In a zone without a free place, or if mayWait reports false, the request passes only at
// once. A request that peeks takes no place, and needs none to be released.
func (r *Request) Reserve(mayWait func() bool) (reserved bool) {
	for i := range r.Requests {
		q, p := &r.Requests[i], r.Zones[i].Delay
		if p == nil || len(q.Limits) == 0 && q.Slots == nil && !q.IsHeldByResponses() {
			continue
		}
		maxWait := r.longestLimitDelay(i, 0)
		switch {
		case maxWait == 0 && q.Slots == nil && !r.mayWaitForReserved(i):
		case q.Shadow: // is charged in advance, but not delayed
			q.MaxWait = maxWait
		case !mayWait():
		case q.Peek && p.hasPlace(q.Key, q.Tenant.ID), !q.Peek && p.reserve(q.Key, q.Tenant.ID):
			q.MaxWait, r.Zones[i].hasPlace, r.Zones[i].tenant, reserved = maxWait, true, q.Tenant.ID, true
		}
	}
	return reserved
}

// longestLimitDelay returns how long the limits of a zone can delay a request that has waited for a slot
// before.
func (r *Request) longestLimitDelay(zone int, waited Micros) Micros {
	longest := r.Zones[zone].Delay.MaxDelay - waited
	for _, l := range r.Requests[zone].Limits { // a factor below 1 makes bursts larger, which leaves less room for debt
		longest = min(longest, l.MaxDelay())
	}
	return max(longest, 0)
}

// Release gives back the places of the request, except those that Hold uses.
func (r *Request) Release() {
	for i := range r.Zones {
		if z := &r.Zones[i]; z.hasPlace && z.held == nil {
			z.Delay.Places.release(r.Requests[i].Key, z.tenant)
			z.hasPlace = false
		}
	}
}

// Hold puts the request, which is allowed and charged, into the lines of the zones with limits that can
// delay it. Of each line, the charges of those that Abandon it are given back together, if they have the
// same owner.
func (r *Request) Hold(owner any) {
	for i := range r.Zones {
		if z := &r.Zones[i]; z.hasPlace && z.Delay.MaxDelay > 0 && len(r.Requests[i].Limits) > 0 {
			z.held = z.Delay.Places.hold(owner, r.Requests[i], z.tenant)
		}
	}
}

// Pass is called when the delay of a request that is held is over.
func (r *Request) Pass() { r.eachHeld((*Places).pass) }

// Abandon is called instead of Pass if the client has disconnected. The charges are given back as soon as it is
// known that no later request waits behind them.
func (r *Request) Abandon() { r.eachHeld((*Places).abandon) }

func (r *Request) eachHeld(do func(*Places, *heldRequest)) {
	for i := range r.Zones {
		if z := &r.Zones[i]; z.held != nil {
			do(z.Delay.Places, z.held)
		}
	}
}

// mayWaitForReserved reports whether requests of a zone wait for reserved events.
func (r *Request) mayWaitForReserved(zone int) bool {
	return r.Requests[zone].ReservedID != "" && r.Zones[zone].Delay.MaxReserved > 0
}

// canWait reports whether the request can wait for something now.
func (r *Request) canWait(n Need, now Micros) bool {
	return r.Zones[n.Zone].hasPlace && now < r.waitsUntil(n)
}

// waitsUntil returns when the request gives up in a line.
func (r *Request) waitsUntil(n Need) Micros {
	if n.Reserved {
		return r.Came + r.Zones[n.Zone].Delay.MaxReserved
	}
	return r.Came + r.Zones[n.Zone].Delay.MaxDelay
}

// chargesDenials reports whether a zone charges the request even if it is denied. Such a request doesn't
// wait for slots, because each decision would charge it again.
func (r *Request) chargesDenials() bool {
	return slices.ContainsFunc(r.Requests, func(q store.ZoneRequest) bool { return q.Mode == algorithms.Uniform && !q.Shadow })
}

// missing returns what the request can wait for, if nothing denies it for which it can't wait. Otherwise it returns nothing.
// Bans come first, and then the line in which the request stands.
func (r *Request) missing(now Micros) Need {
	missing, latest := nothing, Micros(0)
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.Shadow || !q.Denies() {
			continue
		}
		if ends := q.Outcome.Ban.EndsAfter; q.Outcome.Verdict == store.Banned && q.IsHeldByResponses() && r.canWait(Need{Zone: i}, now+ends) {
			if ends > latest {
				missing, latest = Need{Zone: i, Ban: true}, ends
			}
			continue
		}
		if q.Outcome.Verdict == store.Banned || slices.ContainsFunc(q.Outcome.Decisions, algorithms.Decision.Denies) {
			return nothing
		}
		for _, n := range []Need{{Zone: i}, {Zone: i, Reserved: true}} {
			switch lacks := q.LacksSlot() && !n.Reserved || q.LacksReserved() && n.Reserved; {
			case !lacks:
			case !r.canWait(n, now):
				return nothing
			case missing == nothing || !missing.Ban && r.line != nil && r.need == n:
				missing = n
			}
		}
	}
	if missing != nothing && r.chargesDenials() {
		return nothing
	}
	return missing
}

// denyFor denies the request because it lacks something, without asking the store.
func (r *Request) denyFor(n Need) {
	for i := range r.Requests {
		r.Requests[i].ClearOutcome()
	}
	q := &r.Requests[n.Zone]
	if q.Outcome.Verdict = store.Denied; n.Reserved {
		q.Outcome.Decisions[0] = algorithms.Decision{Reserved: true, RetryAfter: algorithms.ReservedRetryAfter}
		return
	}
	q.Outcome.Slots = store.SlotsOutcome{InFlight: q.Slots.Limit}
}

// PrepareShadows prepares the shadow zones for another decision on the request, and returns the
// corrections to make first. The last decision has charged shadows in mode uniform, which get their
// charges back. It has also counted the denials of their limits, which must not be counted again.
func (r *Request) PrepareShadows() (charged []store.Correction) {
	if !r.asked {
		return nil
	}
	for i := range r.Requests {
		q := &r.Requests[i]
		if !q.Shadow {
			continue
		}
		if q.Mode == algorithms.Uniform {
			charged = append(charged, store.Correction{Request: q, Refund: q.Cost})
		}
		if q.Outcome.Verdict == store.Denied && q.Outcome.Ban.EndsAfter == 0 && !q.IsHeldByResponses() {
			q.Ban = nil
		}
	}
	return charged
}

// beginWait records in the zones that the request isn't charged for a while, because it waits for something.
func (r *Request) beginWait() {
	r.waits = true
	for i := range r.Zones {
		if z := &r.Zones[i]; z.hasPlace {
			z.Delay.Places.addAwaiting(r.Requests[i].Key, 1)
		}
	}
}

// endWait ends what beginWait began. The limits can delay the request for the rest of the time.
func (r *Request) endWait(now Micros) {
	if !r.waits {
		return
	}
	if r.waits = false; r.need.Ban {
		r.countWaiting(-1)
	}
	for i := range r.Zones {
		if z := &r.Zones[i]; z.hasPlace {
			z.Delay.Places.addAwaiting(r.Requests[i].Key, -1)
			r.Requests[i].MaxWait = r.longestLimitDelay(i, now-r.Came)
		}
	}
}
