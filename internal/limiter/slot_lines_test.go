package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// slotTest is a handler in this process whose zones have slots that can be waited for.
type slotTest struct {
	handler *Limiter
	zones   map[string]*Zone
}

// newSlotTest returns a slotTest. Its lines pause so long between two questions, so an hour stands
// for a lost wake-up.
func newSlotTest(budgets store.Store, pause time.Duration) *slotTest {
	return &slotTest{handler: &Limiter{Store: budgets, SlotLines: lines.NewSlotLines(pause.Microseconds(), nil)}, zones: make(map[string]*Zone)}
}

// addZone adds a zone whose requests wait for so long.
func (s *slotTest) addZone(t *testing.T, name string, maxWait time.Duration, places int64) {
	t.Helper()
	s.zones[name] = &Zone{
		Name: name, Metrics: telemetry.ZoneMetrics{Disabled: true},
		Delay: &lines.DelayPolicy{MaxDelay: maxWait.Microseconds(), MaxPlaces: places, Places: NewDelayPlaces()},
	}
}

// slotAsk is a request to a zone with so many slots, for slotTest.
type slotAsk struct {
	zone, key string
	slots     int64
	limits    []store.Limit
	cost      int64 // 0 stands for 1
	mode      algorithms.Mode
	ban       *store.Ban
	shadow    bool
	reserves  bool // what is charged
}

// decide lets the handler decide a request. The caller ends it with finish.
func (s *slotTest) decide(ctx context.Context, asks ...slotAsk) (*State, error) {
	state := &State{Limiter: s.handler, Requests: make([]store.ZoneRequest, len(asks)), Entries: make([]Entry, len(asks))}
	for i, a := range asks {
		r := &state.Requests[i]
		*r = store.ZoneRequest{
			Zone: a.zone, Key: a.key, Cost: cmp.Or(a.cost, 1), Limits: a.limits, Mode: a.mode, Ban: a.ban, Shadow: a.shadow,
		}
		if a.slots > 0 {
			r.Slots = &store.Slots{ID: store.SlotsID(a.zone, ""), Limit: a.slots}
		}
		if a.reserves {
			r.ReservedID = store.ReservedID(a.zone, "")
		}
		state.Entries[i] = Entry{Zone: s.zones[a.zone], LimitSet: &LimitSet{}, ZoneRequest: r}
	}
	return state, s.handler.decide(ctx, state)
}

// wantIdle checks that nobody waits, and that nothing is left of the requests that waited.
func (s *slotTest) wantIdle(t *testing.T) {
	t.Helper()
	if requests, lines := s.handler.SlotLines.Waiting(); requests != 0 || lines != 0 {
		t.Errorf("%d requests wait in %d lines, want none", requests, lines)
	}
	for _, z := range s.zones {
		if z.Delay != nil {
			wantNoPlaces(t, z)
		}
	}
}

// inFlight counts requests by key, and the largest number of each key.
type inFlight struct {
	mu        sync.Mutex
	now, most map[string]int64
	passed    map[string][]int // the numbers of the requests of a key, in the order in which they passed
}

func newInFlight() *inFlight {
	return &inFlight{now: make(map[string]int64), most: make(map[string]int64), passed: make(map[string][]int)}
}

func (f *inFlight) begin(key string, number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now[key]++
	f.most[key] = max(f.most[key], f.now[key])
	f.passed[key] = append(f.passed[key], number)
}

func (f *inFlight) end(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now[key]--
}

// Clients come and leave at random. No more requests of a key are in flight than it has slots. They
// pass in the order in which they came. All whose clients stay pass, as soon as a slot is free,
// although no line ever asks without a reason.
func TestSlotLineLaws(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(100)) {
		random := rand.New(rand.NewPCG(seed, 14))
		synctest.Test(t, func(t *testing.T) {
			memory := store.NewSharedMemory()
			s := newSlotTest(memory.Bounded(1000, func() int { return 1 }, nil), 1000*time.Hour)
			s.addZone(t, "api", time.Hour, 1000)
			slots, keys, flying := 1+random.Int64N(4), 1+random.IntN(3), newInFlight()
			var clients sync.WaitGroup
			stayed := make(map[string]int)
			work := make(map[string]time.Duration)
			began := time.Now()
			for number := range 80 {
				key := fmt.Sprint(random.IntN(keys))
				took := time.Duration(random.Int64N(int64(time.Second)))
				ctx, stop := t.Context(), func() {}
				if random.IntN(4) == 0 {
					ctx, stop = context.WithTimeout(ctx, time.Duration(1+random.Int64N(int64(3*time.Second))))
				} else {
					stayed[key]++
				}
				work[key] += took
				clients.Go(func() {
					defer stop()
					state, err := s.decide(ctx, slotAsk{zone: "api", key: key, slots: slots})
					defer state.sendCorrections()
					switch {
					case err == nil && state.Allowed:
						flying.begin(key, number)
						defer flying.end(key)
						time.Sleep(took)
					case !errors.Is(err, errClientGone):
						t.Errorf("seed %d: request %d was denied: %v", seed, number, err)
					}
				})
				time.Sleep(time.Duration(1 + random.Int64N(int64(200*time.Millisecond))))
			}
			arrivals := time.Since(began)
			clients.Wait()
			for key, most := range flying.most {
				if most > slots {
					t.Errorf("seed %d: %d requests of a key were in flight, it has %d slots", seed, most, slots)
				}
				if !slices.IsSorted(flying.passed[key]) {
					t.Errorf("seed %d: requests passed in the order %v", seed, flying.passed[key])
				}
				if n := len(flying.passed[key]); n < stayed[key] {
					t.Errorf("seed %d: %d requests passed, %d clients stayed", seed, n, stayed[key])
				}
				if took := time.Since(began); took > arrivals+work["0"]+work["1"]+work["2"] {
					t.Errorf("seed %d: the last request ended after %v: a slot was free meanwhile", seed, took)
				}
			}
			if n := memory.Keys(); n != 0 {
				t.Errorf("seed %d: %d slots were not given back", seed, n)
			}
			s.wantIdle(t)
		})
		if t.Failed() {
			return
		}
	}
}

// Requests of many zones that need the slots of the others never wait for each other in a circle.
func TestSlotsOfManyZones(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(50)) {
		random := rand.New(rand.NewPCG(seed, 15))
		synctest.Test(t, func(t *testing.T) {
			s := newSlotTest(inMemory(), 1000*time.Hour)
			zones := []slotAsk{{zone: "a", slots: 1}, {zone: "b", slots: 2}, {zone: "c", slots: 1}, {zone: "d", slots: 3}}
			for _, ask := range zones {
				s.addZone(t, ask.zone, 10*time.Hour, 1000)
			}
			flying := newInFlight()
			var clients sync.WaitGroup
			began := time.Now()
			for number := range 60 {
				asks := slices.DeleteFunc(slices.Clone(zones), func(slotAsk) bool { return random.IntN(2) == 0 })
				if len(asks) == 0 {
					continue
				}
				took := time.Duration(1 + random.Int64N(int64(time.Second)))
				clients.Go(func() {
					state, err := s.decide(t.Context(), asks...)
					defer state.sendCorrections()
					if err != nil || !state.Allowed {
						t.Errorf("seed %d: request %d was denied: %v", seed, number, err)
					}
					for _, a := range asks {
						flying.begin(a.zone, number)
						defer flying.end(a.zone)
					}
					time.Sleep(took)
				})
				time.Sleep(time.Duration(1 + random.Int64N(int64(100*time.Millisecond))))
			}
			clients.Wait()
			for _, ask := range zones {
				if most := flying.most[ask.zone]; most > ask.slots {
					t.Errorf("seed %d: %d requests were in flight in zone %s, which has %d slots", seed, most, ask.zone, ask.slots)
				}
			}
			if took := time.Since(began); took > 70*time.Second {
				t.Errorf("seed %d: the last request ended after %v", seed, took)
			}
			s.wantIdle(t)
		})
		if t.Failed() {
			return
		}
	}
}

// Requests of two handlers that take the slots of two zones in opposite order block each other, until the
// longest delay is over.
func TestSlotsOfTwoHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlotTest(inMemory(), 1000*time.Hour)
		s.addZone(t, "a", time.Minute, 100)
		s.addZone(t, "b", time.Minute, 100)
		began := time.Now()
		var clients sync.WaitGroup
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			clients.Go(func() {
				outer, err := s.decide(t.Context(), slotAsk{zone: order[0], key: "k", slots: 1})
				defer outer.sendCorrections()
				if err != nil || !outer.Allowed {
					t.Errorf("the first handler denied: %v", err)
				}
				time.Sleep(time.Second)
				inner, err := s.decide(t.Context(), slotAsk{zone: order[1], key: "k", slots: 1})
				defer inner.sendCorrections()
				if took := time.Since(began) - time.Second; err != nil || inner.Allowed || took != time.Minute {
					t.Errorf("allowed %v after %v; %v", inner.Allowed, took, err)
				}
			})
		}
		clients.Wait()
		s.wantIdle(t)
	})
}

// Many requests at once are never more in flight than slots, and all of them pass in the end, although no line asks
// without a reason.
func TestSlotLinesUnderRace(t *testing.T) {
	t.Parallel()
	s, flying := newSlotTest(inMemory(), 1000*time.Hour), newInFlight()
	s.addZone(t, "api", caddytest.Patient, 1000)
	var clients sync.WaitGroup
	for number := range 120 {
		key := fmt.Sprint(number % 3)
		clients.Go(func() {
			state, err := s.decide(t.Context(), slotAsk{zone: "api", key: key, slots: 2})
			defer state.sendCorrections()
			if err != nil || !state.Allowed {
				t.Errorf("a request was denied: %v", err)
				return
			}
			flying.begin(key, number)
			defer flying.end(key)
		})
	}
	clients.Wait()
	for key, most := range flying.most {
		if most > 2 {
			t.Errorf("%d requests of key %s were in flight, it has 2 slots", most, key)
		}
	}
	s.wantIdle(t)
}

// A request waits up to the longest delay of its zone, for its slot and its limits together. The
// time that a decision takes doesn't include the wait.
func TestSlotWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := storetest.Limit(t, "api", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 4_000_000, Burst: 1})
		s := newSlotTest(inMemory(), 1000*time.Hour)
		s.addZone(t, "api", 10*time.Second, 100)
		ask := slotAsk{zone: "api", key: "k", slots: 1, limits: []store.Limit{limit}}
		for _, test := range []struct {
			runs, want time.Duration // the request before ends after runs; this one passes or is denied after want
			allowed    bool
		}{
			{2 * time.Second, 4 * time.Second, true}, // 2 s for the slot, 2 s for the limit
			{9 * time.Second, 9 * time.Second, true},
			{10 * time.Second, 10 * time.Second, false},
			{time.Minute, 10 * time.Second, false},
		} {
			before, err := s.decide(t.Context(), ask)
			if err != nil || !before.Allowed {
				t.Fatal("denied:", err)
			}
			time.AfterFunc(test.runs, before.sendCorrections)
			began := time.Now()
			state, err := s.decide(t.Context(), ask)
			if took := time.Since(began); err != nil || state.Allowed != test.allowed || took != test.want {
				t.Errorf("%v: allowed %v after %v, want %v after %v; %v", test.runs, state.Allowed, took, test.allowed, test.want, err)
			}
			if d, want := state.Requests[0].Outcome.Decisions[0], map[bool]algorithms.Micros{true: 4_000_000, false: 1}[test.allowed]; d.ResetAfter != want {
				t.Errorf("%v: the limit is untouched after %d µs, want %d", test.runs, d.ResetAfter, want)
			}
			if e := &state.Entries[0]; !state.Allowed && (!e.LacksSlot() || !e.Denies() || e.RetryAfter() != store.SlotRetryAfter) {
				t.Errorf("%v: denied with %+v", test.runs, e.Outcome)
			}
			if outcome, _ := state.Entries[0].requestOutcome(state.Allowed); outcome != map[bool]telemetry.Outcome{true: telemetry.OutcomeDelayed, false: telemetry.OutcomeDenied}[test.allowed] {
				t.Errorf("%v: counted as %v", test.runs, outcome)
			}
			state.sendCorrections()
			time.Sleep(time.Hour)
		}
		s.wantIdle(t)

		before, _ := s.decide(t.Context(), ask)
		time.AfterFunc(5*time.Second, before.sendCorrections)
		state := newTestState(s.handler, s.zones["api"], &LimitSet{}, before.Requests[0])
		defer reservePlacesFor(t, state)()
		if allowed, took, err := state.take(t.Context(), t.Context()); !allowed || took > time.Microsecond || err != nil {
			t.Errorf("allowed %v in %v, %v", allowed, took, err)
		}
	})
}

// reservePlacesFor takes the places that take needs, and returns what gives them back.
func reservePlacesFor(t *testing.T, state *State) (release func()) {
	t.Helper()
	if !state.reservePlaces() {
		t.Fatal("there is no place")
	}
	return state.Wait.Release
}
