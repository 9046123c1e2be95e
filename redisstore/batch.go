package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The checks of concurrent requests travel together: a few script calls are under
// way at once, and requests that come meanwhile queue up and make the next call.
// Where Redis is far away, further calls go out now and then, so that nobody waits
// for long. A request that has nothing to wait for is sent at once, alone.

// batcher is the queue of a [Store].
type batcher struct {
	mu     sync.Mutex
	queue  []*call
	flying int       // script calls under way
	last   time.Time // when the last one was sent
	bounds flyingBounds
	timer  *time.Timer // for the next one, if it is not to wait for an answer; or nil
}

// flyingBounds say how many script calls are under way. On a near Redis more of them make for
// smaller batches, which costs it more time in all; with a far one, requests would wait.
type flyingBounds struct {
	few  int // go out without waiting for anything
	most int // are under way at most
}

const mostFlying = 32

// flying is what stores are made with.
var flying = flyingBounds{few: 2, most: mostFlying}

// flyingApart is how far apart more than few calls go out.
const flyingApart = 250 * time.Microsecond

// mayFlyLocked tells whether another call may be sent now.
func (b *batcher) mayFlyLocked() bool {
	return b.flying < b.bounds.few || b.flying < b.bounds.most && time.Since(b.last) >= flyingApart
}

// call is a Take in the queue.
type call struct {
	deadline time.Time // when its caller leaves at the latest
	requests []store.Request
	work     int64 // of the requests; see [algorithms.MostWork]
	state    atomic.Int32
	done     chan struct{} // closed when allowed and err are there
	allowed  bool
	err      error
}

// The states of a call.
const (
	queued    = iota // or sent: its caller may still leave
	answering        // allowed, err and the Outcomes are being written
	left             // its caller has left: nobody reads them
)

// errLate is that of a call that Redis came to when nobody waited for it any more:
// nothing was charged.
var errLate = errors.New("redisstore: Redis came to it too late")

func newCall(deadline time.Time, requests []store.Request) *call {
	c := &call{deadline: deadline, requests: requests}
	for i := range requests {
		r := &requests[i]
		for _, l := range r.Limits {
			c.work += l.Work(r.Cost)
		}
		if r.Ban != nil {
			c.work += banWork
		}
		if r.Slots != nil {
			c.work += slotWork(r.Slots)
		}
	}
	return c
}

// take takes at the time of Redis, together with others if need be.
func (s *Store) take(ctx context.Context, deadline time.Time, requests []store.Request) (bool, error) {
	c := newCall(deadline, requests)
	b := &s.batcher
	b.mu.Lock()
	if len(b.queue) == 0 && b.mayFlyLocked() || s.options.Batch < 0 {
		b.flying++
		b.last = time.Now()
		b.mu.Unlock()
		s.send([]*call{c})
		if calls := s.nextCalls(); len(calls) > 0 {
			go s.sendAll(calls)
		}
		return c.allowed, c.err
	}
	c.done = make(chan struct{})
	b.queue = append(b.queue, c)
	s.wakeLocked()
	b.mu.Unlock()
	timer := timers.Get().(*time.Timer)
	timer.Reset(time.Until(deadline))
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
	err := context.DeadlineExceeded
	select {
	case <-c.done:
		return c.allowed, c.err
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if c.state.CompareAndSwap(queued, left) {
		return false, err
	}
	<-c.done
	return c.allowed, c.err
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// wakeLocked sees to it that what is in the queue is sent before long.
func (s *Store) wakeLocked() {
	b := &s.batcher
	switch {
	case len(b.queue) == 0:
	case b.mayFlyLocked():
		b.flying++
		if calls := s.nextCallsLocked(); len(calls) > 0 {
			go s.sendAll(calls)
		}
	case b.timer == nil && b.flying < b.bounds.most:
		b.timer = time.AfterFunc(flyingApart, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.timer = nil
			s.wakeLocked()
		})
	}
}

// sendAll sends calls, and then what has queued up meanwhile.
func (s *Store) sendAll(calls []*call) {
	for ; len(calls) > 0; calls = s.nextCalls() {
		s.send(calls)
	}
}

// nextCalls takes the next calls out of the queue for a script call whose answer is
// there, or notes that one call less is under way.
func (s *Store) nextCalls() []*call {
	b := &s.batcher
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flying > b.bounds.few && time.Since(b.last) < flyingApart {
		b.flying--
		s.wakeLocked()
		return nil
	}
	return s.nextCallsLocked()
}

// nextCallsLocked is nextCalls, without waiting. It returns as many calls as one script call
// may decide, by their number and their work. It drops calls whose callers have left, or are
// about to.
func (s *Store) nextCallsLocked() (calls []*call) {
	b := &s.batcher
	n, work, now := 0, int64(0), time.Now()
	for ; n < len(b.queue) && len(calls) < s.options.Batch; n++ {
		c := b.queue[n]
		if c.state.Load() != queued || !c.deadline.After(now) {
			continue
		}
		if work += c.work; work > algorithms.MostWork && len(calls) > 0 {
			break
		}
		calls = append(calls, c)
	}
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	if len(calls) == 0 {
		b.flying--
	} else {
		b.last = now
	}
	return calls
}

// send makes one round trip for all calls, and answers each. In a cluster it is a
// script call for each key, for a script can reach one slot alone.
func (s *Store) send(calls []*call) {
	last := calls[0].deadline
	for _, c := range calls[1:] {
		if c.deadline.After(last) {
			last = c.deadline
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), last)
	defer cancel()
	if !s.options.Cluster {
		one := [1][]*call{calls}
		s.sendParts(ctx, one[:])
		return
	}
	var parts [][]*call
	places := make(map[string]int, len(calls))
	for _, c := range calls {
		key := c.requests[0].Key // that of all its requests
		i, known := places[key]
		if !known {
			i = len(parts)
			places[key] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], c)
	}
	s.sendParts(ctx, parts)
}

// sendParts makes a script call for each part, all in one round trip.
func (s *Store) sendParts(ctx context.Context, parts [][]*call) {
	asked := make([]part, len(parts))
	for i, calls := range parts {
		asked[i].deadline = calls[0].deadline
		asked[i].groups = make([][]store.Request, len(calls))
		for j, c := range calls {
			if c.deadline.Before(asked[i].deadline) {
				asked[i].deadline = c.deadline
			}
			asked[i].groups[j] = c.requests
		}
	}
	for i, a := range s.ask(ctx, 0, false, asked...) {
		s.answer(parts[i], a.reader, a.err)
	}
}

// answer tells calls what a script call, or else an error, has to say of them.
func (s *Store) answer(calls []*call, r *reader, err error) {
	for _, c := range calls {
		answered := c.done == nil || c.state.CompareAndSwap(queued, answering)
		requests := c.requests
		if !answered { // what it is told must go somewhere
			requests = make([]store.Request, len(c.requests))
			for i := range requests {
				r := &c.requests[i]
				requests[i] = store.Request{Limits: r.Limits, Slots: r.Slots, Ban: r.Ban, Override: r.Override}
			}
		}
		allowed, failed := false, err
		if err == nil {
			before := len(r.taken)
			allowed, failed = r.decodeGroup(requests)
			if !answered {
				r.taken = r.taken[:before] // nobody gives it back: it expires
			}
		}
		if !answered {
			continue
		}
		c.allowed, c.err = allowed, failed
	}
	if err == nil {
		if err = r.end(); err == nil {
			s.slots.hold(r.taken, false)
		}
	}
	if err != nil && len(calls) > 1 {
		err = &store.SharedError{Err: err}
	}
	for _, c := range calls {
		if err != nil {
			c.allowed, c.err = false, err
		}
		if c.done != nil && c.state.Load() == answering {
			close(c.done)
		}
	}
}

// part is what one script call decides: groups, each the requests of one Take, until
// a deadline.
type part struct {
	deadline time.Time
	groups   [][]store.Request
}

// answered is what a script call had to say of its groups, or why it didn't.
type answered struct {
	reader *reader
	err    error
}

// ask makes a script call for each part, all in one round trip.
func (s *Store) ask(ctx context.Context, now algorithms.Micros, asking bool, parts ...part) []answered {
	answers := make([]answered, len(parts))
	conns := s.acquire()
	defer s.release(conns)
	commands := make([]command, len(parts))
	for i, p := range parts {
		last, err := s.lastInstant(ctx, conns, now, p.deadline)
		if err != nil {
			for i := range answers {
				answers[i].err = err
			}
			return answers
		}
		commands[i].script = s.script(s.takes, algorithms.Set.TakeScript, algorithmsOf(p.groups...))
		commands[i].keys, commands[i].argv = s.format().encode(now, last, p.groups...)
	}
	sent := time.Now()
	for i, reply := range s.run(ctx, conns, asking, commands...) {
		answers[i].err = reply.err
		if reply.err != nil {
			continue
		}
		r := &reader{reply: reply.values}
		at, late := r.decodeHead()
		if now == 0 && r.err == nil {
			s.watch(at, sent)
		}
		answers[i].reader, answers[i].err = r, r.err
		if late {
			answers[i].err = errLate
		}
	}
	return answers
}
