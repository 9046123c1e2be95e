package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Concurrent requests share script calls, and each gets its own outcome. A request fails alone if a
// foreign value is stored at its key. A foreign value at the key of an override counts as no
// override.
func TestCallsAreShared(t *testing.T) {
	server := redistest.Shared(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	poisoned := request(t, "poisoned")
	server.Client.HSet(t.Context(), "caddy_rl:{poisoned}:"+poisoned[0].Limits[0].ID, "a", 1)
	server.Client.HSet(t.Context(), "caddy_rl:{key 8}:"+store.OverrideID(poisoned[0].Zone), "a", 1)
	var allowed, failed atomic.Int64
	var all sync.WaitGroup
	for g := range 64 {
		all.Go(func() {
			for i := range 50 {
				r := request(t, fmt.Sprint("key ", g))
				if g == 7 {
					r = request(t, "poisoned")
				}
				poisoned := g == 7
				another := i%5 == 0 && g%2 == 0
				switch {
				case another:
					r[0].Override = &store.Override{Text: "another"}
				case g%2 == 0:
					r[0].Override = new(store.Override)
				}
				ok, err := s.Take(t.Context(), r)
				for store.IsBusy(err) { // the machine was too slow to send it in time
					ok, err = s.Take(t.Context(), r)
				}
				var reason *store.Error
				switch {
				case poisoned && errors.As(err, &reason) && reason.Reason == store.ReasonKey && !strings.Contains(err.Error(), "poisoned"):
					failed.Add(1)
				case another:
					var others *store.OverriddenError
					if !errors.As(err, &others) || others.Overrides[0] != "" {
						t.Errorf("%v, want it overridden by none", err)
					}
				case err != nil:
					t.Error(err)
				case ok:
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if allowed.Load() != 63*10 || failed.Load() != 50 {
		t.Errorf("%d allowed and %d failed, want 63 keys of 10, and the 50 of the poisoned key", allowed.Load(), failed.Load())
	}
	other := request(t, "poisoned by a text")
	server.Client.Set(t.Context(), "caddy_rl:{poisoned by a text}:"+other[0].Limits[0].ID, strings.Repeat("x", 16), 0) // as long as a budget
	_, err := s.Take(t.Context(), other)
	other[0].Outcome.Decisions = []algorithms.Decision{{Charged: 1, Receipt: algorithms.Receipt{A: 1, B: 1}}}
	for what, err := range map[string]error{
		"taking from": err, "giving back to": refund(s, other, 1), "charging": correct(s, store.Correction{Request: &other[0], Charge: 1}),
	} {
		wantReason(t, what+" a value that is not a budget", err, store.ReasonKey, "poisoned")
	}
}

// If Redis denies SCRIPT LOAD, that is the error.
func TestScriptThatCannotBeLoaded(t *testing.T) {
	server := redistest.Start(t) // nobody has loaded a script
	server.Client.ACLSetUser(t.Context(), "limited", "on", ">secret", "~*", "+@all", "-script")
	s := open(t, redisstore.Options{Address: server.Addr, Username: "limited", Password: "secret"})
	_, err := s.Take(t.Context(), request(t, "k"))
	wantReason(t, "taking", err, store.ReasonPermission)
}

// Callers that leave get the error of their context, which is no failure of the store, and leave no state behind.
func TestCallersThatLeave(t *testing.T) {
	redisstore.InBubble(t, func(t *testing.T) {
		const callers, inFlight = 200, 2
		answers := make(chan struct{})
		m := new(misbehaving)
		s := openPipes(t, &pipes{m: m, behave: func(c net.Conn) {
			<-answers
			_ = c.Close()
		}}, redisstore.WithMaxInFlight(redisstore.Options{Timeout: time.Second, Batch: -1}, inFlight)) // virtual time
		ctx, leave := context.WithCancel(t.Context())
		var left atomic.Int64
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				if _, err := s.Take(ctx, request(t, "k")); errors.Is(err, context.Canceled) && !errors.As(err, new(*store.Error)) {
					left.Add(1)
				}
			})
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		// The calls that were sent are there until they are answered.
		if n := left.Load(); n != callers-inFlight {
			t.Errorf("%d of %d callers have left at once", n, callers-inFlight)
		}
		close(answers)
		all.Wait()
		if n := left.Load(); n != callers {
			t.Errorf("%d of %d callers got the error of their context", n, callers)
		}
		if calls := m.calls.Load(); calls != inFlight {
			t.Errorf("%d calls, want %d and none for callers that had left", calls, inFlight)
		}
	}) // the bubble ends with its last goroutine
}

// If Redis runs a call too late because its clock was set ahead, the call is sent once more with
// the new time, and charged once.
func TestClockSetAhead(t *testing.T) {
	server := redistest.Shared(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	errtest.None(t, errtest.Of(s.Take(t.Context(), request(t, "first")))) // the script is there
	redisstore.SetClockReading(s, time.Now().Add(-time.Hour))
	before, _ := stats(server.Client)
	r := request(t, "k")
	if ok, err := s.Take(context.Background(), r); err != nil || !ok || r[0].Outcome.Decisions[0].Remaining != 9 {
		t.Errorf("Take: %v, %v, %+v", ok, err, r[0].Outcome.Decisions)
	}
	after, _ := stats(server.Client)
	if calls := after["evalsha"] - before["evalsha"]; calls != 2 {
		t.Errorf("%d script calls, want 2", calls)
	}
}
