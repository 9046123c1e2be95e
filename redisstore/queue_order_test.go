package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// failingDialer opens no connection, or closed ones, until it has been asked so many times.
type failingDialer struct {
	net.Dialer
	closes   bool
	failures atomic.Int32
}

func (d *failingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.failures.Add(-1) < 0 {
		return d.Dialer.DialContext(ctx, network, address)
	}
	if d.closes {
		near, far := net.Pipe()
		return near, far.Close()
	}
	return nil, errors.New("unreachable")
}

// A correction gets no connection, or one that closes before the correction is sent, and is sent again. A take of its
// key, waiting behind the correction, stays behind it.
func TestTakeBehindRetriedCorrection(t *testing.T) {
	for _, closes := range []bool{false, true} {
		takeBehindRetriedCorrection(t, &failingDialer{closes: closes})
	}
}

func takeBehindRetriedCorrection(t *testing.T, dialer *failingDialer) {
	server := redistest.Shared(t)
	s := MustNew(t, Options{Address: server.Addr, KeyPrefix: fmt.Sprint(dialer.closes), Timeout: Patient, DialTimeout: Patient, Dialer: dialer})
	defer s.Close()
	ask := func(key string) []store.ZoneRequest {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
		return []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}}
	}
	r := ask("k")
	if allowed, err := s.Take(t.Context(), r); !allowed || err != nil {
		t.Fatal(allowed, err)
	}

	b := newBatch()
	b.calls = s.keys.correctionCalls(0, []store.Correction{{Request: &r[0], Refund: 1}})
	given := make(chan error, 1)
	b.calls[0].onEnd = func(c *pendingCall) { given <- c.err }
	beside := s.newTakeCall(context.Background(), 0, ask("other"))
	b.calls = append(b.calls, beside)
	s.keys.mu.Lock()
	b.sent = time.Now().Add(-time.Hour) // it has stalled, so the queue is sent without waiting for its end
	s.queue.inFlight, s.keys.correcting["k"] = append(s.queue.inFlight, b), b
	s.keys.endLocked(s, &message{calls: []*pendingCall{{key: "k", requests: r}}}, time.Now(), nil) // a take before it ends
	s.keys.mu.Unlock()
	behind := s.newTakeCall(t.Context(), 0, ask("k"))
	behind.queued = time.Now().Add(time.Hour) // so it has not waited for too long
	s.enqueueOrSend(behind)

	ended := false
	beside.onEnd = func(c *pendingCall) {
		if ended = true; c.err == nil {
			t.Error("a take got a connection, want that it got none")
		}
		if allowed, err := s.await(behind); !allowed || err != nil {
			t.Errorf("allowed %v, error %v, want that the take sees the refund", allowed, err)
		}
	}
	dialer.failures.Store(1)
	s.reconnect(s.conns)
	s.sendBatch(b)
	s.sendBatches(s.finishAndNext(b))
	if err := <-given; err != nil || !ended {
		t.Errorf("correction: error %v; the other take has ended: %v", err, ended)
	}
}

// A tenant gives a slot back while another take of it is in flight, so its count can't be set yet. A take of another tenant
// waits for that, and gets the slot.
func TestTakeBehindOtherTenant(t *testing.T) {
	s := MustNew(t, Options{Address: redistest.Shared(t).Addr, KeyPrefix: t.Name(), Timeout: Patient, DialTimeout: Patient})
	defer s.Close()
	defer Kill(s)
	ask := func(tenant uint64) []store.ZoneRequest {
		slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}
		return []store.ZoneRequest{{Zone: "z", Key: "k", Slots: slots, Tenant: store.Tenant{ID: tenant, Weight: 1}}}
	}
	r := ask(2)
	if allowed, err := s.Take(t.Context(), r); !allowed || err != nil {
		t.Fatal(allowed, err)
	}
	before := s.newTakeCall(t.Context(), 0, ask(2))
	s.keys.mu.Lock()
	s.queue.calls = append(s.queue.calls, before)
	b := s.nextBatchLocked()
	b.sent = time.Now().Add(-time.Hour) // it has stalled, so the queue is sent without waiting for its end
	s.keys.mu.Unlock()
	s.Correct([]store.Correction{{Request: &r[0], Leave: true}}, nil)
	behind := s.newTakeCall(t.Context(), 0, ask(3))
	s.enqueueOrSend(behind)
	s.sendBatch(b)
	s.sendBatches(s.finishAndNext(b))
	for c, want := range map[*pendingCall]bool{before: false, behind: true} {
		if allowed, err := s.await(c); allowed != want || err != nil {
			t.Errorf("allowed %v, error %v, want %v", allowed, err, want)
		}
	}
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	if len(s.keys.sets) > 0 {
		t.Errorf("%d calls that have ended are remembered", len(s.keys.sets))
	}
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
		{"a reply", 20 * time.Millisecond, func(s *Store) { s.settleBatch(&batch{replied: true}) }, store.ReasonBusy},
		{"an outage", time.Minute, func(s *Store) { s.noteHealth(io.EOF) }, store.ReasonOpen},
	} {
		t.Run(test.name, func(t *testing.T) {
			InBubble(t, func(t *testing.T) {
				s := MustNew(t, Options{Address: "127.0.0.1:1"})
				s.keys.correcting["k"] = newBatch()
				began := time.Now()
				time.AfterFunc(test.wait/2, func() { test.do(s) })
				c := s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Zone: "z", Key: "k"}})
				if _, err := (hop{node: &node{Store: s}, deadline: began.Add(test.wait)}).sendAlone(t.Context(), c); reasonOf(err) != test.want {
					t.Errorf("error %v, want the reason %q", err, test.want)
				}
				if waited := time.Since(began); waited > test.wait+time.Millisecond {
					t.Errorf("it ended after %v", waited)
				}
			})
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
	go s.finishAndNext(newBatch())
	select {
	case err := <-ended:
		if !errors.Is(err, errBusy) {
			t.Errorf("error %v, want %v", err, errBusy)
		}
	case <-time.After(time.Minute): // long enough on a busy machine
		t.Error("the queue is locked while onEnd runs")
	}
}

// A take of two keys that waited for a message of one of them stays behind a give-back of the other
// one that was asked for before it.
func TestTakeOfTwoKeysBehindGiveBack(t *testing.T) {
	s := MustNew(t, Options{Address: "127.0.0.1:1"})
	back := givesBack("b")
	take := s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Zone: "z", Key: "a"}, {Zone: "z", Key: "b"}})
	q := &s.queue
	q.maxInFlight = 0 // nothing is sent
	end := func(key string) {
		s.settleBatch(&batch{replied: true, messages: []*message{{calls: []*pendingCall{givesBack(key)}}}})
	}
	for _, key := range []string{"a", "b"} {
		q.calls, s.keys.correcting[key] = []*pendingCall{take}, newBatch()
		if s.fillLocked(newBatch()); len(q.calls) > 0 || s.stats().Queued != 1 {
			t.Errorf("the take doesn't wait for a message with key %s", key)
		}
		end(key)
	}
	q.calls = []*pendingCall{back, take}
	s.keys.correcting["a"], s.keys.correcting["b"] = newBatch(), newBatch() // messages in flight
	if s.fillLocked(newBatch()); len(q.calls) > 0 {
		t.Fatal("one of them doesn't wait")
	}
	for _, key := range []string{"b", "a"} {
		end(key)
	}
	if len(q.calls) != 2 || q.calls[0] != back {
		t.Error("the take has overtaken the give-back")
	}
}

// Calls that are put back stand where they stood when they were queued. At equal instants they stand in the order
// in which they are put back, and before the calls that were not taken out.
func TestPutBack(t *testing.T) {
	at := func(seconds int64) *pendingCall { return &pendingCall{queued: time.Unix(seconds, 0)} }
	a, b, c, d, e, f := at(1), at(2), at(2), at(2), at(3), at(4)
	q := &queue{calls: []*pendingCall{d, f}}
	q.putBackLocked([]*pendingCall{e, b, c, a})
	got, sorted := "", []*pendingCall{a, b, c, d, e, f}
	for _, call := range q.calls {
		got += string("abcdef"[slices.Index(sorted, call)])
	}
	if got != "abcdef" {
		t.Errorf("the calls stand in the order %s, want abcdef", got)
	}
}
