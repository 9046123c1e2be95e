package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Histories of concurrent calls of several stores on one Redis are checked by an independent
// checker, against models in which one call comes after the other. The models know nothing of how
// the stores do it. All spans are hours, so time plays no part in them.

const (
	linearStores  = 3
	linearClients = 3 // of each store
	linearKeys    = 2
	linearHour    = 3_600_000_000
)

// history is calls of stores with their results, and when they began and ended.
type history struct {
	began time.Time
	mu    sync.Mutex
	calls []porcupine.Operation
}

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

// linearCall is a call about a key.
type linearCall struct {
	key  string
	what string
	arg  string // the text of an override
	by   int    // the store
	seen int    // give-backs of the store that ended before the call began
}

func (h *history) add(c linearCall, result any, began, ended int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, porcupine.Operation{ClientId: c.by, Input: c, Output: result, Call: began, Return: ended})
}

// do makes a call and adds it.
func (h *history) do(c linearCall, call func() any) any {
	began := h.now()
	result := call()
	h.add(c, result, began, h.now())
	return result
}

// byKey divides a history: keys don't depend on each other.
func byKey(calls []porcupine.Operation) (parts [][]porcupine.Operation) {
	places := make(map[string]int)
	for _, c := range calls {
		key := c.Input.(linearCall).key
		n, known := places[key]
		if !known {
			n = len(parts)
			places[key], parts = n, append(parts, nil)
		}
		parts[n] = append(parts[n], c)
	}
	return parts
}

// openLinear opens stores on one Redis.
func openLinear(t *testing.T) (stores [linearStores]*redisstore.Store, server *redistest.Server) {
	t.Helper()
	server = redistest.Start(t)
	for by := range stores {
		s, err := redisstore.New(redisstore.Options{Address: server.Addr, Timeout: 10 * time.Second}, redisstore.Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		stores[by] = s
	}
	return stores, server
}

// linear makes a history: each client calls visit again and again, with a key. disturb, if not nil,
// is called all the time, too.
func linear(
	t *testing.T, visit func(h *history, s *redisstore.Store, by int, key string), disturb func(server *redistest.Server, key string),
) *history {
	t.Helper()
	stores, server := openLinear(t)
	h := &history{began: time.Now()}
	ctx, stop := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer stop()
	var clients sync.WaitGroup
	key := func() string { return fmt.Sprint("k", rand.IntN(linearKeys)) }
	for by, s := range stores {
		for range linearClients {
			clients.Go(func() {
				for ctx.Err() == nil {
					visit(h, s, by, key())
					time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond) // a client makes random pauses
				}
			})
		}
	}
	if disturb != nil {
		clients.Go(func() {
			for ctx.Err() == nil {
				disturb(server, key())
				time.Sleep(time.Millisecond) // leaves time for the calls between two faults
			}
		})
	}
	clients.Wait()
	return h
}

// check checks whether a history is linearizable. The result is unknown if that takes too long: the search can be
// exponential, and most of all if many calls of a slow machine overlap.
func check(t *testing.T, m porcupine.Model, h *history) porcupine.CheckResult {
	t.Helper()
	m.Partition = byKey
	results := make(map[string]int)
	for _, c := range h.calls {
		results[fmt.Sprint(c.Input.(linearCall).what, " ", c.Output)]++
	}
	t.Logf("%d calls: %v", len(h.calls), results)
	return porcupine.CheckOperationsTimeout(m, h.calls, 10*time.Second)
}

// linearTest makes a history without a fault, which is linearizable, and histories with one, until one is not.
func linearTest(
	t *testing.T, m porcupine.Model, visit func(*testing.T, *history, *redisstore.Store, int, string),
	disturb func(ctx context.Context, server *redistest.Server, key string),
) {
	t.Helper()
	run := func(t *testing.T, disturb func(*redistest.Server, string)) porcupine.CheckResult {
		return check(t, m, linear(t, func(h *history, s *redisstore.Store, by int, key string) { visit(t, h, s, by, key) }, disturb))
	}
	t.Run("as it is", func(t *testing.T) {
		result := run(t, nil)
		for tried := 1; result == porcupine.Unknown && tried < 5; tried++ {
			result = run(t, nil)
		}
		if result != porcupine.Ok {
			t.Errorf("the history is not linearizable: %v", result)
		}
	})
	t.Run("with a fault", func(t *testing.T) {
		for range 20 { // on a slow machine a history has few calls, and can miss the fault
			if run(t, func(server *redistest.Server, key string) { disturb(context.Background(), server, key) }) == porcupine.Illegal {
				return
			}
		}
		t.Error("no history is known not to be linearizable")
	})
}

// banState is a zone with a limit of 2 events that bans after 3 denials.
type banState struct {
	used, denials int
	banned        bool
}

var banModel = porcupine.Model{
	Init: func() any { return banState{} },
	Step: func(state, input, output any) (bool, any) {
		s, want := state.(banState), ""
		switch input.(linearCall).what {
		case "ban":
			s.denials, s.banned = 0, true
		case "unban":
			s.denials, s.banned = 0, false
		case "reset":
			s.used = 0
		case "take":
			switch {
			case s.banned:
				want = "banned"
			case s.used < 2:
				s.used++
				want = "allowed"
			case s.denials < 2:
				s.denials++
				want = "denied"
			default:
				s.denials, s.banned = 0, true
				want = "began"
			}
		}
		return output == want, s
	},
}

// Takes, bans, unbans and resets happen one after the other.
func TestBansAreLinearizable(t *testing.T) {
	t.Parallel()
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 2, Window: 24 * linearHour})
	if err != nil {
		t.Fatal(err)
	}
	limits := []store.Limit{store.NewLimit("z", "", limit)}
	ban := &store.Ban{ID: store.BanID("z", ""), Ban: &algorithms.Ban{
		After: 3, Window: 24 * linearHour, Duration: 24 * linearHour, Max: 48 * linearHour,
	}}
	linearTest(t, banModel, func(t *testing.T, h *history, s *redisstore.Store, by int, key string) {
		change := func(what string, c store.Change) {
			c.Zone, c.Key = "z", key
			h.do(linearCall{key: key, what: what, by: by}, func() any {
				if err := s.Change(t.Context(), c); err != nil {
					t.Error(err)
				}
				return ""
			})
		}
		switch rand.IntN(20) {
		case 0:
			change("ban", store.Change{Ban: []*store.Ban{ban}, BanFor: 24 * linearHour})
		case 1, 2:
			change("unban", store.Change{Forget: []string{ban.ID}})
		case 3:
			change("reset", store.Change{Forget: []string{limits[0].ID}})
		default:
			h.do(linearCall{key: key, what: "take", by: by}, func() any {
				r := []store.Request{{Zone: "z", Key: key, Cost: 1, Limits: limits, Ban: ban}}
				if _, err := s.Take(t.Context(), r); err != nil {
					t.Error(err)
				}
				switch o := r[0].Outcome; {
				case o.Ban.Began:
					return "began"
				case o.Verdict == store.Banned:
					return "banned"
				case o.Verdict == store.Denied:
					return "denied"
				}
				return "allowed"
			})
		}
	}, func(ctx context.Context, server *redistest.Server, key string) {
		if rand.IntN(20) == 0 {
			server.Client.Del(ctx, "caddy_rl:{"+key+"}:"+ban.ID)
		}
	})
}

var overrideModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if c := input.(linearCall); c.what == "set" {
			return true, c.arg
		}
		return output == state, state
	},
}

// A take finds the override that was set last, also if it is the one it was made by.
func TestOverridesAreLinearizable(t *testing.T) {
	t.Parallel()
	text := func() string { return []string{"", "a", "b", "c"}[rand.IntN(4)] }
	linearTest(t, overrideModel, func(t *testing.T, h *history, s *redisstore.Store, by int, key string) {
		arg := text()
		if rand.IntN(4) == 0 {
			h.do(linearCall{key: key, what: "set", arg: arg, by: by}, func() any {
				if err := s.Change(t.Context(), store.Change{Zone: "z", Key: key, Override: &arg}); err != nil {
					t.Error(err)
				}
				return ""
			})
			return
		}
		h.do(linearCall{key: key, what: "take", by: by}, func() any {
			_, err := s.Take(t.Context(), []store.Request{{Zone: "z", Key: key, Override: &store.Override{Text: arg}}})
			var found *store.OverriddenError
			if errors.As(err, &found) {
				return found.Overrides[0]
			} else if err != nil {
				t.Error(err)
			}
			return arg
		})
	}, func(ctx context.Context, server *redistest.Server, key string) {
		if rand.IntN(20) == 0 {
			server.Client.Set(ctx, "caddy_rl:{"+key+"}:"+store.OverrideID("z"), text(), 0)
		}
	})
}

// slotsState is slots, per store: how many requests hold one, how many others may believe do, and how
// many were given back.
type slotsState struct{ held, believed, left [linearStores]int }

const linearSlots = 3

// slotsGrace is how long a give-back may take until other stores see it. It is a round trip, on a
// machine that has other things to do.
const slotsGrace = 250 * time.Millisecond

// slotsModel says: never more than linearSlots requests hold a slot. A take is denied only if so
// many requests hold a slot, or would with the give-backs on their way. Give-backs of other stores
// are on their way until a "told" that ends slotsGrace after them. Give-backs of the same store are
// on their way if they had not ended when the take began.
var slotsModel = porcupine.Model{
	Init: func() any { return slotsState{} },
	Step: func(state, input, output any) (bool, any) {
		s, c := state.(slotsState), input.(linearCall)
		switch c.what {
		case "leave":
			s.held[c.by]--
			s.left[c.by]++
			return true, s
		case "told":
			s.believed[c.by] = s.held[c.by]
			return true, s
		}
		held, believed := 0, s.held[c.by]+s.left[c.by]-c.seen
		for by := range linearStores {
			if held += s.held[by]; by != c.by {
				believed += s.believed[by]
			}
		}
		if output == "granted" {
			s.held[c.by]++
			s.believed[c.by]++
			return held < linearSlots, s
		}
		return believed >= linearSlots, s
	},
}

// slotsHistory is a history of slots. leave gives back a slot.
type slotsHistory struct {
	*history
	leave func(*redisstore.Store, []store.Correction)

	mu   sync.Mutex
	left map[linearCall]int // give-backs that have ended, by store and key
}

func newSlotsHistory(h *history, leave func(*redisstore.Store, []store.Correction)) *slotsHistory {
	return &slotsHistory{history: h, leave: leave, left: make(map[linearCall]int)}
}

// leftBy adds n to the give-backs of a store that have ended, and returns how many they are.
func (h *slotsHistory) leftBy(by int, key string, n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left[linearCall{by: by, key: key}] += n
	return h.left[linearCall{by: by, key: key}]
}

// take takes a slot. It returns what gives it back, or nil if none was free.
func (h *slotsHistory) take(t *testing.T, s *redisstore.Store, by int, key string) (leave func()) {
	r := []store.Request{{Zone: "z", Key: key, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: linearSlots}}}
	c := linearCall{key: key, what: "take", by: by, seen: h.leftBy(by, key, 0)}
	result := h.do(c, func() any {
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Error(err)
		}
		if r[0].Outcome.Slots.Taken {
			return "granted"
		}
		return "denied"
	})
	if result == "denied" {
		return nil
	}
	return func() {
		h.do(linearCall{key: key, what: "leave", by: by}, func() any {
			h.leave(s, []store.Correction{{Request: &r[0], Leave: true}})
			return ""
		})
		h.leftBy(by, key, 1)
		now := h.now()
		h.add(linearCall{key: key, what: "told", by: by}, "", now, now+slotsGrace.Nanoseconds())
	}
}

// Slots are granted as slotsModel says.
func TestSlotsAreLinearizable(t *testing.T) {
	t.Parallel()
	correct := func(s *redisstore.Store, c []store.Correction) { s.Correct(c, nil) }
	var histories sync.Map // slotsHistory by history
	linearTest(t, slotsModel, func(t *testing.T, h *history, s *redisstore.Store, by int, key string) {
		of, _ := histories.LoadOrStore(h, newSlotsHistory(h, correct))
		if leave := of.(*slotsHistory).take(t, s, by, key); leave != nil {
			time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // the request is in flight for a random time
			leave()
		}
	}, func(ctx context.Context, server *redistest.Server, key string) {
		server.Client.Del(ctx, "caddy_rl:{"+key+"}:"+store.SlotsID("z", ""))
	})
	for what, leave := range map[string]func(*redisstore.Store, []store.Correction){
		"with give-backs":                     correct,
		"with give-backs that are never sent": func(s *redisstore.Store, c []store.Correction) { s.LeaveSlots(c) },
	} {
		t.Run(what, func(t *testing.T) {
			stores, _ := openLinear(t)
			h := newSlotsHistory(&history{began: time.Now()}, leave)
			var held []func()
			for range linearSlots {
				held = append(held, h.take(t, stores[0], 0, "k"))
			}
			for _, leave := range held {
				leave()
			}
			time.Sleep(slotsGrace + 50*time.Millisecond) // counts of slots expire by the clock of Redis
			h.take(t, stores[1], 1, "k")
			want := porcupine.Illegal
			if what == "with give-backs" {
				want = porcupine.Ok
			}
			if got := check(t, slotsModel, h.history); got != want {
				t.Errorf("linearizable: %v, want %v", got, want)
			}
		})
	}
}
