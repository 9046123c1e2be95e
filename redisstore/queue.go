package redisstore

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Calls of concurrent HTTP requests are sent in batches. One batch is in flight at a time, and calls that arrive
// meanwhile queue up and make the next one. If Redis is far away, or the distance isn't known yet, further batches are
// sent meanwhile, so that no call waits for long: see distance. A call that finds room for another batch is sent at
// once, with what the queue holds. A batch has one message, or in a cluster one for each hash slot.
//
// A take waits in the queue while Redis keeps replying, but no longer than MaxQueued, or the timeout if that is longer.
// If a batch gets no reply in time, and no other batch got one meanwhile, all takes that are not sent yet fail at
// once. If a message is lost, the takes that wait for its end fail, too. The others wait only until it has stalled.

// queue holds the calls of a [Store] that are not sent yet. The mutex of the store's keyStates guards it.
type queue struct {
	calls       []*pendingCall
	inFlight    []*batch  // batches in flight, in the order in which they were sent
	lastSent    time.Time // when the last batch was sent
	lastReply   time.Time // when the last reply came
	lastFailure time.Time // when the last batch ended without a reply
	failure     error     // its error; nil once a reply has come
	maxInFlight int       // batches that may be in flight to a Redis that is far away
	shares      bool      // whether calls share batches, so that waiting for others saves work
	distance    distance
	stall       time.Duration // the time after which a batch has stalled
	timer       *time.Timer   // sends the next batch without waiting for a reply; or nil
}

// newQueue returns the queue of a store.
func newQueue(o Options) queue {
	return queue{maxInFlight: cmp.Or(o.maxInFlight, maxInFlight), shares: o.Batch >= 0, stall: min(o.Timeout/4, maxStall)}
}

const (
	// MaxQueued is the maximum time that a take waits in the queue while Redis replies, unless the timeout is longer. The
	// queue looks at the time when the take's turn comes.
	MaxQueued = time.Second
	// maxCorrectionQueued is the maximum time that a correction waits in the queue, unless the timeout is longer. No
	// request waits for a correction.
	maxCorrectionQueued = 5 * time.Second
)

// errBusy is the error of a call that was not sent in time. Redis replies, but Redis or this process is overloaded.
var errBusy = &store.Error{
	Reason: store.ReasonBusy,
	Err:    errors.New("redisstore: a request was not sent in time: this instance or its Redis is overloaded"),
}

// errLate is the error of a message that Redis ran before its not-before or after its not-after. The script did
// nothing. Only sets of slots end with it, because other calls are sent again.
var errLate = errors.New("redisstore: Redis ran the message too early or too late, and did nothing")

// pendingCall is the work of one caller: a take, corrections of one key, or a set of slots.
type pendingCall struct {
	requests    []store.ZoneRequest // of a take
	corrections []store.Correction
	releases    []*release // one for each correction, nil if it has none
	setName     string     // of a set: the name of the count

	ctx    context.Context // of a call with await; the caller leaves when ctx is done
	now    algorithms.Micros
	alone  bool // needs its own batch
	asking bool // if alone: follows an ASK redirect of another node of the cluster
	key    string
	slots  []slotsUse
	queued time.Time
	work   int64  // see [algorithms.MaxWork]
	sent   bool   // or about to be sent; guarded by keyStates.mu
	store  *Store // to whose queue the call returns from keyStates.waiting
	resent int    // how often it was sent again, because it certainly did not run
	missed int    // how often it was sent again, because Redis lacked the script

	allowed bool
	err     error
	reports []func()           // of corrections: see store.Correction.Charged
	done    chan struct{}      // receives once allowed and err are set
	onEnd   func(*pendingCall) // if not nil, called instead of sending to done
}

// newCall returns a zero call with its channel. It takes an ended one, if there is one.
func (s *Store) newCall() *pendingCall {
	if c, ok := s.endedCalls.Get().(*pendingCall); ok {
		return c
	}
	return &pendingCall{done: make(chan struct{}, 1)}
}

// releaseCall keeps an ended call for newCall.
func (s *Store) releaseCall(c *pendingCall) {
	*c = pendingCall{done: c.done}
	s.endedCalls.Put(c)
}

// end ends the call. An onEnd may call the store, and then the call never ends under keyStates.mu.
func (c *pendingCall) end(allowed bool, err error) {
	c.allowed, c.err = allowed, err
	if c.onEnd != nil {
		c.onEnd(c)
		return
	}
	c.done <- struct{}{}
}

func (c *pendingCall) fail(err error) { c.end(false, err) }

// maySendLocked reports whether another batch may be sent now.
func (q *queue) maySendLocked() bool {
	n := len(q.countedLocked())
	switch {
	case len(q.inFlight) >= q.maxInFlight:
		return false
	case n == 0 || !q.shares:
		return true
	case q.distance.needsProbe(q.maxInFlight):
		return false
	}
	return n < q.distance.bound(q.maxInFlight) && (n < maxUnspaced || time.Since(q.lastSent) >= sendInterval)
}

// countedLocked returns the batches in flight that have not stalled.
func (q *queue) countedLocked() []*batch {
	for i, b := range q.inFlight {
		if time.Since(b.sent) < q.stall {
			return q.inFlight[i:]
		}
	}
	return nil
}

// enqueueOrSend puts a call into the queue, and sends a batch if there is room. If the call has no onEnd, the caller
// waits for the call anyway. So enqueueOrSend itself makes the round trip, which needs no other goroutine. It returns
// after the timeout at the latest, and doesn't look at the call's ctx before. The batch is without the call if
// the call must wait for another one. For a call with onEnd, a new goroutine sends the batch.
func (s *Store) enqueueOrSend(c *pendingCall) {
	q, mu := &s.queue, &s.keys.mu
	mu.Lock()
	if c.onEnd != nil || !q.maySendLocked() {
		s.enqueueLocked(c)
		mu.Unlock()
		return
	}
	q.calls = append(q.calls, c)
	b := s.nextBatchLocked()
	mu.Unlock()
	if b == nil {
		return
	}
	s.sendBatch(b)
	if b := s.finishAndNext(b); b != nil {
		go s.sendBatches(b)
	}
}

func (s *Store) enqueueLocked(c *pendingCall) {
	s.queue.calls = append(s.queue.calls, c)
	s.scheduleSendLocked()
}

// await waits for the end of a call with ctx, and releases the call. If the caller gives up while the call is in the
// queue, await returns at once, and the call is dropped when its turn comes.
func (s *Store) await(c *pendingCall) (allowed bool, err error) {
	select {
	case <-c.done:
	case <-c.ctx.Done():
		s.keys.mu.Lock()
		sent := c.sent
		s.keys.mu.Unlock()
		if !sent {
			return false, c.ctx.Err()
		}
		<-c.done
	}
	allowed, err = c.allowed, c.err
	s.releaseCall(c)
	return allowed, err
}

// scheduleSendLocked makes sure that the calls in the queue are sent soon. While a probe is due, it looks again every
// sendInterval until no other batch is in flight, or all have stalled.
func (s *Store) scheduleSendLocked() {
	q := &s.queue
	switch {
	case len(q.calls) == 0:
	case q.maySendLocked():
		if b := s.nextBatchLocked(); b != nil {
			go s.sendBatches(b)
		}
	case q.timer == nil && len(q.inFlight) < q.maxInFlight:
		later := sendInterval
		if counted := q.countedLocked(); len(counted) >= q.distance.bound(q.maxInFlight) {
			later = q.stall - time.Since(counted[0].sent)
		}
		q.timer = time.AfterFunc(later, func() {
			s.keys.mu.Lock()
			defer s.keys.mu.Unlock()
			q.timer = nil
			s.scheduleSendLocked()
		})
	}
}

// sendBatches sends a batch, and then the calls that have queued up by then.
func (s *Store) sendBatches(b *batch) {
	for ; b != nil; b = s.finishAndNext(b) {
		s.sendBatch(b)
	}
}

// finishAndNext takes an ended batch out of those in flight, and releases it. It returns the next batch, or nil if the
// queue is empty or it is too early to send.
func (s *Store) finishAndNext(ended *batch) *batch {
	defer ended.release()
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	q := &s.queue
	q.inFlight = slices.DeleteFunc(q.inFlight, func(b *batch) bool { return b == ended })
	if !q.maySendLocked() {
		s.scheduleSendLocked()
		return nil
	}
	return s.nextBatchLocked()
}

// nextBatchLocked takes the next batch out of the queue: as many calls as a batch may hold, by their number and
// their work. If no call can be sent, nextBatchLocked returns nil.
func (s *Store) nextBatchLocked() *batch {
	q := &s.queue
	b := batches.Get().(*batch)
	b.isProbe = q.shares && q.distance.needsProbe(q.maxInFlight)
	if s.fillLocked(b); len(b.calls) == 0 {
		b.release()
		return nil
	}
	b.sent = time.Now()
	q.lastSent, q.inFlight = b.sent, append(q.inFlight, b)
	if b.isProbe {
		q.distance.probed = b.sent
	}
	return b
}

// fillLocked moves calls from the queue to a batch, until it has no room for the next one. Each call gets into the
// batch, waits or ends.
func (s *Store) fillLocked(b *batch) {
	q, now := &s.queue, time.Now()
	most := max(s.options.Batch, 1)
	if b.isProbe {
		most = 1
	}
	n := 0
	for ; n < len(q.calls) && s.keys.fitsLocked(b, q.calls[n], most); n++ {
		if c := q.calls[n]; !s.dropExpiredLocked(c, now) && s.keys.admitLocked(s, b, c, now) {
			b.add(c)
		}
	}
	q.calls = slices.Delete(q.calls, 0, n)
}

// dropExpiredLocked ends a call whose caller has given up, or that was queued for too long. It
// reports whether the call has ended.
func (s *Store) dropExpiredLocked(c *pendingCall, now time.Time) bool {
	if c.ctx != nil && c.ctx.Err() != nil {
		c.fail(c.ctx.Err())
		return true
	}
	if now.Sub(c.queued) <= c.maxQueued(s.options.Timeout) {
		return false
	}
	err := s.queue.lateErrorLocked(c.queued)
	switch {
	case err == nil:
		return false
	case c.onEnd != nil: // onEnd may call the store, whose queue is locked
		go c.fail(err)
	default:
		c.fail(err)
	}
	return true
}

// lateErrorLocked returns the error of a call that was queued at an instant and not sent in time. It returns nil if
// neither a reply nor a failure has come since. Then this process stood still.
func (q *queue) lateErrorLocked(queued time.Time) error {
	switch {
	case q.failure != nil && q.lastFailure.After(queued):
		return q.failure
	case q.lastReply.After(queued):
		return errBusy
	}
	return nil
}

// maxQueued returns how long the call may be queued in a store with a timeout.
func (c *pendingCall) maxQueued(timeout time.Duration) time.Duration {
	switch {
	case c.requests != nil:
		return max(MaxQueued, timeout)
	case c.corrections != nil:
		return max(maxCorrectionQueued, timeout)
	default: // a set waits as long as necessary
		return math.MaxInt64
	}
}

// settleBatch notes the end of a batch, which counts as in flight until finishAndNext. The calls to send again, and those
// that have waited for the batch, return to their queues. Takes behind a lost message fail. If Redis is silent, all takes
// that are not sent yet fail.
func (s *Store) settleBatch(b *batch) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	s.noteRepliesLocked(b)
	silence := s.queue.silenceLocked(b)
	var again []*pendingCall
	for _, m := range b.messages {
		again = append(again, s.keys.endLocked(s, m, b.deadline, silence)...)
	}
	if silence != nil {
		s.failUnsentLocked(silence)
	}
	requeueLocked(again)
}

// noteRepliesLocked records whether Redis has replied to a batch.
func (s *Store) noteRepliesLocked(b *batch) {
	q := &s.queue
	if b.replied {
		q.lastReply, q.failure = time.Now(), nil
		return
	}
	for _, m := range b.messages {
		if m.err == nil || errors.Is(m.err, errTooLarge) {
			continue
		}
		q.failure, q.lastFailure = m.err, time.Now()
		if !isTimeout(m.err) { // Redis may start again, without its data
			s.keys.table.Distrust()
		}
	}
}

// silenceLocked returns the error of the takes that are not sent yet, if Redis is silent. Then a batch got no reply in
// time, and no other batch got one since it began. A message whose calls are all sent again shows no silence, because it
// was never sent.
func (q *queue) silenceLocked(b *batch) error {
	var timedOut error
	for _, m := range b.messages {
		if isTimeout(m.err) && len(m.calls) > 0 {
			timedOut = m.err
		}
	}
	if timedOut == nil || q.lastReply.After(b.began) {
		return nil
	}
	return &store.SharedError{Err: &store.Error{Reason: store.ReasonSilent, Err: timedOut}}
}

// failUnsentLocked ends all takes that are not sent yet with err.
func (s *Store) failUnsentLocked(err error) {
	s.queue.calls = slices.DeleteFunc(s.queue.calls, func(c *pendingCall) bool { return c.failTake(err) })
	s.keys.failTakesLocked(s, err)
}
