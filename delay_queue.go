package ratelimit

import (
	"slices"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// delayQueue holds the requests of a zone in this process. Like the requests, it outlives
// configurations. A held request has a turn in the queue of its key. If its client leaves,
// the charge can't be given back while later requests wait behind it. So the turn stays and
// keeps its place, until those have left too or one of them passes. The number of places
// bounds the memory.
type delayQueue struct {
	mu      sync.Mutex
	taken   int64              // places of turns, and of requests being decided
	takenBy map[string]int64   // the same, by key; never 0
	queues  map[string][]*turn // by key, in the order of their charges; never empty
}

// turn is the charge of a held request.
type turn struct {
	queue     *delayQueue
	handler   *Handler
	request   store.Request
	abandoned bool // its client has left
}

var delayQueues sync.Map // zone → *waitingRoom

func (p *delayPolicy) queue() *delayQueue {
	w, ok := delayQueues.Load(p.zone)
	if !ok {
		w, _ = delayQueues.LoadOrStore(p.zone, &delayQueue{takenBy: make(map[string]int64), queues: make(map[string][]*turn)})
	}
	return w.(*delayQueue)
}

// release gives back the place of a request that is decided and isn't held.
func (w *delayQueue) release(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeLocked(key, 1)
	w.giveBackLocked(key)
}

// join turns a place into a turn in the queue. Answers of the store can overtake each other,
// so the receipts decide where in the queue the turn is.
func (w *delayQueue) join(h *Handler, r store.Request) *turn {
	t := &turn{queue: w, handler: h, request: r}
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[r.Key]
	at := len(q)
	for at > 0 && q[at-1].isBehind(t) {
		at--
	}
	w.queues[r.Key] = slices.Insert(q, at, t)
	w.giveBackLocked(r.Key)
	return t
}

// isBehind reports whether t was charged after another turn of its key. Turns of different
// limits, as after a change of plan, stay in the order in which they came. In a wrong
// order less is given back, never more.
func (t *turn) isBehind(other *turn) bool {
	limit := t.request.Limits[0]
	return limit.ID == other.request.Limits[0].ID && limit.Later(t.request.Outcome.Decisions[0].Receipt, other.request.Outcome.Decisions[0].Receipt)
}

// proceed ends a turn whose time has come, and the turns before it whose clients have left:
// time has given back their charges.
func (t *turn) proceed() {
	w, key := t.queue, t.request.Key
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[key]
	end := slices.Index(q, t) + 1
	t.abandoned = true
	stay := slices.DeleteFunc(slices.Clone(q[:end]), func(t *turn) bool { return t.abandoned }) // the others wait for another limit
	w.queues[key] = slices.Replace(q, 0, end, stay...)
	w.freeLocked(key, end-len(stay))
	w.giveBackLocked(key)
}

// abandon notes that the client has left.
func (t *turn) abandon() {
	w := t.queue
	w.mu.Lock()
	defer w.mu.Unlock()
	t.abandoned = true
	t.request.Outcome.Decisions = slices.Clone(t.request.Outcome.Decisions) // the answer, which owns them, ends
	w.giveBackLocked(t.request.Key)
}

// giveBackLocked gives back the charges at the end of a key's queue whose clients have left.
// The newest goes first, so that it finds its budget as it left it. giveBackLocked does
// nothing while a request of the key is being decided, because that request may be charged
// behind them.
func (w *delayQueue) giveBackLocked(key string) {
	q := w.queues[key]
	if w.takenBy[key] != int64(len(q)) {
		return
	}
	for n := len(q); n > 0 && q[n-1].abandoned; n = len(q) {
		h := q[n-1].handler
		var corrections []store.Correction
		for n > 0 && q[n-1].abandoned && q[n-1].handler == h {
			n--
			corrections = append(corrections, store.Correction{Request: &q[n].request, Refund: maxCost})
		}
		h.store.Correct(corrections, h.correctionFailed)
		q = slices.Delete(q, n, len(q))
		w.freeLocked(key, len(corrections))
	}
	if len(q) > 0 {
		w.queues[key] = q
	} else {
		delete(w.queues, key)
	}
}

// freeLocked frees n places of a key.
func (w *delayQueue) freeLocked(key string, n int) {
	w.taken -= int64(n)
	if w.takenBy[key] -= int64(n); w.takenBy[key] == 0 {
		delete(w.takenBy, key)
	}
}
