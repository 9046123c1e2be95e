package store_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The number of remembered denials has a bound. Denials that stand stay, and ended ones make room.
func TestDenyCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Store: store.NewSharedMemory().Bounded(1_000_000, zoneCount(1), nil)}
		c := store.NewDenyCache(f)
		limit := fixedWindow(t, 1, time.Hour)
		asksStore := func(key string) bool {
			_, asked := takeAsked(t, c, f, []store.ZoneRequest{{Zone: "z", Key: key, Cost: 2, Limits: []store.Limit{limit}}})
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
