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

// The number of remembered denials has a bound. Denials that stand stay, and ended ones make room.
func TestDenyCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Store: store.NewSharedMemory().Bounded(1_000_000, zoneCount(1), nil)}
		c := store.NewDenyCache(f)
		limit := fixedWindow(t, 1, time.Hour)
		asksStore := func(key string) bool {
			_, asked := takeAsked(t, c, f, []store.Request{{Zone: "z", Key: key, Cost: 2, Limits: []store.Limit{limit}}})
			return asked
		}
		asksStore("early")
		long := strings.Repeat("long", 100)
		asksStore(long)
		for i := range 100_000 {
			if asksStore(fmt.Sprint(i)); i%20_000 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		if n := c.Denials(); n > 1<<16 || n < 60_000 {
			t.Errorf("%d denials are remembered", n)
		}
		if asksStore("early") || asksStore(long) {
			t.Error("a flood of keys displaced a denial that stands")
		}
		for i := range 200 {
			if !asksStore(fmt.Sprint(long, i)) {
				t.Fatal("a long key is mistaken for another")
			}
		}
		time.Sleep(time.Second)
		for i := range 1000 {
			if key := fmt.Sprint("late ", i); !asksStore(key) || asksStore(key) {
				t.Fatal("denials that have ended make no room")
			}
		}
		if n := c.Denials(); n > 1<<16 {
			t.Errorf("%d denials are remembered", n)
		}
	})
}

// Slots can become free at any moment. So the cache doesn't remember that none was free. It does
// remember the denials by the limits of the zone, and its ban, and takes no slot for those.
func TestDenyCacheAndSlots(t *testing.T) {
	withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := fixedWindow(t, 2, time.Hour)
		requestWithSlots := func() []store.Request {
			requests := request(1, limit)
			requests[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}
			return requests
		}
		check := func(requests []store.Request, allowed, asked bool) []store.Request {
			t.Helper()
			if got, was := takeAsked(t, c, r.failing, requests); got != allowed || was != asked {
				t.Errorf("allowed %v, asked %v, want %v, %v: %+v", got, was, allowed, asked, requests[0].Outcome)
			}
			return requests
		}
		first := check(requestWithSlots(), true, true)
		for range 3 {
			if check(requestWithSlots(), false, true); c.Denials() != 0 {
				t.Errorf("%d denials are remembered", c.Denials())
			}
		}
		r.failing.Correct(storetest.Leaves(first), nil) // past the cache
		first = check(requestWithSlots(), true, true)
		if both := check(requestWithSlots(), false, true); both[0].Outcome.Slots.Free || c.Denials() != 1 {
			t.Errorf("both deny it, %d denials are remembered: %+v", c.Denials(), both[0].Outcome)
		}
		for n := range 3 {
			cached := check(requestWithSlots(), false, false)[0].Outcome
			if cached.Slots != (store.SlotsOutcome{Free: true}) || cached.Verdict != store.Denied || !cached.Cached {
				t.Errorf("the limit denies it: %+v", cached)
			}
			if n == 0 {
				c.Correct(storetest.Leaves(first), nil)
			}
		}
		if check(request(1, limit), false, false); c.Denials() != 1 {
			t.Errorf("%d denials are remembered", c.Denials())
		}

		// Beside a zone that is known to deny the request, it is asked once.
		other := storetest.Limit(t, "y", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 3_600_000_000})
		denied := store.Request{Zone: "y", Key: "k", Cost: 1, Limits: []store.Limit{other}}
		takeUntilDenied(t, c, []store.Request{denied})
		free := requestWithSlots()
		free[0].Key = "another"
		check(append(free, denied), false, true)
		both := check(append(free, denied), false, false)
		if both[0].Outcome.Verdict != store.NotAsked || both[1].Outcome.Verdict != store.Denied {
			t.Errorf("verdicts %d and %d", both[0].Outcome.Verdict, both[1].Outcome.Verdict)
		}

		banned := requestWithSlots()
		banned[0].Ban = storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: 1, Duration: 3_600_000_000, Max: 3_600_000_000})
		check(banned, false, true)
		for range 3 {
			if check(banned, false, false); banned[0].Outcome.Verdict != store.Banned || banned[0].Outcome.Ban.EndsAfter != 3_600_000_000 {
				t.Errorf("%+v, want it banned", banned[0].Outcome)
			}
		}
	})
}

// A change through the cache takes effect at once.
func TestDenyCacheChange(t *testing.T) {
	withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := fixedWindow(t, 1, time.Hour)
		takeUntilDenied(t, c, request(1, limit))
		if err := c.Change(t.Context(), store.Change{Zone: "z", Key: "k", Forget: []string{limit.ID}}); err != nil {
			t.Fatal(err)
		}
		if allowed, _ := takeAsked(t, c, r.failing, request(1, limit)); !allowed {
			t.Error("the denial of before is repeated")
		}
	})
}
