package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A correction gets no connection and is sent again. A take of its key, parked behind the
// correction, stays behind it.
func TestTakeBehindRetriedCorrection(t *testing.T) {
	server := redistest.Start(t)
	var dialer switchedDialer
	s, err := New(Options{Address: server.Addr, Dialer: &dialer}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(key string) []store.Request {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
		return []store.Request{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}}
	}
	r := ask("k")
	if allowed, err := s.Take(t.Context(), r); !allowed || err != nil {
		t.Fatal(allowed, err)
	}

	b := new(batch)
	b.calls = correctionCalls(0, []store.Correction{{Request: &r[0], Refund: 1}})
	given := make(chan error, 1)
	b.calls[0].onEnd = func(c *pendingCall) { given <- c.err }
	beside := s.newTakeCall(context.Background(), 0, ask("other"))
	b.calls = append(b.calls, beside)
	s.queue.mu.Lock()
	s.beginBatchLocked(b)
	s.queue.mu.Unlock()
	behind := s.newTakeCall(t.Context(), 0, ask("k"))
	s.enqueue(behind)

	ended := false
	beside.onEnd = func(c *pendingCall) { // whatever is in the queue by now can be sent
		if ended = true; c.err == nil {
			t.Error("a take got a connection, want that it got none")
		}
		dialer.unreachable.Store(false)
		s.queue.mu.Lock()
		s.scheduleSendLocked()
		s.queue.mu.Unlock()
		if allowed, err := s.await(behind); !allowed || err != nil {
			t.Errorf("allowed %v, error %v, want that the take sees the refund", allowed, err)
		}
	}
	dialer.unreachable.Store(true)
	s.reconnect(s.conns)
	s.sendBatch(b)
	s.sendBatches(s.nextBatch(b))
	if err := <-given; err != nil || !ended {
		t.Errorf("correction: error %v; the other take has ended: %v", err, ended)
	}
}

// A Redis that accepts no connection is silent, even if new calls keep arriving.
func TestSilentWithoutConnections(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never replies
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	const timeout = 200 * time.Millisecond
	s, err := New(Options{Address: hangs.Addr().String(), Timeout: timeout}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.queue.maxInFlight = 1
	var all sync.WaitGroup
	take := func(want string) {
		all.Go(func() {
			_, err := s.Take(t.Context(), []store.Request{{Zone: "z", Key: "k"}})
			var failed *store.Error
			if !errors.As(err, &failed) || failed.Reason != want {
				t.Errorf("error %v, want the reason %q", err, want)
			}
		})
	}
	take(store.ReasonTimeout)
	redistest.WaitFor(t, "the first message", func() bool { _, inFlight := QueueLengths(s); return inFlight == 1 })
	for range 5 { // they go with the second try of the first
		take(store.ReasonSilent)
	}
	all.Wait()
}

// A call sent alone waits for others past its deadline. This is no fault of a Redis that replies. The call
// also ends with all other takes.
func TestAloneExpires(t *testing.T) {
	for _, test := range []struct {
		name string
		wait time.Duration
		do   func(*Store)
		want string
	}{
		{"no reply", 20 * time.Millisecond, func(*Store) {}, store.ReasonTimeout},
		{"a reply", 20 * time.Millisecond, func(s *Store) { s.endBatch(nil, nil, true, time.Now()) }, store.ReasonBusy},
		{"an outage", time.Minute, func(s *Store) { s.noteHealth(io.EOF) }, store.ReasonOpen},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := New(Options{Address: "127.0.0.1:1"}, Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			s.queue.correcting = map[string][]*pendingCall{"k": nil}
			ended := make(chan error, 1)
			go func() {
				c := s.newTakeCall(t.Context(), 0, []store.Request{{Zone: "z", Key: "k"}})
				ended <- s.sendAlone(c, time.Now().Add(test.wait))
			}()
			redistest.WaitFor(t, "the call to end", func() bool {
				test.do(s)
				return len(ended) > 0
			})
			if err := <-ended; reasonOf(err) != test.want {
				t.Errorf("error %v, want the reason %q", err, test.want)
			}
		})
	}
}

// The end of an expired correction may call the store again.
func TestExpiredCorrection(t *testing.T) {
	s := newStore(Options{Batch: 2}, nil, Hooks{})
	s.queue.lastReply = time.Now()
	ended := make(chan error)
	old := &pendingCall{key: "k", corrections: make([]store.Correction, 1), queued: time.Now().Add(-maxCorrectionQueued - time.Millisecond)}
	old.onEnd = func(c *pendingCall) {
		QueueLengths(s) // locks the queue
		ended <- c.err
	}
	s.queue.calls = []*pendingCall{old}
	go s.nextBatch(new(batch))
	select {
	case err := <-ended:
		if !errors.Is(err, errBusy) {
			t.Errorf("error %v, want %v", err, errBusy)
		}
	case <-time.After(time.Minute): // long enough on a busy machine
		t.Error("the queue is locked while onEnd runs")
	}
}

// While a Redis fails, no message about slots is sent. Their counts are set soon after it works
// again.
func TestNoSetsDuringAnOutage(t *testing.T) {
	redistest.Long(t)
	server := redistest.Start(t)
	r, err := Open(Options{Address: server.Addr, SlotExpiry: 3 * time.Second}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := r.(single).redis
	defer Kill(s)
	if _, err := r.Take(t.Context(), []store.Request{{Zone: "z", Key: "k", Slots: &store.Slots{ID: "s", Limit: 1}}}); err != nil {
		t.Fatal(err)
	}
	sent := func() time.Time {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return s.queue.lastSent
	}
	server.Kill(t)
	if err := r.Check(t.Context()); err == nil || r.Failing() != 1 {
		t.Fatalf("error %v, %d failing", err, r.Failing())
	}
	time.Sleep(100 * time.Millisecond) // for a set under way
	before := sent()
	time.Sleep(2500 * time.Millisecond) // twice as long as a count lasts until it is set again
	if after := sent(); after != before {
		t.Errorf("a message was sent %v after the last", after.Sub(before))
	}
	server.Restart(t)
	redistest.WaitFor(t, "the breaker to close", func() bool { return r.Failing() == 0 })
	redistest.WaitFor(t, "the count to be set", func() bool { return server.Client.Exists(t.Context(), s.names().Name("k", "s")).Val() == 1 })
}

// A take of two keys that waited for a message of one of them stays behind a give-back of the other
// one that was asked for before it.
func TestTakeOfTwoKeysBehindGiveBack(t *testing.T) {
	s, err := New(Options{Address: "127.0.0.1:1"}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	back := givesBack("b")
	take := s.newTakeCall(t.Context(), 0, []store.Request{{Zone: "z", Key: "a"}, {Zone: "z", Key: "b"}})
	q := &s.queue
	q.calls = []*pendingCall{back, take}
	q.correcting = map[string][]*pendingCall{"a": nil, "b": nil} // a message for each is in flight
	if s.fillLocked(new(batch)); len(q.calls) > 0 {
		t.Fatal("one of them doesn't wait")
	}
	for _, key := range []string{"b", "a"} {
		s.endBatch([]*scriptCall{{calls: []*pendingCall{givesBack(key)}}}, nil, true, time.Now())
	}
	if len(q.calls) != 2 || q.calls[0] != back {
		t.Error("the take has overtaken the give-back")
	}
}
