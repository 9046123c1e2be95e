package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Operations of concurrent requests travel together. A few messages are in flight at a time, and
// calls that come meanwhile queue up and make the next message. If Redis is far away, further
// messages are sent every sendInterval, so that no call waits for long. A call that has nothing
// to wait for is sent at once, alone.
//
// A take waits in the queue while Redis keeps answering, but no longer than MaxQueued. If a
// message gets no reply in time, and no other message got one meanwhile, all takes in the queue
// fail at once.

// queue holds the calls of a [Store] that are not sent yet.
type queue struct {
	mu       sync.Mutex
	calls    []*pendingCall
	inFlight int       // messages in flight
	last     time.Time // when the last message was sent
	answered time.Time // when the last reply came
	bounds   inFlightBounds
	timer    *time.Timer // sends the next message without waiting for a reply; or nil

	// givingBack has the keys whose charges a message in flight gives back. Connections can
	// reorder messages, so further calls of such a key wait here until that message has ended.
	givingBack map[string][]*pendingCall
}

// inFlightBounds bound the number of messages in flight. With more messages in flight, each is
// smaller, and a near Redis needs more time in all. With fewer, calls wait for a far Redis.
type inFlightBounds struct {
	eager int // up to this number, a message is sent without waiting for anything
	max   int // the number in flight at most
}

const maxInFlight = 32

// defaultBounds are the bounds of every store, except in tests.
var defaultBounds = inFlightBounds{eager: 2, max: maxInFlight}

const (
	// sendInterval is the time between messages when few or more are in flight.
	sendInterval = 250 * time.Microsecond
	// MaxQueued is how long a take waits in the queue at most while Redis answers.
	MaxQueued = time.Second
	// maxCorrectionWait is how long a give-back waits at most. No request waits for it.
	maxCorrectionWait = 5 * time.Second
)

// errBusy is the error of a call that was not sent in time: Redis answers, but Redis or this
// process is overloaded.
var errBusy = &store.Error{
	Reason: store.ReasonBusy,
	Err:    errors.New("redisstore: a request was not sent in time: this instance or its Redis is overloaded"),
}

// errLate is the error of calls that Redis ran after their last instant. Nothing was done.
var errLate = errors.New("redisstore: Redis came to it too late")

// pendingCall is the work of one caller: a take, corrections of one key, or a set of slots.
type pendingCall struct {
	requests    []store.Request // to take for
	corrections []store.Correction
	setName     string // the name of slots to set

	ctx       context.Context // of a take; the caller leaves when it is done
	now       algorithms.Micros
	alone     bool // travels without others
	key       string
	slotNames []string // of the slots that the call takes, looks at or sets
	queued    time.Time
	work      int64 // see [algorithms.MaxWork]
	sent      bool  // or about to be sent; guarded by the mutex of the queue
	resent    bool  // has been sent before, and certainly didn't run

	allowed bool
	err     error
	done    chan struct{}      // receives once allowed and err are set
	onEnd   func(*pendingCall) // if not nil, called instead of sending to done
}

var pendingCalls = sync.Pool{New: func() any { return &pendingCall{done: make(chan struct{}, 1)} }}

func (c *pendingCall) release() {
	*c = pendingCall{done: c.done}
	pendingCalls.Put(c)
}

func (c *pendingCall) end(allowed bool, err error) {
	c.allowed, c.err = allowed, err
	if c.onEnd != nil {
		c.onEnd(c)
		return
	}
	c.done <- struct{}{}
}

// maySendLocked reports whether another message may be sent now.
func (q *queue) maySendLocked() bool {
	return q.inFlight < q.bounds.eager || q.inFlight < q.bounds.max && time.Since(q.last) >= sendInterval
}

// queryNodes puts a call into the queue. If a message may be sent now, it is sent: by ask itself if the
// caller waits for the call anyway, else by a new goroutine.
func (s *Store) enqueue(c *pendingCall, waits bool) {
	q := &s.queue
	q.mu.Lock()
	q.calls = append(q.calls, c)
	if !waits || !q.maySendLocked() {
		s.scheduleSendLocked()
		q.mu.Unlock()
		return
	}
	q.inFlight++
	b := s.nextBatchLocked()
	q.mu.Unlock()
	if b == nil {
		return
	}
	s.send(b, false)
	if b := s.nextBatch(); b != nil {
		go s.sendAll(b)
	}
}

// await waits for the end of a take. The call must not be used after that. If the caller leaves
// before the call is sent, await returns at once, and the call is dropped when its turn comes.
func (s *Store) await(c *pendingCall) (allowed bool, err error) {
	select {
	case <-c.done:
	case <-c.ctx.Done():
		s.queue.mu.Lock()
		sent := c.sent
		s.queue.mu.Unlock()
		if !sent {
			return false, c.ctx.Err()
		}
		<-c.done
	}
	allowed, err = c.allowed, c.err
	c.release()
	return allowed, err
}

// sendAlone sends a call by itself, past the queue, and returns its error. It waits only for
// messages in flight that the call must not overtake. With asking, the call follows an ASK
// redirect of another node of the cluster.
func (s *Store) sendAlone(c *pendingCall, deadline time.Time, asking bool) error {
	c.alone = true
	for {
		b := batches.Get().(*batch)
		s.queue.mu.Lock()
		free, sends := s.canSendLocked(c), false
		if free {
			b.calls = append(b.calls, c)
			if sends = s.prepareLocked(b); sends {
				s.queue.inFlight++
			}
		}
		s.queue.mu.Unlock()
		if free && !sends { // the count is set by now
			b.release()
			return nil
		}
		if free {
			s.send(b, asking)
			go s.sendAll(s.nextBatch()) // the call may be in the queue again
			<-c.done
			return c.err
		}
		batches.Put(b)
		if !time.Now().Before(deadline) {
			return errBusy
		}
		time.Sleep(time.Millisecond)
	}
}

// canSendLocked reports whether a call may be sent without waiting for a message in flight.
func (s *Store) canSendLocked(c *pendingCall) bool {
	_, gives := s.queue.givingBack[c.key]
	return !gives && s.slotCounts.canSend(c)
}

// scheduleSendLocked makes sure that the calls in the queue are sent before long.
func (s *Store) scheduleSendLocked() {
	q := &s.queue
	switch {
	case len(q.calls) == 0:
	case q.maySendLocked():
		q.inFlight++
		if b := s.nextBatchLocked(); b != nil {
			go s.sendAll(b)
		}
	case q.timer == nil && q.inFlight < q.bounds.max:
		q.timer = time.AfterFunc(sendInterval, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.timer = nil
			s.scheduleSendLocked()
		})
	}
}

// sendAll sends a batch, and then the calls that have queued up meanwhile.
func (s *Store) sendAll(b *batch) {
	for ; b != nil; b = s.nextBatch() {
		s.send(b, false)
	}
}

// nextBatch returns the next batch after a message has ended. If there is no batch, or it is too early
// to send one, next notes that one message less is in flight, and returns nil.
func (s *Store) nextBatch() *batch {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight > q.bounds.eager && time.Since(q.last) < sendInterval {
		q.inFlight--
		s.scheduleSendLocked()
		return nil
	}
	return s.nextBatchLocked()
}

// nextBatchLocked takes the next batch out of the queue: as many calls as one message may hold, by
// their number and their work. If there is no batch, nextLocked notes that one message less is in
// flight, and returns nil.
func (s *Store) nextBatchLocked() *batch {
	q := &s.queue
	b := batches.Get().(*batch)
	for len(q.calls) > 0 {
		s.fillLocked(b)
		if s.prepareLocked(b) {
			q.last = time.Now()
			return b
		}
		b.reset()
	}
	batches.Put(b)
	q.inFlight--
	return nil
}

// fillLocked moves calls from the queue to a batch. A batch has at most Options.Batch takes. It has
// more if the next calls would have to wait for its end, because it gives back to their key: if all
// requests are of one key, only one message is in flight, and Redis may be far away.
func (s *Store) fillLocked(b *batch) {
	q := &s.queue
	now := time.Now()
	takes, work, n := 0, int64(0), 0
	var gives, slots string // the key of the last corrections, and the last name of slots
	for ; n < len(q.calls); n++ {
		c := q.calls[n]
		if (c.alone || b.alone()) && len(b.calls) > 0 {
			break
		}
		if takes >= max(s.options.Batch, 1) && (gives == "" || c.key != gives) && !s.slotCounts.joins(c, slots) {
			break
		}
		if s.dropExpiredLocked(c, now) || s.parkIfBlockedLocked(c) {
			continue
		}
		if work += c.work; work > algorithms.MaxWork && len(b.calls) > 0 {
			break
		}
		if c.requests != nil {
			takes++
		}
		if c.corrections != nil {
			gives = c.key
		}
		if len(c.slotNames) > 0 {
			slots = c.slotNames[0]
		}
		c.sent = true
		b.calls = append(b.calls, c)
	}
	rest := copy(q.calls, q.calls[n:])
	clear(q.calls[rest:])
	q.calls = q.calls[:rest]
}

// dropExpiredLocked ends a call that is not worth sending any more, and reports whether it did.
func (s *Store) dropExpiredLocked(c *pendingCall, now time.Time) bool {
	if c.ctx != nil && c.ctx.Err() != nil {
		c.end(false, c.ctx.Err())
		return true
	}
	if now.Sub(c.queued) > c.maxWait() {
		if c.onEnd != nil { // it may ask the store again, and the queue is locked
			go c.end(false, errBusy)
		} else {
			c.end(false, errBusy)
		}
		return true
	}
	return false
}

// takesSlot reports whether the call takes a slot of its n-th name.
func (c *pendingCall) takesSlot(n int) bool {
	for i := range c.requests {
		if r := &c.requests[i]; r.Slots != nil {
			if n == 0 {
				return !r.Peek
			}
			n--
		}
	}
	return false
}

// maxWait returns how long the call may be queued.
func (c *pendingCall) maxWait() time.Duration {
	switch {
	case c.requests != nil:
		return MaxQueued
	case c.corrections != nil:
		return maxCorrectionWait
	default: // a set has no deadline
		return math.MaxInt64
	}
}

// parkIfBlockedLocked reports whether a call must wait for a message in flight. If so, the end of that
// message puts the call back into the queue.
func (s *Store) parkIfBlockedLocked(c *pendingCall) bool {
	if len(s.queue.givingBack) > 0 {
		if c.requests == nil {
			if s.parkLocked(c.key, c) {
				return true
			}
		}
		for i := range c.requests {
			if s.parkLocked(c.requests[i].Key, c) {
				return true
			}
		}
	}
	return len(c.slotNames) > 0 && s.slotCounts.park(s, c)
}

func (s *Store) parkLocked(key string, c *pendingCall) bool {
	parked, gives := s.queue.givingBack[key]
	if gives {
		s.queue.givingBack[key] = append(parked, c)
	}
	return gives
}

// prepareLocked notes the keys and slots that a batch is about to change. It reports whether
// there is anything to send.
func (s *Store) prepareLocked(b *batch) bool {
	s.slotCounts.prepare(b)
	sends := len(b.sets) > 0
	for _, c := range b.calls {
		sends = sends || c.setName == ""
		if c.corrections != nil {
			if s.queue.givingBack == nil {
				s.queue.givingBack = make(map[string][]*pendingCall)
			}
			if _, known := s.queue.givingBack[c.key]; !known {
				s.queue.givingBack[c.key] = nil
			}
		}
	}
	return sends
}

// recordResult is called when a message has ended. It puts the calls that are sent again into the queue,
// before all others. Behind them it puts the calls that waited for the message.
func (s *Store) messageEnded(b *batch, again []*pendingCall, answered bool) {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if answered {
		q.answered = time.Now()
	}
	for _, c := range again {
		c.sent = false
	}
	for _, c := range b.calls {
		if c.corrections != nil {
			again = append(again, q.givingBack[c.key]...)
			delete(q.givingBack, c.key)
		}
	}
	q.putBackLocked(again)
}

// putBackLocked puts calls back into the queue, in the order in which all were asked for. A take must
// not overtake a give-back that was asked for before it and is still queued: they can have a key in
// common that is not the one for which the take waited.
func (q *queue) putBackLocked(calls []*pendingCall) {
	if len(calls) == 0 {
		return
	}
	slices.SortStableFunc(calls, func(a, b *pendingCall) int { return a.queued.Compare(b.queued) })
	rest := q.calls
	q.calls = make([]*pendingCall, 0, len(calls)+len(rest))
	for _, c := range calls {
		n := 0
		for n < len(rest) && rest[n].queued.Before(c.queued) {
			n++
		}
		q.calls = append(append(q.calls, rest[:n]...), c)
		rest = rest[n:]
	}
	q.calls = append(q.calls, rest...)
}

// requeue puts calls that have waited for others into the queue, before all others.
func (s *Store) requeue(parked []*pendingCall) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.queue.putBackLocked(parked)
	s.scheduleSendLocked()
}

// failQueue ends all takes in the queue with err, unless a reply has come since an instant.
func (s *Store) failQueue(since time.Time, err error) {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answered.After(since) {
		return
	}
	kept := q.calls[:0]
	for _, c := range q.calls {
		if c.requests == nil {
			kept = append(kept, c)
		} else {
			c.end(false, err)
		}
	}
	clear(q.calls[len(kept):])
	q.calls = kept
}
