package faultsim

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const (
	slotExpiry = redisstore.DefaultSlotExpiry
	setAgain   = slotExpiry / 3 // the time in which a store sets each count again
	soonAfter  = 2 * time.Second
)

// instants are times after a take, before and after the store sets its count again.
var instants = []time.Duration{0, time.Second, setAgain - time.Second, setAgain, setAgain + time.Second}

// Slots held while Redis loses them, hangs or has its clock set are counted again within a third of the expiry,
// until they are left. Then no state remains.
func TestSlotsSurvive(t *testing.T) {
	for name, fault := range map[string]func(s *simredis.Server){
		"emptied":                              (*simredis.Server).Flush,
		"restarted":                            func(s *simredis.Server) { s.Kill(); s.Start(nil) },
		"was down":                             func(s *simredis.Server) { s.Kill(); time.Sleep(2 * slotExpiry); s.Start(nil) },
		"frozen":                               func(s *simredis.Server) { freeze(s, slotExpiry/2) },
		"frozen until all counts have expired": func(s *simredis.Server) { freeze(s, 2*slotExpiry) },
		"ahead":                                func(s *simredis.Server) { s.StepClock(10 * time.Minute) },
		"back":                                 func(s *simredis.Server) { s.StepClock(-10 * time.Minute) },
	} {
		for _, at := range instants {
			t.Run(fmt.Sprint(name, " after ", at), func(t *testing.T) {
				inBubble(t, 0, func(t *testing.T) { slotsSurvive(t, at, fault) })
			})
		}
	}
}

func slotsSurvive(t *testing.T, at time.Duration, fault func(*simredis.Server)) {
	network := newNetwork(t)
	server := network.NewServer("10.0.0.1:6379")
	o := redisstore.Options{Address: server.Address(), Timeout: timeout}
	s, other := openSim(t, network, time.Millisecond, o), openSim(t, network, time.Millisecond, o)
	var held []store.ZoneRequest
	for range 5 {
		held = append(held, takeSlot(t, s, "k", 5))
	}
	time.Sleep(at)
	fault(server)
	within(t, setAgain+soonAfter, "the slots to be counted again", func() bool { return inFlight(t, other, "k") == 5 })
	for began := time.Now(); time.Since(began) < slotExpiry*3/2; time.Sleep(250 * time.Millisecond) {
		if n := inFlight(t, other, "k"); n != 5 {
			t.Fatalf("%d in flight after %v, want 5", n, time.Since(began))
		}
	}
	if takeSlot(t, other, "k", 5).Outcome.Slots.Taken {
		t.Error("a sixth request is in flight")
	}
	leave(s, held...)
	within(t, soonAfter, "the slots to be free", func() bool { return inFlight(t, other, "k") == 0 })
	time.Sleep(11 * time.Minute) // longer than the clock of the server was set back
	if n := inFlight(t, other, "k"); n != 0 || len(server.Snapshot()) > 0 {
		t.Errorf("%d in flight, and %d keys", n, len(server.Snapshot()))
	}
}

// A slot lasts as long as its request. The slots of an instance that is killed expire.
func TestSlotsOfTheKilled(t *testing.T) {
	for _, at := range instants {
		t.Run(at.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				network := newNetwork(t)
				server := network.NewServer("10.0.0.1:6379")
				o := redisstore.Options{Address: server.Address(), Timeout: timeout}
				s := openSim(t, network, time.Millisecond, o)
				client := network.NewClient(time.Millisecond)
				o.Dialer = client
				killed := must(redisstore.New(o, redisstore.Hooks{}))
				t.Cleanup(func() { _ = killed.Close() })
				held := takeSlot(t, s, "k", 2)
				if !takeSlot(t, killed, "k", 2).Outcome.Slots.Taken || takeSlot(t, s, "k", 2).Outcome.Slots.Taken {
					t.Fatal("there are other than 2 slots")
				}
				time.Sleep(at)
				client.SetDead()
				took := within(t, slotExpiry+soonAfter, "the slot of the killed instance", func() bool {
					return inFlight(t, s, "k") == 1
				})
				if least := slotExpiry - setAgain - soonAfter; took < least {
					t.Errorf("the slot is free after %v, want %v at least", took, least)
				}
				for began := time.Now(); time.Since(began) < 2*slotExpiry; time.Sleep(time.Second) {
					second := takeSlot(t, s, "k", 2)
					if o := second.Outcome.Slots; !o.Taken || o.InFlight != 2 {
						t.Fatalf("%+v, want 2 in flight", o)
					}
					leave(s, second)
				}
				leave(s, held)
				last := takeSlot(t, s, "k", 1)
				if o := last.Outcome.Slots; !o.Taken || o.InFlight != 1 {
					t.Errorf("%+v, want 1 in flight", o)
				}
				leave(s, last)
			})
		})
	}
}

// A slot that is left while Redis fails is free soon after Redis works again.
func TestSlotsLeftInOutage(t *testing.T) {
	for _, lasts := range []time.Duration{time.Second, setAgain, slotExpiry, 2 * slotExpiry} {
		t.Run(lasts.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				network := newNetwork(t)
				server := network.NewServer("10.0.0.1:6379")
				s := openSim(t, network, time.Millisecond, redisstore.Options{Address: server.Address(), Timeout: timeout})
				other := openSim(t, network, time.Millisecond, redisstore.Options{Address: server.Address(), Timeout: timeout})
				b := store.NewBreaker(s, nil)
				t.Cleanup(b.Close)
				held := takeSlot(t, b, "k", 1)
				thaw := server.Freeze()
				within(t, soonAfter, "the breaker to open", func() bool {
					_, err := b.Take(t.Context(), ask("other"))
					return err != nil && b.Open()
				})
				var failed error
				b.Correct([]store.Correction{{Request: &held, Leave: true}}, func(err error) { failed = err })
				if reasonOf(failed) != store.ReasonOpen {
					t.Errorf("error %v, want the reason %q", failed, store.ReasonOpen)
				}
				time.Sleep(lasts)
				thaw()
				within(t, setAgain+soonAfter, "the slot to be free", func() bool { return inFlight(t, other, "k") == 0 })
				last := takeSlot(t, other, "k", 1)
				if !last.Outcome.Slots.Taken {
					t.Error("the slot is not free")
				}
				leave(other, last)
			})
		})
	}
}

// Requests that Redis allowed count while Redis fails. Requests allowed in the meantime count in Redis once it works again.
func TestSlotsInOutage(t *testing.T) {
	for _, at := range instants {
		t.Run(at.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) { slotsInOutage(t, at) })
		})
	}
}

func slotsInOutage(t *testing.T, at time.Duration) {
	network := newNetwork(t)
	server := network.NewServer("10.0.0.1:6379")
	o := redisstore.Options{Address: server.Address(), Timeout: timeout}
	other := openSim(t, network, time.Millisecond, o)
	b := store.NewBreaker(openSim(t, network, time.Millisecond, o), nil)
	t.Cleanup(b.Close)
	f := store.NewFailover(store.NewDenyCache(b), store.NewMemory(1000), func(error) {})
	take := func(taken, local bool, n int64) store.ZoneRequest {
		t.Helper()
		r := takeSlot(t, f, "k", 3)
		if o := r.Outcome; o.Slots.Taken != taken || o.Local != local || o.Slots.InFlight != n {
			t.Errorf("%+v, want taken %v, local %v, %d in flight", o, taken, local, n)
		}
		return r
	}
	first, second := take(true, false, 1), take(true, false, 2)
	time.Sleep(at)
	thaw := server.Freeze()
	within(t, soonAfter, "the breaker to open", func() bool {
		_, _ = f.Take(t.Context(), ask("other"))
		return b.Open()
	})
	third := take(true, true, 3)
	take(false, true, 3)
	leave(f, first)
	fourth := take(true, true, 3)
	time.Sleep(at)
	thaw()
	within(t, soonAfter, "the breaker to close", func() bool { return !b.Open() })
	within(t, soonAfter, "the slots to be counted", func() bool { return inFlight(t, other, "k") == 3 })
	take(false, false, 3)
	leave(f, second, third, fourth)
	within(t, soonAfter, "the slots to be free", func() bool { return inFlight(t, other, "k") == 0 })
}

// While a Redis fails, no message about slots is sent to it. Their counts are set soon after it works again.
func TestNoSetsInOutage(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		network := newNetwork(t)
		server := network.NewServer("10.0.0.1:6379")
		o := redisstore.Options{Address: server.Address(), Timeout: timeout, Dialer: network.NewClient(time.Millisecond)}
		r := must(redisstore.Open(o, redisstore.Hooks{}))
		t.Cleanup(func() { _ = r.Close() })
		held := takeSlot(t, r, "k", 1)
		other := openSim(t, network, time.Millisecond, redisstore.Options{Address: server.Address(), Timeout: timeout})
		server.SetFull(true)
		if err := r.Check(t.Context()); err == nil || r.Stats().Failing != 1 {
			t.Fatalf("error %v, %d failing", err, r.Stats().Failing)
		}
		var messages atomic.Int64
		server.SetTrouble(func(args []string) simredis.Trouble {
			if !strings.HasSuffix(args[3], "::probe") { // the key of a check
				messages.Add(1)
			}
			return simredis.Trouble{}
		})
		time.Sleep(2 * slotExpiry)
		if n := messages.Load(); n > 0 {
			t.Errorf("%d messages in the outage", n)
		}
		server.Flush()
		server.SetFull(false)
		within(t, soonAfter, "the breaker to close", func() bool { return r.Stats().Failing == 0 })
		within(t, soonAfter, "the count to be set", func() bool { return inFlight(t, other, "k") == 1 })
		leave(r, held)
	})
}
