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

// The checks of concurrent requests travel together: while as many script calls are
// under way as may be, requests queue, and those in the queue make the next call. A
// request that comes when there is nothing to wait for is sent at once, alone.

// batcher is the queue of a [Store].
type batcher struct {
	mu     sync.Mutex
	queue  []*call
	flying int // script calls under way
}

const (
	// mostFlying is how many script calls are under way at once.
	mostFlying = 2
)

// call is a Take in the queue.
type call struct {
	ctx      context.Context
	requests []store.Request
	state    atomic.Int32
	done     chan struct{} // closed when allowed and err are there
	allowed  bool
	err      error
}

// The states of a call.
const (
	queued    = iota // or sent: its caller may still leave
	answering        // allowed, err and the Decisions are being written
	left             // its caller has left: nobody reads them
)

// errLate is that of a call that Redis came to when nobody waited for it any more:
// nothing was charged.
var errLate = errors.New("redisstore: Redis came to it too late")

// take takes at the time of Redis, together with others if need be.
func (s *Store) take(ctx context.Context, requests []store.Request) (bool, error) {
	c := &call{ctx: ctx, requests: requests}
	b := &s.batcher
	b.mu.Lock()
	if b.flying < mostFlying || s.options.Batch < 0 {
		b.flying++
		b.mu.Unlock()
		s.send([]*call{c})
		s.sendNext()
		return c.allowed, c.err
	}
	c.done = make(chan struct{})
	b.queue = append(b.queue, c)
	b.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		if c.state.CompareAndSwap(queued, left) {
			return false, ctx.Err()
		}
		<-c.done
	}
	return c.allowed, c.err
}

// sendNext goes on with what has queued up during a call, if anything has.
func (s *Store) sendNext() {
	if calls := s.nextCalls(); len(calls) > 0 {
		go func() {
			for ; len(calls) > 0; calls = s.nextCalls() {
				s.send(calls)
			}
		}()
	}
}

// nextCalls takes the next calls out of the queue, or notes that one call less is
// under way. Those whose callers have left are dropped.
func (s *Store) nextCalls() (calls []*call) {
	b := &s.batcher
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for ; n < len(b.queue) && len(calls) < s.options.Batch; n++ {
		if c := b.queue[n]; c.state.Load() == queued {
			calls = append(calls, c)
		}
	}
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	if len(calls) == 0 {
		b.flying--
	}
	return calls
}

// send makes one script call for all calls, and answers each.
func (s *Store) send(calls []*call) {
	var deadline time.Time // the last of them
	first, _ := calls[0].ctx.Deadline()
	groups := make([][]store.Request, len(calls))
	for i, c := range calls {
		d, _ := c.ctx.Deadline()
		if d.After(deadline) {
			deadline = d
		}
		if d.Before(first) {
			first = d
		}
		groups[i] = c.requests
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	r, err := s.ask(ctx, 0, first, groups)
	for _, c := range calls {
		answered := c.done == nil || c.state.CompareAndSwap(queued, answering)
		requests := c.requests
		if !answered { // what it is told must go somewhere
			requests = make([]store.Request, len(c.requests))
			for i := range requests {
				requests[i].Limits = c.requests[i].Limits
			}
		}
		allowed, failed := false, err
		if err == nil {
			allowed, failed = r.decodeGroup(requests)
		}
		if !answered {
			continue
		}
		c.allowed, c.err = allowed, failed
	}
	if err == nil {
		err = r.end()
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

// ask runs the script for several groups, and returns what it has to say of them.
func (s *Store) ask(ctx context.Context, now algorithms.Micros, deadline time.Time, groups [][]store.Request) (*reader, error) {
	conns := s.acquire()
	defer s.release()
	last, err := s.lastInstant(ctx, conns, now, deadline)
	if err != nil {
		return nil, err
	}
	keys, argv := encode(s.options.KeyPrefix, now, last, groups...)
	sent := time.Now()
	reply, err := s.run(ctx, conns, s.script(s.takes, algorithms.Set.TakeScript, groups...), keys, argv)
	if err != nil {
		return nil, err
	}
	r := &reader{reply: reply}
	at, late := r.decodeHead()
	if now == 0 && r.err == nil {
		s.watch(at, sent)
	}
	if late {
		return nil, errLate
	}
	return r, r.err
}
