package redisstore

import (
	"cmp"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// Connections can reorder messages. So a call waits while a message is in flight that it must not overtake. This is a
// message with corrections of its key, or one with its slots, as package slots says. The call leaves the queue, and
// returns to it when that message has ended.

// awaited names the messages for which a call waits: the one with corrections of a key, or those with slots of a name.
type awaited struct{ correctedKey, slots string }

// fitsLocked reports whether the next call of a queue may join a batch, which has at most so many takes. More takes
// join it only if the batch corrects their key or sets their slots. They would have to wait for its end. Otherwise
// the requests of a single key would have one small batch in flight at a time. This is slow if Redis is far away.
func (k *keyStates) fitsLocked(b *batch, c *pendingCall, most int) bool {
	switch {
	case len(b.calls) == 0:
		return true
	case c.alone || b.isAlone() || b.work+c.work > algorithms.MaxWork:
		return false
	case b.takes < most:
		return true
	}
	return k.correcting[c.key] == b || slices.ContainsFunc(c.slots, b.sets)
}

// admitLocked prepares a call of a store for a batch, and reports whether the batch gets the call. Otherwise the call
// waits, or has ended.
func (k *keyStates) admitLocked(s *Store, b *batch, c *pendingCall, now time.Time) bool {
	if key, found := k.correctedKeyLocked(b, c); found {
		k.addWaitingLocked(s, c, awaited{correctedKey: key}, algorithms.Forever)
		return false
	}
	if len(c.slots) > 0 && !k.admitSlotsLocked(s, b, c, k.at(now)) {
		return false
	}
	if c.corrections != nil {
		k.correcting[c.key] = b
		k.addReleasesLocked(b, c, k.at(now))
	}
	return true
}

// correctedKeyLocked returns a key of the call with corrections in flight in another batch.
func (k *keyStates) correctedKeyLocked(b *batch, c *pendingCall) (key string, found bool) {
	if len(k.correcting) == 0 {
		return "", false
	}
	for i := range c.requests {
		if in := k.correcting[c.requests[i].Key]; in != nil && in != b {
			return c.requests[i].Key, true
		}
	}
	in := k.correcting[c.key]
	return c.key, in != nil && in != b
}

// admitSlotsLocked is admitLocked for the slots of a call. A take doesn't wait until a lost message can no longer run.
// It ends with the failure of this message, because its caller asked a Redis that failed.
func (k *keyStates) admitSlotsLocked(s *Store, b *batch, c *pendingCall, now algorithms.Micros) bool {
	uses := slices.Clip(c.slots)
	if c.setName == "" { // the slots that other tenants have given back before are free for a take
		for _, u := range c.slots {
			for _, set := range k.sets[wire.OfCount(u.name)] {
				if set.setName != u.name && !set.queued.After(c.queued) {
					uses = append(uses, set.slots...)
				}
			}
		}
	}
	for _, u := range uses {
		if b.slotsOp(u.name) != nil { // its operation comes before all takes of the batch
			continue
		}
		wait := k.table.Wait(u.name, now)
		if wait == 0 {
			continue
		}
		if c.requests != nil && wait < algorithms.Forever && k.lastLoss != nil { // a lost message can still run
			c.fail(k.lastLoss)
		} else {
			k.addWaitingLocked(s, c, awaited{slots: u.name}, wait)
		}
		return false
	}
	for _, u := range uses {
		k.addOpLocked(b, u.name, u.takes(), now)
	}
	if c.setName != "" && b.slotsOp(c.setName) == nil { // another call has set the count
		k.endSetLocked(c)
		c.end(true, nil)
		return false
	}
	return true
}

// addWaitingLocked lets a call of a store wait, but not longer than a time.
func (k *keyStates) addWaitingLocked(s *Store, c *pendingCall, a awaited, most algorithms.Micros) {
	c.store = s
	k.waiting[a] = append(k.waiting[a], c)
	if most < algorithms.Forever && len(k.waiting[a]) == 1 {
		time.AfterFunc(time.Duration(most)*time.Microsecond, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			requeueLocked(k.removeWaitingLocked(a))
		})
	}
}

func (k *keyStates) removeWaitingLocked(a awaited) []*pendingCall {
	calls := k.waiting[a]
	delete(k.waiting, a)
	return calls
}

// endLocked records the end of a message of a store. Without a reply, the message can run until the deadline.
// endLocked returns the calls to send again, and those that have waited for the message. If Redis is silent, or the
// message is lost, takes of this store among them fail. If it is lost, so do takes of other nodes of a cluster that have
// waited for its slots.
func (k *keyStates) endLocked(s *Store, m *message, deadline time.Time, silence error) (again []*pendingCall) {
	for _, c := range m.calls {
		k.endSetLocked(c)
		again = append(again, k.endCorrectionsLocked(c)...)
	}
	for _, c := range m.retries {
		c.sent, c.store = false, s
		again = append(append(again, c), k.endCorrectionsLocked(c)...)
	}
	failure := cmp.Or(silence, m.lost())
	again = failTakesOf(s, again, failure)
	k.recordSlotsLocked(m, deadline)
	for _, op := range m.slotsOps {
		forSlots := failTakesOf(s, k.removeWaitingLocked(awaited{slots: op.name}), failure)
		again = append(again, failTakesOf(nil, forSlots, m.lost())...)
	}
	return again
}

// endCorrectionsLocked notes that corrections of a call are in flight no more, and returns the calls that have waited for
// them.
func (k *keyStates) endCorrectionsLocked(c *pendingCall) []*pendingCall {
	if c.corrections == nil {
		return nil
	}
	delete(k.correcting, c.key)
	return k.removeWaitingLocked(awaited{correctedKey: c.key})
}

// countWaitingLocked returns how many calls of a store wait.
func (k *keyStates) countWaitingLocked(s *Store) (n int) {
	for _, calls := range k.waiting {
		for _, c := range calls {
			if c.store == s {
				n++
			}
		}
	}
	return n
}

// failTakesLocked ends the takes of a store that wait.
func (k *keyStates) failTakesLocked(s *Store, err error) {
	for a, calls := range k.waiting {
		if k.waiting[a] = failTakesOf(s, calls, err); len(k.waiting[a]) == 0 {
			delete(k.waiting, a)
		}
	}
}

// failTakesOf ends the takes of a store with err, or all if the store is nil. It returns the other calls. If err is nil,
// none fails.
func failTakesOf(s *Store, calls []*pendingCall, err error) []*pendingCall {
	return slices.DeleteFunc(calls, func(c *pendingCall) bool {
		return err != nil && (s == nil || c.store == s) && c.failTake(err)
	})
}

// failTake ends the call with err if it is a take, and reports whether it is.
func (c *pendingCall) failTake(err error) bool {
	isTake := c.requests != nil
	if isTake {
		c.fail(err)
	}
	return isTake
}

// requeueLocked puts calls back into their queues, and has them sent.
func requeueLocked(calls []*pendingCall) {
	byStore := make(map[*Store][]*pendingCall)
	for _, c := range calls {
		byStore[c.store] = append(byStore[c.store], c)
	}
	for s, calls := range byStore {
		s.queue.putBackLocked(calls)
		s.scheduleSendLocked()
	}
}

// putBackLocked puts calls back into the queue, in the order in which they were first queued. A take must not overtake
// a correction that was queued before it. They can share another key than the one for which the take has waited.
func (q *queue) putBackLocked(calls []*pendingCall) {
	byQueued := func(a, b *pendingCall) int { return a.queued.Compare(b.queued) }
	last := slices.MaxFunc(calls, byQueued)
	n := 0 // the later calls of a long queue stay where they are
	for n < len(q.calls) && byQueued(q.calls[n], last) <= 0 {
		n++
	}
	first := append(calls, q.calls[:n]...)
	slices.SortStableFunc(first, byQueued)
	q.calls = append(first, q.calls[n:]...)
}
