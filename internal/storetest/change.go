package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// maxWait is how long a test waits before it fails.
const maxWait = time.Minute

func changeAt(t *testing.T, s Store, now algorithms.Micros, c store.Change) {
	t.Helper()
	if err := s.ChangeAt(context.Background(), now, c); err != nil {
		t.Fatalf("change: %v", err)
	}
}

// setOverride sets the override of a key.
func setOverride(t *testing.T, s store.Store, zone, key, text string) {
	t.Helper()
	if err := s.Change(context.Background(), store.Change{Zone: zone, Key: key, Override: &text}); err != nil {
		t.Fatalf("change: %v", err)
	}
}

// withOverride sets the Override of requests, and returns the requests.
func withOverride(text string, requests ...store.ZoneRequest) []store.ZoneRequest {
	for i := range requests {
		requests[i].Override = &store.Override{Text: text}
	}
	return requests
}

// checkOverridden takes, and ends the test unless other overrides are in force, which are these.
func checkOverridden(t *testing.T, s Store, requests []store.ZoneRequest, want ...string) {
	t.Helper()
	_, err := s.TakeAt(context.Background(), start, requests)
	var others *store.OverriddenError
	if !errors.As(err, &others) || !slices.Equal(others.Overrides, want) {
		t.Fatalf("%v, want overrides %q", err, want)
	}
}

func testOverrides(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 10, Window: minute})
	for _, text := range []string{"a", "0", "=1", "-1", `{"limits":[]}`, "two\r\nlines \x00 \xff {}", strings.Repeat("long ", 10_000)} {
		name := fmt.Sprintf("%.10q", text)
		t.Run(name, func(t *testing.T) {
			usual, overruled := withOverride("", newRequest("z", name, 1, limit)...), withOverride(text, newRequest("z", name, 1, limit)...)
			left := int64(10)
			take := func(r []store.ZoneRequest) {
				t.Helper()
				left--
				if !takeAt(t, s, start, r) || r[0].Outcome.Decisions[0].Remaining != left {
					t.Errorf("%+v, want %d remaining", r[0].Outcome.Decisions, left)
				}
			}
			take(usual)
			checkOverridden(t, s, overruled, "")
			setOverride(t, s, "z", name, text)
			checkOverridden(t, s, usual, text)
			if _, err := s.Take(context.Background(), usual); err == nil {
				t.Error("by its own clock a store finds no override")
			}
			checkOverridden(t, s, withOverride("b", newRequest("z", name, 1, limit)...), text)
			take(overruled) // a limit that is still the same has still been charged
			if r := withOverride(text, newRequest("z", name, 1)...); !takeAt(t, s, start, r) || len(r[0].Outcome.Decisions) != 0 {
				t.Errorf("without limits: %+v", r[0].Outcome.Decisions)
			}
			take(newRequest("z", name, 1, limit)) // which asks by none

			other := Limit(t, "z2", algorithms.Quota{Algorithm: "gcra", Events: 10, Window: minute})
			for _, r := range [][]store.ZoneRequest{
				withOverride("", newRequest("z2", name, 1, other)...), withOverride("", newRequest("z", name+"x", 1, limit)...),
			} {
				if !takeAt(t, s, start, r) || r[0].Outcome.Decisions[0].Remaining != 9 {
					t.Errorf("another zone or key: %+v", r[0].Outcome.Decisions)
				}
			}
			setOverride(t, s, "z", name, text)
			take(overruled)
			setOverride(t, s, "z", name, "")
			checkOverridden(t, s, overruled, "")
			take(usual)
		})
	}
}

func testOverridesOfKeys(t *testing.T, s Store) {
	var all []store.ZoneRequest
	for i, key := range []string{"a", "a", "b", "c"} {
		zone := fmt.Sprint("z", i)
		limit := Limit(t, zone, algorithms.Quota{Algorithm: "gcra", Events: 10, Window: minute})
		all = append(all, newRequest(zone, key, 1, limit)...)
	}
	for _, i := range []int{0, 2, 3} {
		withOverride("", all[i:i+1]...)
	}
	left := int64(10)
	take := func() {
		t.Helper()
		left--
		if !takeAt(t, s, start, all) {
			t.Fatal("denied")
		}
		for _, r := range all {
			if r.Outcome.Decisions[0].Remaining != left {
				t.Errorf("zone %s: %+v, want %d remaining", r.Zone, r.Outcome.Decisions, left)
			}
		}
	}
	take()
	for _, i := range []int{0, 2, 3} {
		want := make([]string, len(all))
		want[i] = "changed"
		setOverride(t, s, all[i].Zone, all[i].Key, "changed")
		checkOverridden(t, s, all, want...)
		setOverride(t, s, all[i].Zone, all[i].Key, "")
		take() // nothing was charged since
	}
	setOverride(t, s, "z0", "a", "one")
	setOverride(t, s, "z3", "c", "another")
	checkOverridden(t, s, all, "one", "", "", "another")
	all[0].Override, all[3].Override = &store.Override{Text: "one"}, &store.Override{Text: "another"}
	take()
	setOverride(t, s, "z1", "a", "of a zone that has none")
	take()
	setOverride(t, s, "z0", "a", "two")
	checkOverridden(t, s, all, "two", "", "", "another") // not only of the key whose override changed
}

func testOverrideEnds(t *testing.T, s Store) {
	text := "short"
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 10, Window: minute})
	set := func(span algorithms.Micros) {
		if err := s.Change(context.Background(), store.Change{Zone: "z", Key: "k", Override: &text, OverrideFor: span}); err != nil {
			t.Fatal(err)
		}
	}
	set(1000 * minute)
	if _, err := s.Take(context.Background(), withOverride(text, newRequest("z", "k", 1, limit)...)); err != nil {
		t.Fatal(err)
	}
	const span = 100 * time.Millisecond
	began := time.Now()
	set(span.Microseconds())
	for deadline := began.Add(maxWait); ; time.Sleep(time.Millisecond) { // between two looks, because Redis has its own clock
		_, err := s.Take(context.Background(), withOverride(text, newRequest("z", "k", 0, limit)...))
		if err == nil && time.Now().Before(deadline) {
			continue
		}
		var others *store.OverriddenError
		if !errors.As(err, &others) || others.Overrides[0] != "" {
			t.Fatalf("%v, want it overridden by none", err)
		}
		break
	}
	if took := time.Since(began); took < span {
		t.Errorf("it has ended after %v, want %v", took, span)
	}
	set(1000) // and then permanently
	set(0)
	time.Sleep(5 * time.Millisecond) // until the first of the two would have ended, by the clock of Redis
	if _, err := s.Take(context.Background(), withOverride(text, newRequest("z", "k", 1, limit)...)); err != nil {
		t.Error(err)
	}
}

// testOverrideConcurrency changes an override under requests. No charge to a limit that stays is lost.
func testOverrideConcurrency(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 1000 * minute, Burst: 150})
	var allowed atomic.Int64
	var stop atomic.Bool
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; !stop.Load(); i++ {
			text := []string{"", "a", "b"}[i%3]
			if err := s.Change(context.Background(), store.Change{Zone: "z", Key: "k", Override: &text}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	known := sync.Map{} // the override that goroutines last found in force
	flood(t, 8, 50, func() error {
		text, _ := known.LoadOrStore("k", "")
		for {
			ok, err := s.Take(context.Background(), withOverride(text.(string), newRequest("z", "k", 1, limit)...))
			var others *store.OverriddenError
			if errors.As(err, &others) {
				text = others.Overrides[0]
				known.Store("k", text)
				continue
			}
			if ok {
				allowed.Add(1)
			}
			return err
		}
	})
	stop.Store(true)
	changing.Wait()
	if n := allowed.Load(); n != 150 {
		t.Errorf("%d requests were allowed, want 150", n)
	}
}

func testForget(t *testing.T, s Store) {
	for _, q := range Quotas(3, 1000*minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			zone := q.Algorithm
			second := q
			if second.Window /= 2; second.Period != "" {
				second.Period = "year"
			}
			limits := []store.Limit{Limit(t, zone, q), Limit(t, zone, second)}
			r, other := newRequest(zone, "k", 2, limits...), newRequest(zone, "k2", 2, limits...)
			for _, r := range [][]store.ZoneRequest{r, other} {
				if !takeAt(t, s, start, r) {
					t.Fatal("denied")
				}
			}
			changeAt(t, s, start, store.Change{Zone: zone, Key: "k", Forget: []string{limits[0].ID}})
			checkLimits := func(key string, want ...int64) {
				t.Helper()
				r := newRequest(zone, key, 0, limits...)
				takeAt(t, s, start, r)
				for i, d := range r[0].Outcome.Decisions {
					if d.Remaining != want[i] || (d.ResetAfter == 0) != (want[i] == 3) {
						t.Errorf("key %s, limit %d: %+v, want %d remaining", key, i+1, d, want[i])
					}
				}
			}
			left := other[0].Outcome.Decisions[0].Remaining
			checkLimits("k", 3, left)
			checkLimits("k2", left, left)
			changeAt(t, s, start, store.Change{Zone: zone, Key: "k", Forget: []string{limits[0].ID, limits[1].ID}})
			changeAt(t, s, start, store.Change{Zone: zone, Key: "nobody", Forget: []string{limits[0].ID, limits[1].ID}})
			checkLimits("k", 3, 3)
			checkLimits("k2", left, left)
			if !takeAt(t, s, start, r) || r[0].Outcome.Decisions[0].Remaining != left {
				t.Errorf("afterwards: %+v", r[0].Outcome.Decisions)
			}
		})
	}
}

func testBanByHand(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: minute})
	ban := Ban(t, "z", algorithms.Ban{After: 1, Window: minute, Duration: minute, Max: 4 * minute})
	r := newBanRequest("z", "k", 1, limit, ban)
	take := func(after algorithms.Micros, allowed bool, rest algorithms.Micros) {
		t.Helper()
		if got := takeAt(t, s, start+after, r); got != allowed || r[0].Outcome.Ban.EndsAfter != rest {
			t.Errorf("after %d µs: allowed %v, %+v, want a ban for %d µs", after, got, r[0].Outcome.Ban, rest)
		}
	}
	hour := store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: 60 * minute}
	lift := store.Change{Zone: "z", Key: "k", Forget: []string{ban.ID}}
	take(0, true, 0)
	changeAt(t, s, start, hour)
	take(1, false, 60*minute-1)
	if d := r[0].Outcome.Decisions[0]; d.Charged != 0 {
		t.Errorf("a banned request was charged: %+v", d)
	}
	other := newBanRequest("z", "k2", 1, limit, ban)
	if !takeAt(t, s, start+1, other) {
		t.Error("another key is banned, too")
	}
	changeAt(t, s, start+minute, hour)
	take(60*minute, false, minute)
	take(61*minute, true, 0)
	take(61*minute, false, 4*minute) // the third ban, after two by hand
	changeAt(t, s, start+61*minute, lift)
	take(61*minute, false, minute) // the count begins again
	changeAt(t, s, start+61*minute, lift)
	take(63*minute, true, 0)
	changeAt(t, s, start+63*minute, hour)
	take(127*minute, true, 0) // it is forgotten 4 minutes after its end
	take(127*minute, false, minute)
	hold := store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: 2 * minute, Holds: true}
	changeAt(t, s, start+127*minute, hold)
	take(127*minute, false, 2*minute)
	changeAt(t, s, start+128*minute, store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: 1, Holds: true})
	take(128*minute, false, minute) // the longer one stands
	take(129*minute, true, 0)
	take(129*minute, false, 2*minute) // as the second ban, because a hold doubles none
}
