package redisstore

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// reasonOf returns the reason of a store's error, or "" if there is none.
func reasonOf(err error) string {
	var failed *store.Error
	if errors.As(toStoreError(context.Background(), err), &failed) {
		return failed.Reason
	}
	return ""
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
