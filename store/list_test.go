package store_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The key of a ban counts against the bound, and is dropped together with the ban. Other budgets keep
// no key.
func TestMemoryBoundsKeysOfBans(t *testing.T) {
	for length, weight := range map[int]int64{0: 2, 63: 2, 64: 3, 200: 5, 256: 6, 257: 6, 100_000: 6} {
		synctest.Test(t, func(t *testing.T) {
			memory, s := newMemory(1_000_000, 1)
			ban := storetest.Ban(t, "z", algorithms.Ban{After: 2, Window: 60_000_000, Duration: 60_000_000, Max: 60_000_000})
			limits := []store.Limit{fixedWindow(t, 1, time.Second)}
			take := func(key string) {
				errtest.None(t, errtest.Of(s.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: limits, Ban: ban}})))
			}
			const count = 100
			keys := make([]string, count)
			for i := range keys {
				keys[i] = strings.Repeat("x", max(length-3, 0)) + fmt.Sprintf("%03d", i)
				keys[i] = keys[i][:length]
			}
			if length == 0 {
				keys = keys[:1]
			}
			n := int64(len(keys))
			for _, key := range keys {
				take(key)
				take(key) // a denial
			}
			if got := memory.Keys(); got != 2*n {
				t.Errorf("%d bytes: %d keys before the ban, want %d", length, got, 2*n)
			}
			for _, key := range keys {
				take(key)
				take(key) // the ban counts nothing
			}
			if got := memory.Keys(); got != n+n*weight {
				t.Errorf("%d bytes: %d keys, want %d", length, got, n+n*weight)
			}
			page, err := s.List(t.Context(), store.Listing{Zone: "z", Limit: 1000})
			if err != nil || int64(len(page.Entries)) != n {
				t.Errorf("%d bytes: %d bans, %v", length, len(page.Entries), err)
			}
			for _, l := range page.Entries {
				if len(l.Key) != min(length, 256) || l.Cut != (length > 256) {
					t.Errorf("%d bytes: %+v", length, l)
				}
			}
			time.Sleep(61 * time.Second) // the bans have ended, but still count toward the next ones
			if page, err := s.List(t.Context(), store.Listing{Zone: "z", Limit: 1000}); err != nil || len(page.Entries) > 0 {
				t.Errorf("%d bans have ended, %v", len(page.Entries), err)
			}
			time.Sleep(2 * time.Minute)
			memory.Sweep()
			if got := memory.Keys(); got != 0 {
				t.Errorf("%d keys are left", got)
			}
			if n := memory.BanLabels(); n != 0 {
				t.Errorf("%d keys of bans are left", n)
			}
		})
	}
}

// A page is a list's next part, in an order that doesn't change.
func TestMemoryListsInOneOrder(t *testing.T) {
	s := store.NewMemory(1_000_000)
	for i := range 3000 {
		errtest.None(t, s.Change(t.Context(), store.Change{Zone: "z", Key: fmt.Sprint(i), Override: new("o")}))
	}
	list := func(limit int) (keys []string) {
		l := store.Listing{Zone: "z", Kind: store.Overrides, Limit: limit}
		for {
			page, err := s.List(t.Context(), l)
			if err != nil || len(page.Entries) > limit || len(page.Entries) < limit && page.Next != "" {
				t.Fatalf("%d entries, next %q, %v", len(page.Entries), page.Next, err)
			}
			for _, e := range page.Entries {
				keys = append(keys, e.Key)
			}
			if l.Cursor = page.Next; l.Cursor == "" {
				return keys
			}
		}
	}
	want := strings.Join(list(3000), " ")
	for _, limit := range []int{1, 2, 999, 1000, 2999, 3001} {
		if got := strings.Join(list(limit), " "); got != want {
			t.Errorf("limit %d: another order", limit)
		}
	}
}
