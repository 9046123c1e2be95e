package ratelimit

import (
	"slices"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// waitingRoom is where this process holds the requests of a zone. Like the requests it
// outlives configurations. A held request has a turn in the queue of its key. A client
// that leaves can't be given back its charge while later ones of the queue wait behind
// it. So its turn stays, and keeps its place, until those have left too or one of them
// passes. What is remembered is bounded by the number of places.
type waitingRoom struct {
	mu      sync.Mutex
	taken   int64             // places: those of turns, and of requests being decided
	takenBy map[string]int64  // by key, where there are any
	queues  map[string]*queue // by key, where there are turns
}

// queue is the turns of one key, in the order they were charged.
type queue struct {
	turns      []*turn
	givingBack bool // somebody does, and nobody else may: the order counts
}

// turn is the charge of a held request.
type turn struct {
	room    *waitingRoom
	handler *Handler
	request store.Request
	left    bool // its client has
}

var waitingRooms sync.Map // zone → *waitingRoom

func (p *places) room() *waitingRoom {
	w, ok := waitingRooms.Load(p.zone)
	if !ok {
		w, _ = waitingRooms.LoadOrStore(p.zone, &waitingRoom{takenBy: make(map[string]int64), queues: make(map[string]*queue)})
	}
	return w.(*waitingRoom)
}

// leave gives back the place of a request that was decided and isn't held.
func (w *waitingRoom) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeLocked(key, 1)
	w.giveBackLocked(key)
}

// join makes a place a turn. Answers of the store can overtake each other, so the
// receipts say where in the queue it is.
func (w *waitingRoom) join(h *Handler, r store.Request) *turn {
	t := &turn{room: w, handler: h, request: r}
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[r.Key]
	if q == nil {
		q = new(queue)
		w.queues[r.Key] = q
	}
	at := len(q.turns)
	for at > 0 && q.turns[at-1].isBehind(t) {
		at--
	}
	q.turns = slices.Insert(q.turns, at, t)
	w.giveBackLocked(r.Key)
	return t
}

// isBehind reports whether t was charged after another one of its key. Of different
// limits, as after a change of plan, the order in which they came is good enough: in a
// wrong order less is given back, never more.
func (t *turn) isBehind(other *turn) bool {
	limit := t.request.Limits[0]
	return limit.ID == other.request.Limits[0].ID && limit.Later(t.request.Decisions[0].Receipt, other.request.Decisions[0].Receipt)
}

// pass ends a turn whose time has come, and those before it whose clients have left:
// time has given back what they were charged.
func (t *turn) pass() {
	w, key := t.room, t.request.Key
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[key]
	end := slices.Index(q.turns, t) + 1
	t.left = true
	stay := slices.DeleteFunc(slices.Clone(q.turns[:end]), func(t *turn) bool { return t.left }) // some wait for another limit
	q.turns = slices.Replace(q.turns, 0, end, stay...)
	w.freeLocked(key, end-len(stay))
	w.giveBackLocked(key)
}

// abandon notes that the client has left.
func (t *turn) abandon() {
	w := t.room
	w.mu.Lock()
	defer w.mu.Unlock()
	t.left = true
	t.request.Decisions = slices.Clone(t.request.Decisions) // they are part of the answer, which ends
	w.giveBackLocked(t.request.Key)
}

// givenBackAtOnce is how many turns are given back in one call of a store at most, if their
// work allows it.
const givenBackAtOnce = 100

// giveBackLocked gives back the charges at the end of a key's queue whose clients have
// left, the newest first, so that each finds its budget as it left it. While a request is
// being decided that waits: the request may be charged behind them. The lock is not held
// while the store is asked.
func (w *waitingRoom) giveBackLocked(key string) {
	q := w.queues[key]
	if q == nil || q.givingBack {
		return
	}
	q.givingBack = true
	for w.takenBy[key] == int64(len(q.turns)) {
		h, charged := q.takeLeft()
		if len(charged) == 0 {
			break
		}
		func() {
			w.mu.Unlock()
			defer w.mu.Lock()
			h.giveBack(charged)
		}()
		w.freeLocked(key, len(charged))
	}
	q.givingBack = false
	if len(q.turns) == 0 {
		delete(w.queues, key)
	}
}

// takeLeft takes turns off the end of the queue whose clients have left, and returns their
// charges, the newest first, and whose they are.
func (q *queue) takeLeft() (h *Handler, charged []store.Request) {
	n, work := len(q.turns), int64(0)
	for n > 0 && q.turns[n-1].left && len(charged) < givenBackAtOnce && (h == nil || h == q.turns[n-1].handler) {
		t := q.turns[n-1]
		if work += t.backWork(); work > algorithms.MostWork && len(charged) > 0 {
			break
		}
		n--
		h = t.handler
		charged = append(charged, t.request)
	}
	q.turns = slices.Delete(q.turns, n, len(q.turns))
	return h, charged
}

// backWork is how many steps it takes to give the charge back; see [algorithms.MostWork].
func (t *turn) backWork() (work int64) {
	for _, l := range t.request.Limits {
		work += l.BackWork()
	}
	return work
}

// freeLocked gives back places of a key.
func (w *waitingRoom) freeLocked(key string, n int) {
	w.taken -= int64(n)
	if w.takenBy[key] -= int64(n); w.takenBy[key] == 0 {
		delete(w.takenBy, key)
	}
}
