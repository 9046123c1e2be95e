package linear

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// open opens stores on one real Redis.
func open(t *testing.T) (stores [Stores]*redisstore.Store, server *redistest.Server) {
	t.Helper()
	server = redistest.Start(t)
	const patient = time.Minute
	for by := range stores {
		s, err := redisstore.New(redisstore.Options{Address: server.Addr, Timeout: patient, DialTimeout: patient}, redisstore.Hooks{})
		errtest.None(t, err)
		t.Cleanup(func() { _ = s.Close() })
		stores[by] = s
	}
	return stores, server
}

// test makes a history without a fault, which is linearizable, and histories with one, until one is not.
func (s *Subject) test(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, spoils bool) porcupine.CheckResult {
		stores, server := open(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		if spoils {
			go s.Spoil(ctx, server.Client, rand.Uint64())
		}
		h := s.Run(t.Context(), stores, rand.Uint64(), 700*time.Millisecond, false)
		if len(h.Failures) > 0 {
			t.Error(h.Failures)
		}
		result, summary := s.Check(h)
		t.Log(summary)
		return result
	}
	t.Run("as it is", func(t *testing.T) {
		result := run(t, false)
		for tried := 1; result == porcupine.Unknown && tried < 5; tried++ {
			result = run(t, false)
		}
		if result != porcupine.Ok {
			t.Errorf("the history is not linearizable: %v", result)
		}
	})
	t.Run("with a fault", func(t *testing.T) {
		for range 20 { // on a slow machine a history has few calls, and can miss the fault
			if run(t, true) == porcupine.Illegal {
				return
			}
		}
		t.Error("no history is known not to be linearizable")
	})
}

func TestBansAreLinearizable(t *testing.T) {
	Bans.test(t)
}

func TestOverridesAreLinearizable(t *testing.T) {
	Overrides.test(t)
}

func TestSlotsAreLinearizable(t *testing.T) {
	Slots.test(t)
}

// The model finds slots that others never hear of.
func TestGiveBacksAreSeen(t *testing.T) {
	for what, leave := range map[string]func(*redisstore.Store, []store.Correction){
		"with give-backs":                     func(s *redisstore.Store, c []store.Correction) { s.Correct(c, nil) },
		"with give-backs that are never sent": func(s *redisstore.Store, c []store.Correction) { s.LeaveSlots(c) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testGiveBacks(t, what == "with give-backs", leave) })
		})
	}
}

func testGiveBacks(t *testing.T, seen bool, leave func(*redisstore.Store, []store.Correction)) {
	network := simredis.NewNetwork()
	server := network.NewServer("10.0.0.1:6379")
	h := newHistory(true)
	var clients [2]*client
	for by := range clients {
		s, err := redisstore.New(redisstore.Options{Address: server.Address(), Dialer: network.NewClient(0)}, redisstore.Hooks{})
		errtest.None(t, err)
		defer s.Close()
		clients[by] = &client{History: h, ctx: t.Context(), store: s, by: by, key: "k"}
	}
	var held []func()
	for range slotsLimit {
		held = append(held, clients[0].takeSlot(leave, lineCall{}))
	}
	for _, leave := range held {
		leave()
	}
	time.Sleep(2 * slotsGrace) // in simulated time
	clients[1].takeSlot(leave, lineCall{})
	want := porcupine.Illegal
	if seen {
		want = porcupine.Ok
	}
	if got, summary := Slots.Check(h); got != want || len(h.Failures) > 0 {
		t.Errorf("linearizable: %v, want %v: %s; %v", got, want, summary, h.Failures)
	}
}
