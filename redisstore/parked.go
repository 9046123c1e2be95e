package redisstore

import (
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Connections can reorder messages. So a call is parked while a batch is in flight that it must not overtake. It
// returns to its queue when the batch has ended.
//
// The field correcting of a queue parks the calls of a key with corrections in flight. The field parked of slotCounts
// parks the calls whose slots must not be taken or set now. The nodes of a cluster share it.

// admitLocked adds a call to a batch, unless the call must wait for a batch in flight. If failure is not nil, a
// message was lost, and the call must end with its failure.
func (s *Store) admitLocked(b *batch, c *pendingCall) (admitted bool, failure error) {
	if _, waits := s.queue.correctedKeyLocked(c); waits {
		return false, nil
	}
	if len(c.slotNames) > 0 {
		if admitted, failure = s.slotCounts.admit(b, c); !admitted {
			return false, failure
		}
	}
	b.calls = append(b.calls, c)
	return true, nil
}

// admitOrParkLocked is admitLocked for a call of the queue. If it doesn't add the call, the call is parked or has
// ended.
func (s *Store) admitOrParkLocked(b *batch, c *pendingCall) (admitted bool) {
	if key, waits := s.queue.correctedKeyLocked(c); waits {
		s.queue.correcting[key] = append(s.queue.correcting[key], c)
		return false
	}
	if len(c.slotNames) > 0 && !s.slotCounts.admitOrPark(s, b, c) {
		return false
	}
	b.calls = append(b.calls, c)
	return true
}

// correctedKeyLocked returns a key of the call that has corrections in flight.
func (q *queue) correctedKeyLocked(c *pendingCall) (key string, found bool) {
	if len(q.correcting) == 0 {
		return "", false
	}
	if c.requests == nil {
		_, found = q.correcting[c.key]
		return c.key, found
	}
	for i := range c.requests {
		if _, found = q.correcting[c.requests[i].Key]; found {
			return c.requests[i].Key, true
		}
	}
	return "", false
}

// admit adds the operations of a call on slots to a batch, as admitLocked says.
func (counts *slotCounts) admit(b *batch, c *pendingCall) (admitted bool, failure error) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	_, wait, failure := counts.admitLocked(b, c)
	return wait == 0, failure
}

// admitOrPark adds the operations of a call on slots to a batch. If it doesn't, the call is parked or has ended.
func (counts *slotCounts) admitOrPark(s *Store, b *batch, c *pendingCall) (admitted bool) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	name, wait, failure := counts.admitLocked(b, c)
	switch {
	case failure != nil:
		c.fail(failure)
	case wait > 0:
		c.store = s
		counts.parked[name] = append(counts.parked[name], c)
		if wait < algorithms.Forever && len(counts.parked[name]) == 1 {
			time.AfterFunc(time.Duration(wait)*time.Microsecond, func() { counts.unpark(name, nil) })
		}
	}
	return wait == 0
}

// unblockLocked returns the calls that are parked behind the corrections of a call. Further calls of the key
// are not parked.
func (q *queue) unblockLocked(c *pendingCall) (parked []*pendingCall) {
	if c.corrections != nil {
		parked = q.correcting[c.key]
		delete(q.correcting, c.key)
	}
	return parked
}

// unpark puts the calls that are parked at a name back into their queues. If failure is not nil, takes end
// with it instead.
func (counts *slotCounts) unpark(name string, failure error) {
	counts.mu.Lock()
	parked := counts.parked[name]
	delete(counts.parked, name)
	counts.mu.Unlock()
	if failure != nil {
		parked = failTakes(parked, failure)
	}
	for len(parked) > 0 {
		s := parked[0].store
		var same, others []*pendingCall
		for _, c := range parked {
			if c.store == s {
				same = append(same, c)
			} else {
				others = append(others, c)
			}
		}
		s.requeue(same)
		parked = others
	}
}

// requeue puts parked calls back into the queue.
func (s *Store) requeue(parked []*pendingCall) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.queue.putBackLocked(parked)
	s.scheduleSendLocked()
}

// putBackLocked puts calls back into the queue, in the order in which they were first queued. A
// take must not overtake a correction that was queued before it. They can share another key than the
// one at which the take was parked.
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

// failTakesLocked ends all takes that are not sent yet with err.
func (s *Store) failTakesLocked(err error) {
	q := &s.queue
	q.failedAll = datedError{err, time.Now()}
	q.calls = failTakes(q.calls, err)
	for key, parked := range q.correcting {
		q.correcting[key] = failTakes(parked, err)
	}
	s.slotCounts.failTakes(s, err)
}

// failTakes ends the takes of a store that are parked.
func (counts *slotCounts) failTakes(s *Store, err error) {
	counts.mu.Lock()
	defer counts.mu.Unlock()
	for name, parked := range counts.parked {
		parked = slices.DeleteFunc(parked, func(c *pendingCall) bool { return c.store == s && c.failTake(err) })
		if counts.parked[name] = parked; len(parked) == 0 {
			delete(counts.parked, name)
		}
	}
}

// failTakes ends the takes among calls with err, and returns the other calls.
func failTakes(calls []*pendingCall, err error) (others []*pendingCall) {
	return slices.DeleteFunc(calls, func(c *pendingCall) bool { return c.failTake(err) })
}

// failTake ends the call with err if it is a take, and reports whether it is.
func (c *pendingCall) failTake(err error) bool {
	isTake := c.requests != nil
	if isTake {
		c.fail(err)
	}
	return isTake
}
