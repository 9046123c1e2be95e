package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// slotCounts returns how many requests hold a slot of a key, as a store without held slots finds.
func slotCounts(t *testing.T, s store.Store, key string) int64 {
	t.Helper()
	r := []store.Request{{Zone: "z", Key: key, Peek: true, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: 100}}}
	if _, err := s.Take(t.Context(), r); err != nil {
		return -1
	}
	return r[0].Outcome.Slots.InFlight
}

// waitForSlots waits until so many requests hold a slot of a key, as a store without held slots finds.
func waitForSlots(t *testing.T, s store.Store, key string, want int64) {
	t.Helper()
	redistest.WaitForState(t, fmt.Sprint(want, " slots of ", key, " in flight"), func() (any, bool) {
		n := slotCounts(t, s, key)
		return fmt.Sprint(n, ", -1 is a failure"), n == want
	})
}

// Slots held while Redis loses them, hangs or has its clock set are counted again within a third of
// the expiry, until they are left. Then no state remains.
func TestSlotsSurviveRedis(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const expiry = 3 * time.Second
	for _, test := range []struct {
		name  string
		fault func(t *testing.T, server *redistest.Server, clock redistest.Clock)
	}{
		{"emptied", func(t *testing.T, server *redistest.Server, _ redistest.Clock) { server.Client.FlushAll(t.Context()) }},
		{"restarted", func(t *testing.T, server *redistest.Server, _ redistest.Clock) {
			server.Kill(t)
			server.Restart(t)
		}},
		{"frozen", func(t *testing.T, server *redistest.Server, _ redistest.Clock) {
			server.Freeze(t)
			time.Sleep(expiry / 2) // the store has to set its counts meanwhile, and can't
			server.Thaw(t)
		}},
		{"ahead", func(t *testing.T, _ *redistest.Server, clock redistest.Clock) { clock.Set(t, 10*time.Minute) }},
		{"back", func(t *testing.T, _ *redistest.Server, clock redistest.Clock) { clock.Set(t, -10*time.Minute) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, clock := redistest.StartClock(t)
			o := redisstore.Options{Address: server.Addr, SlotExpiry: expiry, Timeout: 500 * time.Millisecond}
			s, other := open(t, o), open(t, o)
			var held []store.Request
			for range 5 {
				held = append(held, takeSlot(t, s, "k", 5))
			}
			test.fault(t, server, clock)
			waitForSlots(t, other, "k", 5)
			for stop := time.Now().Add(expiry * 3 / 2); time.Now().Before(stop); {
				time.Sleep(20 * time.Millisecond) // a count that nobody sets again expires meanwhile
				if n := slotCounts(t, other, "k"); n != 5 {
					t.Fatalf("%d in flight, want 5", n)
				}
			}
			if r := takeSlot(t, other, "k", 5); r.Outcome.Slots.Taken {
				t.Error("a sixth request is in flight")
			}
			if err := s.CorrectAt(t.Context(), 0, storetest.Leaves(held)); err != nil {
				t.Fatal(err)
			}
			waitForSlots(t, other, "k", 0)
		})
	}
}

// A client that sends one request after another is never denied its only slot, however far away
// Redis is.
func TestOneSlotInSequence(t *testing.T) {
	t.Parallel()
	s := open(t, redisstore.Options{Address: farAway(t, redistest.Start(t).Addr, 5*time.Millisecond)})
	for n := range 100 {
		r := takeSlot(t, s, "k", 1)
		if !r.Outcome.Slots.Taken {
			t.Fatalf("request %d: %+v", n, r.Outcome.Slots)
		}
		s.Correct([]store.Correction{{Request: &r, Leave: true}}, func(err error) { t.Error(err) })
	}
}

// Requests that Redis admitted count while Redis fails. Requests admitted meanwhile count in Redis
// once it works again.
func TestSlotsThroughAnOutage(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	server := redistest.Start(t)
	o := redisstore.Options{Address: server.Addr, Timeout: time.Second}
	s, other := open(t, o), open(t, redisstore.Options{Address: server.Addr})
	b := store.NewBreaker(s, nil)
	defer b.Close()
	f := store.NewFailover(store.NewDenyCache(b), store.NewMemory(1000), func(error) {})
	take := func(taken, local bool, n int64) store.Request {
		t.Helper()
		r := takeSlot(t, f, "k", 3)
		if o := r.Outcome; o.Slots.Taken != taken || o.Local != local || o.Slots.InFlight != n {
			t.Errorf("%+v, want taken %v, local %v, %d in flight", o, taken, local, n)
		}
		return r
	}
	first, second := take(true, false, 1), take(true, false, 2)
	server.Freeze(t)
	redistest.WaitFor(t, "the breaker to open", func() bool {
		_, _ = f.Take(t.Context(), request(t, "other"))
		return b.Open()
	})
	third := take(true, true, 3)
	take(false, true, 3)
	f.Correct(storetest.Leaves([]store.Request{first}), nil)
	fourth := take(true, true, 3)
	server.Thaw(t)
	redistest.WaitFor(t, "the breaker to close", func() bool { return !b.Open() })
	waitForSlots(t, other, "k", 3)
	take(false, false, 3)
	f.Correct(storetest.Leaves([]store.Request{second, third, fourth}), nil)
	waitForSlots(t, other, "k", 0)
}

// Counts are set on the node that a slot has moved to, even if no request has one of its keys.
func testClusterSetsMovedSlots(t *testing.T, c *redistest.Cluster) {
	t.Parallel() // it waits for counts to expire, when no other test stops a node
	const expiry = 2 * time.Second
	s := openCluster(t, c, redisstore.Options{SlotExpiry: expiry})
	other := openCluster(t, c, redisstore.Options{SlotExpiry: expiry})
	slot := c.Slot(t, "set elsewhere")
	held := takeSlot(t, s, "set elsewhere", 3)
	stays := func(when string) {
		t.Helper()
		time.Sleep(3 * expiry / 2) // a count that nobody sets again expires meanwhile
		if n := slotCounts(t, other, "set elsewhere"); n != 1 {
			t.Errorf("%s: %d in flight, want 1", when, n)
		}
	}
	moveSlot(t, c, slot, stays)
	leaveSlot(t, s, held)
	waitForSlots(t, other, "set elsewhere", 0)
}

// An instance finds out that Redis may have lost its counts: calls failed, or a count is missing. The next
// take of each key with requests in flight then sets the count before it takes a slot. So this instance
// admits nothing above the limit, except the one request that finds the missing count.
func TestSlotsAfterLoss(t *testing.T) {
	const keys = 50
	for _, test := range []struct {
		name     string
		lose     func(t *testing.T, server *redistest.Server, s store.Store)
		admitted int
	}{
		{"killed", func(t *testing.T, server *redistest.Server, s store.Store) {
			server.Kill(t)
			if _, err := s.Take(t.Context(), request(t, "k")); err == nil {
				t.Error("a take succeeds without a Redis")
			}
			server.Restart(t)
		}, 0},
		{"flushed", func(t *testing.T, server *redistest.Server, _ store.Store) { server.Client.FlushAll(t.Context()) }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Start(t)
			s := open(t, redisstore.Options{Address: server.Addr, Timeout: 10 * time.Second})
			for n := range keys {
				takeSlot(t, s, fmt.Sprint(n), 1)
			}
			test.lose(t, server, s)
			admitted := 0
			for n := range keys {
				if takeSlot(t, s, fmt.Sprint(n), 1).Outcome.Slots.Taken {
					admitted++
				}
			}
			if admitted > test.admitted {
				t.Errorf("%d requests were admitted above the limit, want at most %d", admitted, test.admitted)
			}
		})
	}
}
