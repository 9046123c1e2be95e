package simulate

import "github.com/caddy-rate-limit/caddy-rate-limit/algorithms"

// event is something that will happen.
type event struct {
	at     algorithms.Micros
	number uint64 // orders the events of one instant
	kind   eventKind
	flight *flight   // of all events but eventAsk
	line   *slotLine // of eventAsk
}

type eventKind uint8

const (
	eventEnd    eventKind = iota // a response is complete
	eventPass                    // a delayed request passes
	eventGiveUp                  // a request has waited for a slot as long as it can
	eventAsk                     // the first request of a line may ask for a slot
)

func (e *event) before(other *event) bool {
	return e.at < other.at || e.at == other.at && e.number < other.number
}

// eventQueue is a binary heap of events. Events of one instant leave it in the order in which they came.
type eventQueue struct {
	heap   []event
	pushed uint64
}

func (q *eventQueue) push(e event) {
	q.pushed++
	e.number = q.pushed
	at := len(q.heap)
	q.heap = append(q.heap, e)
	for at > 0 {
		parent := (at - 1) / 2
		if q.heap[parent].before(&e) {
			break
		}
		q.heap[at] = q.heap[parent]
		at = parent
	}
	q.heap[at] = e
}

// pop removes and returns the first event. There must be one.
func (q *eventQueue) pop() event {
	first, last := q.heap[0], len(q.heap)-1
	moved := q.heap[last]
	q.heap[last] = event{} // refers to no flight
	q.heap = q.heap[:last]
	for at := 0; last > 0; {
		child := 2*at + 1
		if child+1 < last && q.heap[child+1].before(&q.heap[child]) {
			child++
		}
		if child >= last || moved.before(&q.heap[child]) {
			q.heap[at] = moved
			break
		}
		q.heap[at] = q.heap[child]
		at = child
	}
	return first
}
