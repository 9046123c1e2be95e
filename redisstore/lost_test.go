package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// switchedDialer opens connections, unless a test has made its Redis unreachable.
type switchedDialer struct {
	net.Dialer
	unreachable atomic.Bool
}

func (d *switchedDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.unreachable.Load() {
		return nil, errors.New("unreachable")
	}
	return d.Dialer.DialContext(ctx, network, address)
}

// lossTest is a store whose connections a test can silence, cut and prevent.
type lossTest struct {
	Redis
	s      *Store
	relay  *relay.Relay
	dialer switchedDialer
	limit  store.Limit
}

func startLossTest(t *testing.T) *lossTest {
	t.Helper()
	o := redistest.Shared(t).Client.Options()
	between, err := relay.Start(o.Addr)
	if err != nil {
		t.Fatal(err)
	}
	l := &lossTest{relay: between}
	if l.Redis, err = Open(Options{Address: between.Addr, DB: o.DB, Timeout: Patient, DialTimeout: Patient, Dialer: &l.dialer}, Hooks{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), between.Close() })
	l.s = l.Redis.(single).redis
	l.limit = storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 100, Window: 3_600_000_000})
	return l
}

// take takes a slot of a key, and an event, in the background. The result is the reason of the error, or "".
func (l *lossTest) take(t *testing.T, key string) (*store.ZoneRequest, <-chan string) {
	r := []store.ZoneRequest{{
		Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{l.limit}, Slots: &store.Slots{ID: "s", Limit: 100},
	}}
	done := make(chan string, 1)
	go func() {
		_, err := l.Take(t.Context(), r)
		done <- reasonOf(err)
	}()
	return &r[0], done
}

// reasonOf returns the reason of a store's error, or "" if there is none.
func reasonOf(err error) string {
	var failed *store.Error
	if errors.As(toStoreError(context.Background(), err), &failed) {
		return failed.Reason
	}
	return ""
}

// want takes from a key, and checks the result.
func (l *lossTest) want(t *testing.T, key, reason string) *store.ZoneRequest {
	t.Helper()
	r, done := l.take(t, key)
	if got := <-done; got != reason {
		t.Errorf("a take of key %s: reason %q, want %q", key, got, reason)
	}
	return r
}

// waitWaiting waits until so many calls wait for the end of a message.
func (l *lossTest) waitWaiting(t *testing.T, n int) {
	t.Helper()
	redistest.WaitFor(t, "the calls to wait", func() bool {
		queued, _ := QueueLengths(l.s) // they leave it once the message has stalled
		return queued == 0 && l.Stats().Queued == n
	})
}

// block makes a message of a key hang, behind which three takes of the key wait.
func (l *lossTest) block(t *testing.T, c store.Correction) (takes []<-chan string) {
	t.Helper()
	l.relay.Set(relay.Fault{}, relay.Fault{Silent: true})
	l.Correct([]store.Correction{c}, nil)
	redistest.WaitFor(t, "the correction to be sent", func() bool {
		queued, inFlight := QueueLengths(l.s)
		return queued == 0 && inFlight == 1
	})
	for range 3 {
		_, done := l.take(t, c.Request.Key)
		takes = append(takes, done)
	}
	l.waitWaiting(t, 3)
	redistest.WaitFor(t, "the reply to be lost", func() bool { return l.relay.Silenced() > 0 })
	return takes
}

// The connection breaks on which a message is sent, long before the message can no longer run. The takes
// that wait for the message end with that failure, which counts once. They are not busy. Later takes of a
// key whose count of slots is unknown fail, too. Nothing else does.
func TestTakesBehindLostMessage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		correction store.Correction
		later      string // the reason of a later take
	}{
		{"slots", store.Correction{Leave: true}, store.ReasonConnection},
		{"correction", store.Correction{Refund: 1}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := startLossTest(t)
			l.want(t, "other", "")
			test.correction.Request = l.want(t, "k", "")
			takes := l.block(t, test.correction)
			l.relay.Set(relay.Fault{}, relay.Fault{}) // cuts the connection
			for _, done := range takes {
				if reason := <-done; reason != store.ReasonConnection {
					t.Errorf("reason %q, want %q", reason, store.ReasonConnection)
				}
			}
			for range 2 * 5 { // a breaker opens after 5 failures
				l.want(t, "k", test.later)
			}
			if l.want(t, "other", ""); l.Stats().Failing != 0 {
				t.Error("the breaker is open: the failure counts more than once")
			}
		})
	}
}

// When the breaker of a Redis opens, all takes end that are not sent yet. Corrections stay.
func TestBreakerOpensWhileTakesWait(t *testing.T) {
	const address = "127.0.0.1:1" // nobody listens
	for name, open := range map[string]func() (Redis, *Store, func(context.Context) error){
		"one Redis": func() (Redis, *Store, func(context.Context) error) {
			r, _ := Open(Options{Address: address, Timeout: Patient, DialTimeout: Patient}, Hooks{})
			return r, r.(single).redis, r.Check
		},
		"a node": func() (Redis, *Store, func(context.Context) error) {
			c, _ := NewCluster(Options{Address: address, Cluster: true, Timeout: Patient, DialTimeout: Patient}, Hooks{})
			n := c.nodeAtLocked(address)
			return c, n.Store, n.breaker.Check
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, s, check := open()
			defer r.Close()
			slots := &store.Slots{ID: "s", Limit: 1}
			var takes []*pendingCall
			for _, key := range []string{"corrected", "blocked", "queued"} {
				takes = append(takes, s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Zone: "z", Key: key, Slots: slots}}))
			}
			back, set := givesBack("corrected"), newSetCall(takes[1].slots[0].name)
			s.keys.mu.Lock()                                      // after a while a timer sets the counts, in another goroutine
			s.keys.table.Prepare(takes[1].slots[0].name, true, 0) // two messages are in flight, and one is lost
			s.keys.table.Lost(s.keys.table.Prepare(takes[1].slots[0].name, true, 0), 0, 0)
			q := &s.queue
			q.maxInFlight = 0 // nothing more is sent
			s.keys.correcting["corrected"] = newBatch()
			q.calls = []*pendingCall{takes[0], takes[1], back, set}
			s.fillLocked(newBatch())
			s.keys.mu.Unlock()
			s.enqueueOrSend(takes[2])
			if err := check(t.Context()); err == nil {
				t.Fatal("the check succeeds without a Redis")
			}
			for i, c := range takes {
				if <-c.done; reasonOf(c.err) != store.ReasonOpen || c.allowed {
					t.Errorf("take %d: allowed %v, error %v, want the reason %q", i+1, c.allowed, c.err, store.ReasonOpen)
				}
			}
			if waiting := s.stats().Queued; waiting != 2 || !slices.Equal(s.keys.waiting[awaited{correctedKey: "corrected"}], []*pendingCall{back}) {
				t.Error("a correction or a set is lost")
			}
		})
	}
}
