package store_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A ban doesn't apply while the store fails, once the denial is no longer remembered. It applies again afterwards, and ends
// when it would have ended without the outage.
func TestFailoverForgetsBan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		b := store.NewBreaker(f, nil)
		defer b.Close()
		local := store.NewSharedMemory().Bounded(1000, zoneCount(1), nil)
		s := store.NewDenyCache(store.NewFailover(b, local, func(error) {}))
		const hour = 3_600_000_000
		limit := fixedWindow(t, 2, time.Hour)
		ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour})
		began := time.Now()
		take := func(when string, want store.Verdict, local bool) {
			t.Helper()
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}, Ban: ban}}
			if _, err := s.Take(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			o := r[0].Outcome
			if o.Verdict != want || o.Local != local {
				t.Errorf("%s, after %v: %v, local %v, want %v, local %v", when, time.Since(began), o.Verdict, o.Local, want, local)
			}
			if ends := hour - time.Since(began).Microseconds(); want == store.Banned && !local && o.Ban.EndsAfter != ends {
				t.Errorf("%s: the ban ends after %d µs, want %d", when, o.Ban.EndsAfter, ends)
			}
		}
		take("before", store.Allowed, false)
		take("before", store.Allowed, false)
		take("before", store.Denied, false)
		f.fail(errGone)
		time.Sleep(2 * time.Second) // longer than a denial is remembered
		take("in the outage", store.Allowed, true)
		take("in the outage", store.Allowed, true)
		take("in the outage", store.Denied, true)
		f.fail(nil)
		time.Sleep(10 * time.Second) // the breaker checks the store meanwhile
		take("afterwards", store.Banned, false)
		time.Sleep(30 * time.Minute)
		take("much later", store.Banned, false)
		time.Sleep(30 * time.Minute)
		take("after the ban", store.Allowed, false)
	})
}
