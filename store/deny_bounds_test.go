package store_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// However many keys are refused, so many are remembered and no more, and those that
// stand stay; what has ended makes room.
func TestDenyCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Store: store.NewSharedMemory().Bounded(1_000_000, zones(1), nil)}
		c := store.NewDenyCache(f)
		limit := window(t, 1, time.Hour)
		ask := func(key string) bool {
			_, asked := answerOf(t, c, f, []store.Request{{Zone: "z", Key: key, Cost: 2, Limits: []store.Limit{limit}}})
			return asked
		}
		ask("early")
		long := strings.Repeat("long", 100)
		ask(long)
		for i := range 100_000 {
			if ask(fmt.Sprint(i)); i%20_000 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		if n := c.Held(); n > 1<<16 || n < 60_000 {
			t.Errorf("%d refusals are remembered", n)
		}
		if ask("early") || ask(long) {
			t.Error("a flood of keys displaced a refusal that stands")
		}
		for i := range 200 {
			if !ask(fmt.Sprint(long, i)) {
				t.Fatal("a long key is mistaken for another")
			}
		}
		time.Sleep(time.Second)
		for i := range 1000 {
			if key := fmt.Sprint("late ", i); !ask(key) || ask(key) {
				t.Fatal("what has ended makes no room")
			}
		}
		if n := c.Held(); n > 1<<16 {
			t.Errorf("%d refusals are remembered", n)
		}
		time.Sleep(3 * time.Second)
		for i := range 2000 {
			ask(fmt.Sprint("last ", i))
		}
		if n := c.Held(); n > 2000 {
			t.Errorf("%d refusals are remembered, though all but 2000 ended long ago", n)
		}
	})
}

// Slots can become free at any moment. So the cache doesn't remember that none was free. It does
// remember the denials by the limits of the zone, and its ban, and takes no slot for those.
func TestDenyCacheAndSlots(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := window(t, 2, time.Hour)
		ask := func() []store.Request {
			requests := one(1, limit)
			requests[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}
			return requests
		}
		check := func(requests []store.Request, allowed, asked bool) []store.Request {
			t.Helper()
			if got, was := answerOf(t, c, r.failing, requests); got != allowed || was != asked {
				t.Errorf("allowed %v, asked %v, want %v, %v: %+v", got, was, allowed, asked, requests[0].Outcome)
			}
			return requests
		}
		first := check(ask(), true, true)
		for range 3 {
			if check(ask(), false, true); c.Held() != 0 {
				t.Errorf("%d denials are remembered", c.Held())
			}
		}
		r.failing.Correct(storetest.Leaves(first), nil) // past the cache
		first = check(ask(), true, true)
		if both := check(ask(), false, true); both[0].Outcome.Slots.Free || c.Held() != 1 {
			t.Errorf("both deny it, %d denials are remembered: %+v", c.Held(), both[0].Outcome)
		}
		for n := range 3 {
			cached := check(ask(), false, false)[0].Outcome
			if cached.Slots != (store.SlotsOutcome{Free: true}) || cached.Verdict != store.Denied || !cached.Cached {
				t.Errorf("the limit denies it: %+v", cached)
			}
			if n == 0 {
				c.Correct(storetest.Leaves(first), nil)
			}
		}
		if check(one(1, limit), false, false); c.Held() != 1 {
			t.Errorf("%d denials are remembered", c.Held())
		}

		// Beside a zone that is known to deny the request, it is not asked.
		other := storetest.Limit(t, "y", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 3_600_000_000})
		denied := store.Request{Zone: "y", Key: "k", Cost: 1, Limits: []store.Limit{other}}
		exhaust(t, c, []store.Request{denied})
		free := ask()
		free[0].Key = "another"
		both := check(append(free, denied), false, false)
		if both[0].Outcome.Verdict != store.NotAsked || both[1].Outcome.Verdict != store.Denied {
			t.Errorf("verdicts %d and %d", both[0].Outcome.Verdict, both[1].Outcome.Verdict)
		}

		banned := ask()
		banned[0].Ban = storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: 1, Duration: 3_600_000_000, Most: 3_600_000_000})
		check(banned, false, true)
		for range 3 {
			if check(banned, false, false); banned[0].Outcome.Verdict != store.Banned || banned[0].Outcome.Ban.EndsAfter != 3_600_000_000 {
				t.Errorf("%+v, want it banned", banned[0].Outcome)
			}
		}
	})
}

// What a change through the cache frees is free at once.
func TestDenyCacheChange(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := window(t, 1, time.Hour)
		exhaust(t, c, one(1, limit))
		if err := c.Change(t.Context(), store.Change{Zone: "z", Key: "k", Forget: []string{limit.ID}}); err != nil {
			t.Fatal(err)
		}
		if allowed, _ := answerOf(t, c, r.failing, one(1, limit)); !allowed || c.Held() != 0 {
			t.Errorf("allowed %v, %d denials are remembered", allowed, c.Held())
		}
	})
}

// Four denials of a limit and key are remembered, whatever requests cost. A request of a kind that
// was remembered until a moment ago asks, so that it is told exactly.
func TestDenyCacheKindsAreBounded(t *testing.T) {
	denying(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 100, Window: 10_000_000_000})
		exhaust(t, r.failing, one(1, limit))
		for cost := int64(50); cost > 0; cost-- {
			if _, asked := answerOf(t, c, r.failing, one(cost, limit)); !asked || c.Held() > 4 {
				t.Fatalf("cost %d: asked %v, %d denials are remembered", cost, asked, c.Held())
			}
			if cost == 4 {
				time.Sleep(700 * time.Millisecond)
			}
		}
		time.Sleep(300 * time.Millisecond)
		for _, test := range []struct {
			cost  int64
			asked bool
		}{{4, true}, {9, false}} {
			if _, asked := answerOf(t, c, r.failing, one(test.cost, limit)); asked != test.asked {
				t.Errorf("cost %d: asked %v", test.cost, asked)
			}
		}
	})
}
