package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// crowd calls f from many goroutines concurrently, many times each.
func crowd(goroutines, each int, f func(goroutine, i int)) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				f(g, i)
			}
		})
	}
	wg.Wait()
}

// Concurrent requests share script calls, and each gets its own outcome. A request fails alone if a
// foreign value is stored at its key. A foreign value at the key of an override counts as no
// override. All calls that come while a script call is in flight share the next one.
func TestCallsAreShared(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	poisoned := request(t, "poisoned")
	server.Client.HSet(t.Context(), "caddy_rl:{poisoned}:"+poisoned[0].Limits[0].ID, "a", 1)
	server.Client.HSet(t.Context(), "caddy_rl:{key 8}:"+store.OverrideID(poisoned[0].Zone), "a", 1)
	var allowed, failed atomic.Int64
	crowd(64, 50, func(g, i int) {
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
		ok, err := s.Take(context.Background(), r)
		var reason *store.Error
		switch {
		case poisoned && errors.As(err, &reason) && reason.Reason == store.ReasonKey:
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
	})
	if allowed.Load() != 63*10 || failed.Load() != 50 {
		t.Errorf("%d allowed and %d failed, want 63 keys of 10, and the 50 of the poisoned key", allowed.Load(), failed.Load())
	}
	one := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: server.Addr}, 1))
	if calls := callsOfQueued(t, server, one, 64); calls != 2 {
		t.Errorf("64 requests took %d script calls, want one for the first, and one for the others", calls)
	}
}

// callsOfQueued sends a request alone, and the others while Redis is frozen. It returns how many script calls they took.
func callsOfQueued(t *testing.T, server *redistest.Server, s *redisstore.Store, requests int) int {
	t.Helper()
	for round := range 100 {
		before, _ := stats(server.Client)
		server.Freeze(t)
		var clients sync.WaitGroup
		var late atomic.Bool
		for n := range requests {
			clients.Go(func() {
				_, err := s.Take(context.Background(), request(t, fmt.Sprint("round ", round, " ", n)))
				var reason *store.Error
				if errors.As(err, &reason) && reason.Reason == store.ReasonBusy {
					late.Store(true) // the machine is slow: the request was queued for too long
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		redistest.WaitFor(t, "the moment when all requests but one are queued", func() bool {
			queued, inFlight := redisstore.QueueLengths(s)
			return queued == requests-1 && inFlight == 1
		})
		server.Thaw(t)
		clients.Wait()
		if !late.Load() {
			after, _ := stats(server.Client)
			return after["evalsha"] - before["evalsha"]
		}
	}
	t.Fatal("in each of 100 rounds a request was queued for too long")
	return 0
}

// Scripts that are flushed repeatedly are loaded again, and no request fails.
func TestFlushedScripts(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	var allowed atomic.Int64
	crowd(16, 100, func(g, i int) {
		if g == 0 && i%25 == 0 { // seldom: a call whose script is flushed four times fails
			server.Client.ScriptFlush(context.Background())
		}
		ok, err := s.Take(context.Background(), request(t, "k"))
		if err != nil {
			t.Error(err)
		}
		if ok {
			allowed.Add(1)
		}
	})
	if allowed.Load() != 10 {
		t.Errorf("%d of 1600 requests passed a limit of 10", allowed.Load())
	}
}

// If Redis denies SCRIPT LOAD, that is the error.
func TestScriptThatCannotBeLoaded(t *testing.T) {
	server := redistest.Start(t)
	server.Client.ACLSetUser(t.Context(), "limited", "on", ">secret", "~*", "+@all", "-script")
	s := open(t, redisstore.Options{Address: server.Addr, Username: "limited", Password: "secret"})
	_, err := s.Take(t.Context(), request(t, "k"))
	wantReason(t, "taking", err, store.ReasonPermission)
}

// Callers that leave get the error of their context, and leave no state behind.
func TestCallersThatLeave(t *testing.T) {
	const callers, inFlight = 200, 2
	answers := make(chan struct{})
	m := startMisbehaving(t, func(c net.Conn) {
		<-answers
		_ = c.Close()
	})
	s := open(t, redisstore.WithMaxInFlight(redisstore.Options{Address: m.addr}, inFlight))
	goroutines := runtime.NumGoroutine()
	ctx, leave := context.WithCancel(context.Background())
	var came, left atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			came.Add(1)
			_, err := s.Take(ctx, request(t, "k"))
			if errors.Is(err, context.Canceled) {
				left.Add(1)
			}
		})
	}
	redistest.WaitFor(t, "all to come", func() bool { return came.Load() == callers && m.calls.Load() == inFlight })
	time.Sleep(100 * time.Millisecond) // most are in the queue by now
	leave()
	// The calls that were sent alone are there until they are answered.
	redistest.WaitFor(t, "all others to leave", func() bool { return left.Load() == callers-inFlight })
	close(answers)
	wg.Wait()
	if left.Load() != callers {
		t.Errorf("%d of %d callers got the error of their context", left.Load(), callers)
	}
	redistest.WaitForState(t, "the goroutines to end", func() (any, bool) {
		n := runtime.NumGoroutine()
		return fmt.Sprint(n, ", and ", goroutines, " before"), n <= goroutines
	})
	if calls := m.calls.Load(); calls != inFlight {
		t.Errorf("%d calls, want %d and none for callers that had left", calls, inFlight)
	}
}

// If Redis runs a call too late because its clock was set ahead, the call is sent once more with
// the new time, and charged once.
func TestClockSetAhead(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	redisstore.SetClockReading(s, time.Now().Add(-time.Hour))
	before, _ := stats(server.Client)
	r := request(t, "k")
	if ok, err := s.Take(context.Background(), r); err != nil || !ok || r[0].Outcome.Decisions[0].Remaining != 9 {
		t.Errorf("Take: %v, %v, %+v", ok, err, r[0].Outcome.Decisions)
	}
	after, _ := stats(server.Client)
	if calls := after["evalsha"] - before["evalsha"]; calls != 3 { // one of them to find out that there is no script
		t.Errorf("%d script calls, want 3", calls)
	}
}

// A caller with a short deadline does not delay the others in its script call.
func TestHastyCallers(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	crowd(64, 100, func(g, i int) {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		hasty := g%4 == 0
		if hasty {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(200+10*i)*time.Microsecond)
		}
		defer cancel()
		if _, err := s.Take(ctx, request(t, fmt.Sprint(g))); err != nil && !hasty {
			t.Error(err)
		}
	})
}
