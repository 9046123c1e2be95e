package telemetry

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Bans are counted until they end, and only up to a bound.
func TestBansInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bansInForce
		want := func(n int) {
			t.Helper()
			if got := b.count(); got != n {
				t.Errorf("%d bans are in force, want %d", got, n)
			}
		}
		want(0)
		b.end("nobody")
		b.begin("short", time.Minute)
		b.begin("long", time.Hour)
		b.begin("short", 2*time.Minute) // another one of the same key
		want(2)
		time.Sleep(2*time.Minute - 1)
		want(2)
		time.Sleep(time.Nanosecond)
		want(1)
		b.begin("short", time.Minute)
		b.begin("short", time.Second)
		time.Sleep(time.Second)
		want(1)
		for n := range maxCountedBans + 10 {
			b.begin(fmt.Sprint(n), time.Minute)
		}
		want(maxCountedBans)
		b.begin("0", 2*time.Hour) // is counted already
		want(maxCountedBans)
		time.Sleep(time.Minute)
		b.begin("late", time.Minute) // makes room
		b.end("long")
		want(2)
		time.Sleep(2 * time.Hour)
		want(0)
	})
}
