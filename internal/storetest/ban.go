package storetest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Ban returns the ban of a zone. An error ends the test.
func Ban(t testing.TB, zone string, b algorithms.Ban) *store.Ban {
	t.Helper()
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	return &store.Ban{Ban: &b, ID: store.BanID(zone, "")}
}

// newBanRequest returns a request of a zone with a limit and a ban.
func newBanRequest(zone, key string, cost int64, limit store.Limit, ban *store.Ban) []store.ZoneRequest {
	r := newRequest(zone, key, cost, limit)
	r[0].Ban = ban
	return r
}

// testBan bans in every mode that can deny, also with a limit that has Initial.
func testBan(t *testing.T, s Store) {
	quotas := Quotas(2, 1000*minute)
	initial := int64(2)
	quotas = append(quotas, algorithms.Quota{Algorithm: "token_bucket", Events: 3, Window: 1000 * minute, Initial: &initial})
	ban := Ban(t, "z", algorithms.Ban{After: 2, Window: minute, Duration: minute, Max: 2 * minute})
	for i, q := range quotas {
		for _, mode := range []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform} {
			limit := Limit(t, "z", q)
			if limit.Algorithm().BinaryOnly && mode != algorithms.Binary {
				continue
			}
			t.Run(q.Algorithm+" "+mode.String(), func(t *testing.T) {
				key := q.Algorithm + mode.String() + string(rune('a'+i))
				r := newBanRequest("z", key, 1, limit, ban)
				r[0].Mode = mode
				take := func(after algorithms.Micros, allowed, stood bool, rest algorithms.Micros) {
					t.Helper()
					if got := takeAt(t, s, start+after, r); got != allowed {
						t.Errorf("after %d µs: allowed %v", after, got)
					}
					began := !stood && rest > 0
					if got, want := r[0].Outcome.Ban, (store.BanOutcome{Stands: stood, Began: began, EndsAfter: rest}); got != want {
						t.Errorf("after %d µs: %+v, want %+v", after, got, want)
					}
					verdict := store.Denied
					if stood {
						verdict = store.Banned
					} else if allowed {
						verdict = store.Allowed
					}
					if got := r[0].Outcome.Verdict; got != verdict {
						t.Errorf("after %d µs: verdict %d, want %d", after, got, verdict)
					}
				}
				take(0, true, false, 0)
				take(0, true, false, 0)
				take(0, false, false, 0)
				take(1, false, false, minute)
				take(2, false, true, minute-1)
				charged := r[0].Outcome.Decisions[0]
				for _, cost := range []int64{0, 1, 5} {
					for _, hurry := range []algorithms.Micros{0, minute} {
						r[0].Cost = cost
						if mode == algorithms.Binary && limit.CheckDelay(hurry) == nil {
							r[0].MaxWait = hurry
						}
						take(minute, false, true, 1)
						if d := r[0].Outcome.Decisions[0]; d.Charged != 0 || d.Remaining != charged.Remaining {
							t.Errorf("a banned request of cost %d was charged: %+v, before %+v", cost, d, charged)
						}
					}
				}
				r[0].Cost, r[0].MaxWait = 1, 0
				take(minute+1, false, false, 0) // the ban has ended, and denials in it don't count
				take(minute+1, false, false, 2*minute)
				take(3*minute, false, true, 1)
				take(3*minute+1, false, false, 0)
				// The limits are others, and the ban is another one.
				r[0].Limits = []store.Limit{Limit(t, "z", Quotas(50, minute)[0])}
				r[0].Ban = Ban(t, "z", algorithms.Ban{After: 2, Window: 5 * minute, Duration: second, Max: second})
				r[0].Mode = algorithms.Binary
				take(3*minute+1, true, false, 0)
				r[0].Cost = 51
				take(3*minute+1, false, false, second)
				r[0].Cost = 1
				take(3*minute+2, false, true, second-1)
				take(3*minute+1+second, true, false, 0)
			})
		}
	}
}

// testBanCountsOwnDenials checks that a ban counts only denials by the limits of its zone.
func testBanCountsOwnDenials(t *testing.T, s Store) {
	one := algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1000 * minute}
	ban := algorithms.Ban{After: 1, Window: minute, Duration: minute, Max: minute}
	many := Limit(t, "many", Quotas(100, minute)[0])
	r := append(newBanRequest("many", "a", 1, many, Ban(t, "many", ban)), newRequest("one", "b", 1, Limit(t, "one", one))...)
	same := append(newBanRequest("many", "c", 1, many, Ban(t, "many", ban)), newRequest("one", "c", 1, Limit(t, "one", one))...)
	for _, r := range [][]store.ZoneRequest{r, same} {
		for _, want := range []bool{true, false, false} {
			if takeAt(t, s, start, r) != want {
				t.Fatal("the other zone does not deny the second request")
			}
			if b := r[0].Outcome.Ban; b != (store.BanOutcome{}) {
				t.Errorf("a denial by another zone counts: %+v", b)
			}
		}
		r[0].Cost = 0
		takeAt(t, s, start, r)
		if b := r[0].Outcome.Ban; b != (store.BanOutcome{}) {
			t.Errorf("a peek counts: %+v", b)
		}
		r[0].Cost = 101
		if takeAt(t, s, start, r); !r[0].Outcome.Ban.Began || r[0].Outcome.Ban.EndsAfter != minute {
			t.Errorf("a denial by both zones doesn't count: %+v", r[0].Outcome.Ban)
		}
	}
	// A zone of that name, or another key, is not banned.
	for _, free := range [][]store.ZoneRequest{
		newBanRequest("other", "a", 1, Limit(t, "other", one), Ban(t, "other", ban)), newBanRequest("many", "d", 1, many, r[0].Ban),
	} {
		if !takeAt(t, s, start, free) {
			t.Errorf("%s %s is banned because of another", free[0].Zone, free[0].Key)
		}
	}
	shadow := newBanRequest("many", "a", 1, many, r[0].Ban)
	shadow[0].Shadow = true
	if !takeAt(t, s, start, shadow) || !shadow[0].Outcome.Ban.Stands || shadow[0].Outcome.Decisions[0].Charged != 0 {
		t.Errorf("the ban of a shadow: %+v", shadow[0].Outcome)
	}
}

// testBanLookup takes with requests that only ask about a ban. They are denied while it stands, and
// change nothing: they count no denial and end no window, whatever the window that they have.
func testBanLookup(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1000 * minute})
	ban := Ban(t, "z", algorithms.Ban{After: 2, Window: 10 * minute, Duration: minute, Max: 2 * minute})
	lookUps := [][]store.ZoneRequest{
		{{Zone: "z", Key: "k", Ban: ban, Outcome: staleOutcome}},
		{{Zone: "z", Key: "k", Ban: Ban(t, "z", algorithms.Ban{After: 1, Window: 1, Duration: 1, Max: 1}), Outcome: staleOutcome}},
	}
	beside := newRequest("other", "k2", 1, Limit(t, "other", Quotas(100, minute)[0]))
	// lookUp asks alone, and beside a request of another zone, which is charged only if both pass.
	lookUp := func(after, rest algorithms.Micros) {
		t.Helper()
		for _, alone := range lookUps {
			for _, requests := range [][]store.ZoneRequest{alone, append(alone[:1:1], beside...)} {
				allowed := takeAt(t, s, start+after, requests)
				o, want := requests[0].Outcome, store.BanOutcome{Stands: rest > 0, EndsAfter: rest}
				verdict := map[bool]store.Verdict{true: store.Allowed, false: store.Banned}[rest == 0]
				if o.Verdict != verdict || o.Ban != want || allowed != (rest == 0) {
					t.Errorf("after %d µs: allowed %v, %+v, want a ban for %d µs", after, allowed, o, rest)
				}
				if len(requests) == 1 {
					continue
				}
				if d := requests[1].Outcome.Decisions; allowed && d[0].Charged != 1 || !allowed && d[0].Charged != 0 {
					t.Errorf("after %d µs: the other zone's decision is %+v", after, d)
				}
			}
		}
	}
	take := func(after algorithms.Micros, allowed bool, want store.BanOutcome) {
		t.Helper()
		r := newBanRequest("z", "k", 1, limit, ban)
		if got := takeAt(t, s, start+after, r); got != allowed || r[0].Outcome.Ban != want {
			t.Errorf("after %d µs: allowed %v, %+v, want %+v", after, got, r[0].Outcome.Ban, want)
		}
	}
	lookUp(0, 0)
	take(0, true, store.BanOutcome{})
	lookUp(1, 0)
	take(1, false, store.BanOutcome{})
	for after := range algorithms.Micros(5) {
		lookUp(2+after*minute, 0)
	}
	take(5*minute, false, store.BanOutcome{Began: true, EndsAfter: minute})
	lookUp(5*minute, minute)
	lookUp(6*minute-1, 1)
	take(6*minute-1, false, store.BanOutcome{Stands: true, EndsAfter: 1})
	lookUp(6*minute, 0)
	take(6*minute, false, store.BanOutcome{})
	lookUp(6*minute, 0)
	take(6*minute, false, store.BanOutcome{Began: true, EndsAfter: 2 * minute})
	lookUp(6*minute, 2*minute)
	// A clock that steps back moves the ban with it, and still nothing is saved.
	lookUp(0, 2*minute)
	lookUp(7*minute, minute)
	// Another key, and a shadow, pass.
	other := []store.ZoneRequest{{Zone: "z", Key: "other", Ban: ban}}
	shadow := []store.ZoneRequest{{Zone: "z", Key: "k", Ban: ban, Shadow: true}}
	for _, free := range [][]store.ZoneRequest{other, shadow} {
		if !takeAt(t, s, start+7*minute, free) {
			t.Errorf("%+v is denied", free[0])
		}
	}
	if o := shadow[0].Outcome; o.Verdict != store.Banned || o.Ban.EndsAfter != minute {
		t.Errorf("the outcome of a shadow: %+v", o)
	}
	// Slots beside a ban and without limits are taken unless the key is banned.
	slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 2}
	for _, test := range []struct {
		after   algorithms.Micros
		verdict store.Verdict
		taken   bool
	}{
		{7 * minute, store.Banned, false},
		{8 * minute, store.Allowed, true},
		{8 * minute, store.Allowed, true},
		{8 * minute, store.Denied, false},
	} {
		r := []store.ZoneRequest{{Zone: "z", Key: "k", Ban: ban, Slots: slots, Outcome: staleOutcome}}
		takeAt(t, s, start+test.after, r)
		if o := r[0].Outcome; o.Verdict != test.verdict || o.Slots.Taken != test.taken || o.Ban.Began {
			t.Errorf("after %d µs: %+v, want verdict %d", test.after, o, test.verdict)
		}
	}
}

// testBanConcurrency sends many requests at once. The limit denies exactly as many as the ban counts, and
// the ban denies all others.
func testBanConcurrency(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 5, Window: 1000 * minute})
	ban := Ban(t, "z", algorithms.Ban{After: 30, Window: 1000 * minute, Duration: 1000 * minute, Max: 1000 * minute})
	var passed, counted atomic.Int64
	flood(t, 16, 20, func() error {
		r := newBanRequest("z", "k", 1, limit, ban)
		allowed, err := s.Take(context.Background(), r)
		if allowed {
			passed.Add(1)
		} else if err == nil && !r[0].Outcome.Ban.Stands {
			counted.Add(1)
		}
		return err
	})
	if passed.Load() != 5 || counted.Load() != 30 {
		t.Errorf("of 320 requests %d passed and %d were denied before the ban, want 5 and 30", passed.Load(), counted.Load())
	}
}
