package ratelimit

import (
	"slices"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// delayQueue is the queue of a zone's delayed requests in this process, with one line per key.
// It outlives configurations, because delayed requests do.
//
// A delayed request is charged in advance. If its client leaves, the charge can be given back
// only while no later request of the key waits behind it. So an abandoned request keeps its
// place in the line until all requests behind it have left too, or one of them has passed.
// The number of places bounds the memory.
type delayQueue struct {
	mu         sync.Mutex
	taken      int64                     // places of requests that are delayed, being decided, or wait for a slot
	takenByKey map[string]int64          // the same by key; never 0
	slotless   map[string]int64          // by key: how many of these wait for a slot; never 0
	heldByKey  map[string][]*heldRequest // the lines, in the order of the charges; never empty
}

// heldRequest is a request that waits until it may pass.
type heldRequest struct {
	queue     *delayQueue
	handler   *Handler
	request   store.Request
	abandoned bool // the client has left
}

var delayQueues sync.Map // zone name → *delayQueue

func newDelayQueue() *delayQueue {
	return &delayQueue{takenByKey: make(map[string]int64), slotless: make(map[string]int64), heldByKey: make(map[string][]*heldRequest)}
}

// queue returns the queue of the policy's zone.
func (p *delayPolicy) queue() *delayQueue {
	q, ok := delayQueues.Load(p.zone)
	if !ok {
		q, _ = delayQueues.LoadOrStore(p.zone, newDelayQueue())
	}
	return q.(*delayQueue)
}

// reservePlace takes a place for a request of a key, and reports whether one was free. A key
// gets another place only while more places are free than the key has. So it leaves some for
// other keys: one key alone gets half of the places, two keys get a third each. If all
// requests have the same key, that key gets all places.
func (p *delayPolicy) reservePlace(key string) bool {
	q := p.queue()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !p.hasPlaceLocked(q, key) {
		return false
	}
	q.taken++
	q.takenByKey[key]++
	return true
}

// hasPlace reports whether reservePlace would take a place.
func (p *delayPolicy) hasPlace(key string) bool {
	q := p.queue()
	q.mu.Lock()
	defer q.mu.Unlock()
	return p.hasPlaceLocked(q, key)
}

func (p *delayPolicy) hasPlaceLocked(q *delayQueue, key string) bool {
	free := p.maxHeld - q.taken
	return free > 0 && (q.takenByKey[key] < free || p.singleKey)
}

// releasePlace gives back the place of a request that was decided and isn't delayed.
func (q *delayQueue) releasePlace(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.freePlacesLocked(key, 1)
	q.refundAbandonedLocked(key)
}

// awaitSlot records that a request that has a place waits for a slot. It isn't charged meanwhile.
func (q *delayQueue) awaitSlot(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.slotless[key]++
	q.refundAbandonedLocked(key)
}

// endSlotWait records that a request no longer waits for a slot, and may be charged.
func (q *delayQueue) endSlotWait(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.slotless[key]--; q.slotless[key] == 0 {
		delete(q.slotless, key)
	}
}

// hold puts a charged request into the line of its key, on the place that was reserved for it.
// Replies of the store can overtake each other, so the receipts decide where the request
// stands.
func (q *delayQueue) hold(h *Handler, r store.Request) *heldRequest {
	held := &heldRequest{queue: q, handler: h, request: r}
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.heldByKey[r.Key]
	at := len(line)
	for at > 0 && line[at-1].isChargedAfter(held) {
		at--
	}
	q.heldByKey[r.Key] = slices.Insert(line, at, held)
	q.refundAbandonedLocked(r.Key)
	return held
}

// isChargedAfter reports whether h was charged after another request of its key. If the two
// have different limits, as after a change of plan, it returns false, and they stay in the
// order in which they came. In a wrong order less is given back, never more.
func (h *heldRequest) isChargedAfter(other *heldRequest) bool {
	limit, otherLimit := h.request.Limits[0], other.request.Limits[0]
	receipt, otherReceipt := h.request.Outcome.Decisions[0].Receipt, other.request.Outcome.Decisions[0].Receipt
	return limit.ID == otherLimit.ID && limit.ChargedLater(receipt, otherReceipt)
}

// pass removes a request whose time has come. It also removes the abandoned requests before
// it, because their charges are in the past and can't be given back.
func (h *heldRequest) pass() {
	q, key := h.queue, h.request.Key
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.heldByKey[key]
	end := slices.Index(line, h) + 1
	remaining := slices.DeleteFunc(slices.Clone(line[:end]), func(other *heldRequest) bool { return other == h || other.abandoned })
	q.heldByKey[key] = slices.Replace(line, 0, end, remaining...) // those that wait for another limit remain
	q.freePlacesLocked(key, end-len(remaining))
	q.refundAbandonedLocked(key)
}

// abandon marks a request whose client has left.
func (h *heldRequest) abandon() {
	q := h.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	h.abandoned = true
	h.request.Outcome.Decisions = slices.Clone(h.request.Outcome.Decisions) // they are part of the requestState, which ends
	q.refundAbandonedLocked(h.request.Key)
}

// refundAbandonedLocked gives back the charges of the abandoned requests at the end of a key's
// line. The newest is first, so that each finds its budget as it left it. Nothing happens while a
// request of the key is being decided, because that request may be charged behind them.
func (q *delayQueue) refundAbandonedLocked(key string) {
	line := q.heldByKey[key]
	if q.takenByKey[key]-q.slotless[key] != int64(len(line)) {
		return
	}
	for n := len(line); n > 0 && line[n-1].abandoned; n = len(line) {
		h := line[n-1].handler
		var corrections []store.Correction
		for n > 0 && line[n-1].abandoned && line[n-1].handler == h {
			n--
			corrections = append(corrections, store.Correction{Request: &line[n].request, Refund: maxCost})
		}
		h.store.Correct(corrections, h.reportCorrectionFailure)
		line = slices.Delete(line, n, len(line))
		q.freePlacesLocked(key, len(corrections))
	}
	if len(line) > 0 {
		q.heldByKey[key] = line
	} else {
		delete(q.heldByKey, key)
	}
}

// freePlacesLocked frees n places of a key.
func (q *delayQueue) freePlacesLocked(key string, n int) {
	q.taken -= int64(n)
	if q.takenByKey[key] -= int64(n); q.takenByKey[key] == 0 {
		delete(q.takenByKey, key)
	}
}
