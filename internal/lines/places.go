package lines

import (
	"slices"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Places are the places of a zone for delayed requests, with one line per key. They outlive
// configurations, because delayed requests do. They must be made by [NewPlaces], and are safe for
// concurrent use.
//
// A delayed request is charged in advance. If its client disconnects, the charge can be given back
// only while no later request of the key waits behind it. So an abandoned request keeps its
// place in the line until all requests behind it have left too, or one of them has passed.
// The number of places bounds the memory.
type Places struct {
	refund func(owner any, corrections []store.Correction)

	mu    sync.Mutex
	taken int64
	byKey map[string]keyPlaces // only of keys with places
}

// keyPlaces are the places of one key.
type keyPlaces struct {
	taken    int64            // by requests that are delayed, being decided, or wait for a slot
	awaiting int64            // the number of these that wait for a slot, so they aren't charged
	byTenant map[uint64]int64 // the places by tenant; without tenants nil
	line     []*heldRequest   // those that a limit delays, in the order of the charges
}

// add adds n places of a tenant.
func (k *keyPlaces) add(tenant uint64, n int64) {
	k.taken += n
	if tenant == 0 {
		return
	}
	if k.byTenant == nil {
		k.byTenant = make(map[uint64]int64)
	}
	if k.byTenant[tenant] += n; k.byTenant[tenant] == 0 {
		delete(k.byTenant, tenant)
	}
}

// heldRequest is a request that waits until it may pass.
type heldRequest struct {
	owner     any
	request   store.ZoneRequest
	tenant    uint64 // whose place it is
	abandoned bool   // the client has disconnected
}

// NewPlaces returns Places. They call refund to give back the charges of requests whose clients have
// disconnected. The refund must be on its way before any later charge of these keys. So refund must not
// wait, and must not call the Places.
func NewPlaces(refund func(owner any, corrections []store.Correction)) *Places {
	return &Places{refund: refund, byKey: make(map[string]keyPlaces)}
}

// Taken returns how many places are taken, and by how many keys.
func (p *Places) Taken() (places int64, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, len(p.byKey)
}

// change changes the places of a key, and gives back the charges that can be given back then.
func (p *Places) change(key string, changed func(keyPlaces) keyPlaces) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.byKey[key]
	k := p.refundAbandoned(changed(before))
	p.taken += k.taken - before.taken
	if k.taken > 0 {
		p.byKey[key] = k
	} else {
		delete(p.byKey, key)
	}
}

// reserve takes a place for a request of a key, and reports whether one was free. A key
// gets another place only while more places are free than the key has. So it leaves some for
// other keys: one key alone gets half of the places, two keys get a third each. If all
// requests have the same key, that key gets all places. In the same way a tenant leaves some for other tenants.
func (p *DelayPolicy) reserve(key string, tenant uint64) (reserved bool) {
	p.Places.change(key, func(k keyPlaces) keyPlaces {
		if reserved = p.isFree(k, tenant); reserved {
			k.add(tenant, 1)
		}
		return k
	})
	return reserved
}

// hasPlace reports whether reserve would take a place.
func (p *DelayPolicy) hasPlace(key string, tenant uint64) bool {
	p.Places.mu.Lock()
	defer p.Places.mu.Unlock()
	return p.isFree(p.Places.byKey[key], tenant)
}

// isFree reports whether a tenant of a key with these places gets another one.
func (p *DelayPolicy) isFree(k keyPlaces, tenant uint64) bool {
	room := p.MaxPlaces - p.Places.taken // how many places the key can still get
	if !p.SingleKey {
		room = (room - k.taken + 1) / 2
	}
	return room > 0 && k.byTenant[tenant] < room
}

// release gives back the place of a request that was decided and isn't held.
func (p *Places) release(key string, tenant uint64) {
	p.change(key, func(k keyPlaces) keyPlaces {
		k.add(tenant, -1)
		return k
	})
}

// addAwaiting records that n more requests that have a place wait for a slot. They aren't charged while they wait. n is -1 for a
// request that no longer waits.
func (p *Places) addAwaiting(key string, n int64) {
	p.change(key, func(k keyPlaces) keyPlaces {
		k.awaiting += n
		return k
	})
}

// hold puts a charged request into the line of its key, on the place that was reserved for it.
// Replies of the store can overtake each other, so the receipts decide where the request
// stands.
func (p *Places) hold(owner any, r store.ZoneRequest, tenant uint64) *heldRequest {
	held := &heldRequest{owner: owner, request: r, tenant: tenant}
	p.change(r.Key, func(k keyPlaces) keyPlaces {
		at := len(k.line)
		for at > 0 && k.line[at-1].isChargedAfter(held) {
			at--
		}
		k.line = slices.Insert(k.line, at, held)
		return k
	})
	return held
}

// isChargedAfter reports whether h was charged after another request of its key. If the two
// have different limits, as after a change of plan, it returns false, and they stay in the
// order in which they came. In a wrong order less is given back, never more.
func (h *heldRequest) isChargedAfter(other *heldRequest) bool {
	limit, otherLimit := h.request.Limits[0], other.request.Limits[0]
	receipt, otherReceipt := h.request.Outcome.Decisions[0].Receipt, other.request.Outcome.Decisions[0].Receipt
	return limit.ID == otherLimit.ID && receipt.ChargedLater(otherReceipt)
}

// pass removes a request whose time has come. It also removes the abandoned requests before
// it, because their charges are in the past and can't be given back. Requests that wait for another limit remain.
func (p *Places) pass(h *heldRequest) {
	p.change(h.request.Key, func(k keyPlaces) keyPlaces {
		end := slices.Index(k.line, h) + 1
		var remaining []*heldRequest
		for _, other := range k.line[:end] {
			if other == h || other.abandoned {
				k.add(other.tenant, -1)
			} else {
				remaining = append(remaining, other)
			}
		}
		k.line = slices.Replace(k.line, 0, end, remaining...)
		return k
	})
}

// abandon marks a request whose client has disconnected. The place can outlive the caller's request, so it keeps a
// copy of the decisions, and not the caller's memory around them.
func (p *Places) abandon(h *heldRequest) {
	p.change(h.request.Key, func(k keyPlaces) keyPlaces {
		h.abandoned = true
		h.request.Outcome.Decisions = slices.Clone(h.request.Outcome.Decisions)
		return k
	})
}

// refundAbandoned gives back the charges of the abandoned requests at the end of a key's line, and returns the places
// without them. The newest is first, so that each finds its budget as it left it. Nothing happens while a request of
// the key is being decided, because that request may be charged behind them.
func (p *Places) refundAbandoned(k keyPlaces) keyPlaces {
	if k.taken-k.awaiting != int64(len(k.line)) {
		return k
	}
	n := len(k.line)
	var corrections []store.Correction
	for n > 0 && k.line[n-1].abandoned && k.line[n-1].owner == k.line[len(k.line)-1].owner {
		n--
		k.add(k.line[n].tenant, -1)
		corrections = append(corrections, store.Correction{Request: &k.line[n].request, Refund: algorithms.Forever})
	}
	if len(corrections) == 0 {
		return k
	}
	p.refund(k.line[n].owner, corrections)
	k.line = slices.Delete(k.line, n, len(k.line))
	return p.refundAbandoned(k) // those of the owner before
}
