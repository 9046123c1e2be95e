package limiter

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A request waits in one line after the other, and holds no slot meanwhile. It doesn't overtake those
// who came earlier, in whichever line they stand.
func TestSlotsOfSeveralZones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlotTest(inMemory(), 1000*time.Hour)
		s.addZone(t, "a", time.Hour, 100)
		s.addZone(t, "b", time.Hour, 100)
		a, b := askA, askB
		var mu sync.Mutex
		var order []string
		var clients sync.WaitGroup
		send := func(name string, asks ...slotAsk) (finish func()) {
			done := make(chan struct{})
			clients.Go(func() {
				state, err := s.decide(t.Context(), asks...)
				if err != nil || !state.Allowed {
					t.Errorf("%s was denied: %v", name, err)
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				<-done
				state.sendCorrections()
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
			return func() {
				close(done)
				synctest.Wait()
			}
		}
		want := func(names ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(order, names) {
				t.Errorf("%v passed, want %v", order, names)
			}
		}
		endA, endB := send("A", a), send("B", b)
		endBoth := send("both", a, b) // waits for a
		want("A", "B")
		endA() // now it waits for b
		want("A", "B")
		endA = send("second A", a) // and takes nothing from others
		want("A", "B", "second A")
		endLateA := send("late A", a)
		endLateB := send("late B", b)
		endB() // both waits for a again, and so late B passes
		want("A", "B", "second A", "late B")
		endLateB()
		want("A", "B", "second A", "late B")
		endA() // both came before late A
		want("A", "B", "second A", "late B", "both")
		endBoth()
		want("A", "B", "second A", "late B", "both", "late A")
		endLateA()
		clients.Wait()
		s.wantIdle(t)
	})
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

// hookedStore is a store that calls functions when it has decided or corrected.
type hookedStore struct {
	store.Store
	afterTake, afterCorrect func()
}

// callOnce calls a function of the hookedStore, and forgets it.
func callOnce(hook *func()) {
	if call := *hook; call != nil {
		*hook = nil
		call()
	}
}

func (s *hookedStore) Take(ctx context.Context, requests []store.Request) (bool, error) {
	allowed, err := s.Store.Take(ctx, requests)
	callOnce(&s.afterTake)
	return allowed, err
}

func (s *hookedStore) Correct(corrections []store.Correction, failed func(error)) {
	s.Store.Correct(corrections, failed)
	callOnce(&s.afterCorrect)
}

// A slot that is given back between the denial of a request and its waiting is not missed.
func TestSlotIsFreeBeforeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooks := &hookedStore{Store: inMemory()}
		s := newSlotTest(hooks, 1000*time.Hour)
		s.addZone(t, "api", time.Hour, 100)
		ask := slotAsk{zone: "api", key: "k", slots: 1}
		first, _ := s.decide(t.Context(), ask)
		hooks.afterTake = first.sendCorrections
		began := time.Now()
		state, err := s.decide(t.Context(), ask)
		if err != nil || !state.Allowed || time.Since(began) > 0 {
			t.Errorf("allowed %v after %v; %v", state.Allowed, time.Since(began), err)
		}
		state.sendCorrections()
		s.wantIdle(t)
	})
}

// Asks for the one slot of zone a, and for that of zone b.
var (
	askA = slotAsk{zone: "a", key: "k", slots: 1}
	askB = slotAsk{zone: "b", key: "k", slots: 1}
)

// takenSlots has a zone a with so many places for those that wait, a zone b with 100, and a request that holds
// the slot of each.
func takenSlots(t *testing.T, places int64) (s *slotTest, hooks *hookedStore, firstA, firstB *State) {
	t.Helper()
	hooks = &hookedStore{Store: inMemory()}
	s = newSlotTest(hooks, 1000*time.Hour)
	s.addZone(t, "a", time.Hour, places)
	s.addZone(t, "b", time.Hour, 100)
	firstA, _ = s.decide(t.Context(), askA)
	firstB, _ = s.decide(t.Context(), askB)
	return s, hooks, firstA, firstB
}

// A newcomer takes no slot that was given back before the first of the line has asked for it. This
// also holds if the newcomer waits for a slot of another zone.
func TestNewcomersDontOvertake(t *testing.T) {
	for _, places := range []int64{100, 1} { // with one place the newcomer is denied instead
		synctest.Test(t, func(t *testing.T) {
			s, hooks, firstA, firstB := takenSlots(t, places)
			var clients sync.WaitGroup
			var passed []string
			send := func(name string, asks ...slotAsk) {
				clients.Go(func() {
					state, err := s.decide(t.Context(), asks...)
					if err != nil || state.Allowed == (places == 1 && name != "waiting") {
						t.Errorf("with %d places, %s: allowed %v; %v", places, name, state.Allowed, err)
					}
					passed = append(passed, name)
					if e := &state.Entries[0]; !state.Allowed && (!e.Denies() || !e.LacksSlot() || e.Zone.Name != "a") {
						t.Errorf("denied with %+v", e.Outcome)
					}
					time.Sleep(time.Second)
					state.sendCorrections()
				})
				synctest.Wait()
				time.Sleep(time.Millisecond)
			}
			send("waiting", askA)
			if places > 1 {
				send("waiting for b", askA, askB)
				// It stands behind the first one, until that one passes. Then b is missing.
			}
			hooks.afterCorrect = func() {
				firstB.sendCorrections()
				send("newcomer", askA)
			}
			firstA.sendCorrections()
			clients.Wait()
			want := []string{"waiting", "waiting for b", "newcomer"}
			if places == 1 {
				want = []string{"newcomer", "waiting"}
			}
			if !slices.Equal(passed, want) {
				t.Errorf("with %d places: %v passed, want %v", places, passed, want)
			}
			s.wantIdle(t)
		})
	}
}

// A request that waits for b doesn't take a slot of a from a request that came earlier.
func TestWaitersDontOvertakeElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hooks, firstA, firstB := takenSlots(t, 100)
		var clients sync.WaitGroup
		var passed []string
		send := func(name string, asks ...slotAsk) {
			clients.Go(func() {
				state, err := s.decide(t.Context(), asks...)
				if err != nil || !state.Allowed {
					t.Errorf("%s: denied; %v", name, err)
				}
				passed = append(passed, name)
				if name == "b" { // when a slot of a is given back, and nobody has asked for it
					hooks.afterCorrect = func() {
						state.sendCorrections()
						synctest.Wait()
					}
					firstA.sendCorrections()
					return
				}
				time.Sleep(time.Second)
				state.sendCorrections()
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		send("a", askA)
		send("b", askB)
		send("both", askB, askA) // behind b
		firstB.sendCorrections()
		clients.Wait()
		if want := []string{"b", "a", "both"}; !slices.Equal(passed, want) {
			t.Errorf("%v passed, want %v", passed, want)
		}
		s.wantIdle(t)
	})
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
