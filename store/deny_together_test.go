package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// twoZones returns requests of a zone with short waits, and of another one with long waits.
type twoZones struct{ address, user store.Limit }

func newTwoZones(t *testing.T) twoZones {
	return twoZones{
		storetest.Limit(t, "address", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 2_000_000}),
		storetest.Limit(t, "user", algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 3_600_000_000}),
	}
}

func (z twoZones) from(address, user string, cost int64) []store.ZoneRequest {
	return []store.ZoneRequest{
		{Zone: "address", Key: address, Cost: min(cost, 1), Limits: []store.Limit{z.address}},
		{Zone: "user", Key: user, Cost: cost, Limits: []store.Limit{z.user}},
	}
}

// longest returns the longest RetryAfter of the zones.
func longest(requests []store.ZoneRequest) (wait time.Duration) {
	for _, r := range requests {
		wait = max(wait, time.Duration(r.Outcome.Decisions[0].RetryAfter)*time.Microsecond)
	}
	return wait
}

// While the denial of a zone is remembered, another zone that would deny the request for longer is asked,
// unless it was asked together with the denial.
func TestDenyCacheAsksOtherZones(t *testing.T) {
	ask := func(t *testing.T, c *store.DenyCache, r remote, requests []store.ZoneRequest, asked bool, wait time.Duration) {
		t.Helper()
		allowed, was := takeAsked(t, c, r.failing, requests)
		if got := longest(requests); allowed || was != asked || got > wait || got < wait-time.Second {
			t.Errorf("%s: allowed %v, asked %v, retry after %v, want it asked %v, %v", requests[1].Key, allowed, was, got, asked, wait)
		}
	}
	z := newTwoZones(t)
	// begin charges all that bob has, and denies the address to alice.
	begin := func(t *testing.T, c *store.DenyCache, r remote) {
		takeAsked(t, c, r.failing, z.from("elsewhere", "bob", 5))
		takeAsked(t, c, r.failing, z.from("office", "alice", 1))
		ask(t, c, r, z.from("office", "alice", 1), true, 2*time.Second)
		ask(t, c, r, z.from("office", "alice", 1), false, 2*time.Second)
	}
	for _, test := range []struct {
		name, user string
		cost       int64
	}{{"of another key", "bob", 1}, {"at another cost", "alice", 5}} {
		t.Run(test.name, func(t *testing.T) {
			withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
				begin(t, c, r)
				ask(t, c, r, z.from("office", test.user, test.cost), true, time.Hour)
				ask(t, c, r, z.from("office", test.user, test.cost), false, time.Hour)
			})
		})
	}
	t.Run("that may ban", func(t *testing.T) {
		withDenyCache(t, 0, func(t *testing.T, c *store.DenyCache, r remote) {
			ban := storetest.Ban(t, "login", algorithms.Ban{After: 1, Window: 1, Duration: 3_600_000_000, Max: 3_600_000_000})
			errtest.None(t, r.failing.Change(t.Context(), store.Change{Zone: "login", Key: "bob", Ban: []*store.Ban{ban}, BanFor: 3_600_000_000}))
			begin(t, c, r)
			for n, asked := range []bool{true, false} {
				requests := append(z.from("office", "alice", 1), store.ZoneRequest{Zone: "login", Key: "bob", Ban: ban})
				if allowed, was := takeAsked(t, c, r.failing, requests); allowed || was != asked || !requests[2].Outcome.Ban.Stands {
					t.Errorf("request %d: allowed %v, asked %v: %+v", n, allowed, was, requests[2].Outcome)
				}
			}
		})
	})
}

// A flood costs the store about 1.3 calls per second, or up to 17 if its requests have other costs, or other keys
// in a second zone.
func TestDenyCacheFloodOfKeys(t *testing.T) {
	ban := storetest.Ban(t, "user", algorithms.Ban{After: 1, Window: 1, Duration: 3_600_000_000, Max: 3_600_000_000})
	for _, test := range []struct {
		name string
		user func(n int) string
		cost func(n int) int64
		ban  *store.Ban
		most int64
	}{
		{"one user", func(int) string { return "alice" }, func(int) int64 { return 1 }, nil, 6},
		{"two users", func(n int) string { return fmt.Sprint(n % 2) }, func(int) int64 { return 1 }, nil, 51},
		{"any user", func(n int) string { return fmt.Sprint(n) }, func(int) int64 { return 1 }, nil, 51},
		{"any cost", func(int) string { return "alice" }, func(n int) int64 { return int64(n % 100) }, nil, 51},
		{"any cost of a banned user", func(int) string { return "alice" }, func(n int) int64 { return int64(n % 100) }, ban, 60},
	} {
		t.Run(test.name, func(t *testing.T) {
			withDenyCache(t, time.Millisecond, func(t *testing.T, c *store.DenyCache, r remote) {
				z := newTwoZones(t)
				z.address = storetest.Limit(t, "address", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
				takeAsked(t, c, r.failing, z.from("office", "somebody", 1))
				before := r.failing.asked.Load()
				for n := range 3000 {
					requests := z.from("office", test.user(n), 1+test.cost(n))
					requests[1].Ban = test.ban
					takeAsked(t, c, r.failing, requests)
					time.Sleep(time.Millisecond) // virtual time
				}
				if asked := r.failing.asked.Load() - before; asked > test.most {
					t.Errorf("3 seconds of flood asked the store %d times, want at most %d", asked, test.most)
				}
			})
		})
	}
}
