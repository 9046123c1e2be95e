package storetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Refunds returns the corrections that give back n events of each request.
func Refunds(requests []store.ZoneRequest, n int64) []store.Correction {
	corrections := make([]store.Correction, len(requests))
	for i := range requests {
		corrections[i] = store.Correction{Request: &requests[i], Refund: n}
	}
	return corrections
}

func correctAt(t *testing.T, s Store, now algorithms.Micros, corrections ...store.Correction) {
	t.Helper()
	if err := s.CorrectAt(context.Background(), now, corrections); err != nil {
		t.Fatalf("correct: %v", err)
	}
}

func refundAt(t *testing.T, s Store, now algorithms.Micros, requests []store.ZoneRequest, n int64) {
	t.Helper()
	correctAt(t, s, now, Refunds(requests, n)...)
}

func testRefund(t *testing.T, s Store) {
	for i, q := range Quotas(5, minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			r := append(newRequest("z", "a", 3, Limit(t, "z", q)), newRequest("y", "b", 2, Limits(t, "y", q, Quotas(4, minute)[i])...)...)
			remaining := func() (n []int64) {
				peek := append(newRequest("z", "a", 0, r[0].Limits...), newRequest("y", "b", 0, r[1].Limits...)...)
				takeAt(t, s, start, peek)
				for _, p := range peek {
					for _, d := range p.Outcome.Decisions {
						n = append(n, d.Remaining)
					}
				}
				return n
			}
			check := func(want ...int64) {
				t.Helper()
				if got := remaining(); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v remaining, want %v", got, want)
				}
			}
			takeAt(t, s, start, r)
			check(2, 3, 2)
			refundAt(t, s, start, r, 1)
			check(3, 4, 3)
			takeAt(t, s, start, r)
			check(0, 2, 1)
			refundAt(t, s, start, r, 1000) // which is all that was charged
			check(3, 4, 3)
			if takeAt(t, s, start, newRequest("z", "a", 6, r[0].Limits...)) != (q.Algorithm == "smooth") {
				t.Error("a cost of 6 is decided otherwise after a refund")
			}
			denied := append(newRequest("z", "c", 1, r[0].Limits...), newRequest("y", "d", 5, r[1].Limits...)...)
			if takeAt(t, s, start, denied) == (q.Algorithm == "smooth") {
				refundAt(t, s, start, denied, 5) // nothing was charged
			}
		})
	}
}

func testRefundAfterReset(t *testing.T, s Store) {
	for _, q := range Quotas(5, minute) {
		r := newRequest("z", "k", 2, Limit(t, "z", q))
		takeAt(t, s, start, r)
		d := r[0].Outcome.Decisions[0]
		later := start + d.ResetAfter
		refundAt(t, s, later, r, 2)
		if !takeAt(t, s, later, r) || r[0].Outcome.Decisions[0].Remaining != d.Remaining {
			t.Errorf("%s: a refund after reset-after makes %+v of %+v", q.Algorithm, r[0].Outcome.Decisions[0], d)
		}
	}
}

// remainingAt returns the remaining events of each limit of a key.
func remainingAt(t *testing.T, s Store, now algorithms.Micros, zone, key string, limits ...store.Limit) (n []int64) {
	t.Helper()
	r := newRequest(zone, key, 0, limits...)
	takeAt(t, s, now, r)
	for _, d := range r[0].Outcome.Decisions {
		n = append(n, d.Remaining)
	}
	return n
}

func checkRemaining(t *testing.T, got []int64, want ...int64) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v remaining, want %v", got, want)
	}
}

// testCharge charges events in addition, also more than there is room for.
func testCharge(t *testing.T, s Store) {
	for i, q := range Quotas(6, 1000*minute) {
		limits := Limits(t, "z", q, Quotas(4, 1000*minute)[i])
		if limits[0].Algorithm().BinaryOnly {
			continue
		}
		t.Run(q.Algorithm, func(t *testing.T) {
			for _, mode := range modesOf(q) {
				key := q.Algorithm + mode.String()
				r := newRequest("z", key, 1, limits...)
				r[0].Mode = mode
				r[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}
				charge := func(n int64, want ...int64) {
					t.Helper()
					correctAt(t, s, start, store.Correction{Request: &r[0], Charge: n})
					checkRemaining(t, remainingAt(t, s, start, "z", key, limits...), want...)
				}
				takeAt(t, s, start, r)
				before := r[0].Outcome.Decisions[0]
				charge(0, 5, 3)
				charge(2, 3, 1)
				charge(2, 1, 0)
				charge(1<<31-1, 0, 0)
				charge(1, 0, 0)
				if after := r[0].Outcome.Decisions[0]; after != before {
					t.Errorf("the charge made %+v of %+v", after, before)
				}
				correctAt(t, s, start, store.Correction{Request: &r[0], Refund: 1})
				left := []int64{0, 0}              // more was charged than there was room for
				if limits[0].Algorithm().IsLog() { // which holds no more than its events
					left = []int64{1, 1}
				}
				checkRemaining(t, remainingAt(t, s, start, "z", key, limits...), left...)
				if other := newSlotsRequest("z", key, 2); !takeAt(t, s, start, other) || other[0].Outcome.Slots.InFlight != 2 {
					t.Errorf("a charge and a refund leave 1 in flight, not %d", other[0].Outcome.Slots.InFlight-1)
				}
			}
		})
	}
}

// testClaim claims a share of a calendar. One claim gets it, and only if the share is used. A denied request uses nothing,
// also if a store charges it for a moment, because another key denies it.
func testClaim(t *testing.T, s Store) {
	const share = 5
	calendar := Limit(t, "z", algorithms.Quota{Algorithm: "calendar", Events: 10, Period: "year"})
	other := Limit(t, "y", algorithms.Quota{Algorithm: "calendar", Events: 1, Period: "year"})
	take := func(cost int64, more []store.ZoneRequest, allowed, due bool) []store.ZoneRequest {
		t.Helper()
		r := append(newRequest("z", "a", cost, calendar), more...)
		if ok := takeAt(t, s, start, r); ok != allowed {
			t.Errorf("a request of cost %d is allowed: %v", cost, ok)
		}
		if crossed := calendar.Crossed(r[0].Outcome.Decisions[0], share); crossed != due {
			t.Errorf("after a request of cost %d, %d of 10 are due: %v, %+v", cost, share, crossed, r[0].Outcome.Decisions)
		}
		return r
	}
	claim := func(charge int64, want bool) {
		t.Helper()
		var got, other bool
		correctAt(t, s, start, store.Correction{
			Request: &newRequest("z", "a", 0, calendar)[0], Charge: charge,
			Charged: func(d []algorithms.Decision) { got = calendar.Crossed(d[0], share) },
		}, store.Correction{
			Request: &newRequest("z", "unused", 0, calendar)[0],
			Charged: func(d []algorithms.Decision) { other = calendar.Crossed(d[0], share) },
		})
		if got != want || other {
			t.Errorf("a claim got the share: %v, one of another key: %v", got, other)
		}
	}
	takeAt(t, s, start, newRequest("y", "b", 1, other))
	claim(0, false)
	take(1<<31-1, nil, false, false)
	claim(0, false)
	take(share, newRequest("y", "b", 1, other), false, false)
	claim(0, false)
	take(share-1, nil, true, false)
	claim(0, false)
	r := take(1, nil, true, true)
	take(7, nil, false, true)
	refundAt(t, s, start, r, 1)
	claim(0, false)
	claim(1, true)
	claim(0, false)
	refundAt(t, s, start, take(2, nil, true, false), 2)
	take(2, nil, true, false)
}

// testClaimReserved claims a share of a calendar while events are reserved. They are not used until their request settles.
func testClaimReserved(t *testing.T, s Store) {
	calendar := Limit(t, "z", algorithms.Quota{Algorithm: "calendar", Events: 10, Period: "year"})
	take := func(cost, used int64) store.ZoneRequest {
		t.Helper()
		r := newRequest("z", "reserved", cost, calendar)
		r[0].ReservedID = store.ReservedID("z", "")
		if d := r[0].Outcome; !takeAt(t, s, start, r) || r[0].Outcome.Decisions[0].Used != used {
			t.Errorf("a request of cost %d: %+v, want %d used", cost, d, used)
		}
		for events := range int64(10) {
			if due := calendar.Crossed(r[0].Outcome.Decisions[0], 1+events); due != (events < used) {
				t.Errorf("%d of 10 are due: %v, with %d used", 1+events, due, used)
			}
		}
		return r[0]
	}
	settle := func(r store.ZoneRequest, refund, charge int64, want int) {
		t.Helper()
		claimed := 0
		correctAt(t, s, start, store.Correction{
			Request: &r, Refund: refund, Charge: charge, Settled: true,
			Charged: func(d []algorithms.Decision) {
				for events := range int64(10) {
					if calendar.Crossed(d[0], 1+events) {
						claimed++
					}
				}
			},
		})
		if claimed != want {
			t.Errorf("%d shares are claimed, want %d", claimed, want)
		}
	}
	first, second := take(3, 0), take(4, 0)
	settle(first, 3, 0, 0)
	third := take(1, 0)
	settle(second, 2, 0, 2)
	settle(third, 0, 5, 6)
}

// testCorrectSeveral makes several corrections in one call, some of the same budget. They are made in
// order.
func testCorrectSeveral(t *testing.T, s Store) {
	for _, q := range Quotas(6, 1000*minute) {
		limit := Limit(t, "z", q)
		if limit.Algorithm().BinaryOnly { // which gives back only the last charge
			continue
		}
		t.Run(q.Algorithm, func(t *testing.T) {
			var all []store.ZoneRequest
			for i := range 6 {
				r := newRequest("z", fmt.Sprint(q.Algorithm, i%3), 3, limit)
				r[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 2}
				if !takeAt(t, s, start, r) {
					t.Fatal("denied")
				}
				all = append(all, r...)
			}
			correctAt(t, s, start,
				store.Correction{Request: &all[0], Refund: 2, Leave: true}, // the next correction charges these events
				store.Correction{Request: &all[3], Charge: 2},
				store.Correction{Request: &all[1], Charge: 2}, // nothing is left, so it is a debt
				store.Correction{Request: &all[4], Refund: 2},
				store.Correction{Request: &all[2]},
				store.Correction{Request: &all[5], Refund: 2, Leave: true},
				store.Correction{Request: &all[5], Charge: 1},
				store.Correction{Request: &all[2], Leave: true},
			)
			inFlight, left := []int64{1, 2, 0}, []int64{0, 0, 1}
			if limit.Algorithm().IsLog() { // which holds no more than its events
				left[1] = 2
			}
			for i, want := range left {
				key := fmt.Sprint(q.Algorithm, i)
				checkRemaining(t, remainingAt(t, s, start, "z", key, limit), want)
				r := newSlotsRequest("z", key, 3)
				takeSlotsAt(t, s, start, r, tookSlot(inFlight[i]+1))
			}
			correctAt(t, s, start) // none at all
		})
	}
}

// testCorrectOwnClock corrects by the store's own clock, through all wrappers. The next request finds the
// correction made.
func testCorrectOwnClock(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 1000 * minute, Burst: 5})
	newRequest := func() []store.ZoneRequest {
		r := newRequest("z", "k", 4, limit)
		r[0].Slots = &store.Slots{ID: store.SlotsID("z", ""), Limit: 1}
		return r
	}
	take := func(r []store.ZoneRequest, want bool) {
		t.Helper()
		if ok, err := s.Take(context.Background(), r); err != nil || ok != want {
			t.Errorf("Take = %v, %v, %+v; want %v", ok, err, r[0].Outcome, want)
		}
	}
	correct := func(c store.Correction) {
		s.Correct([]store.Correction{c}, func(err error) { t.Errorf("correct: %v", err) })
	}
	r := newRequest()
	take(r, true)
	for range 20 {
		other := newRequest()
		take(other, false)
		other[0].Limits = nil
		take(other, false)
		correct(store.Correction{Request: &r[0], Leave: true, Refund: 4})
		take(r, true)
	}
	correct(store.Correction{Request: &r[0], Charge: 1, Leave: true})
	other := newRequest()
	other[0].Cost = 1
	take(other, false)
	other[0].Limits = nil
	take(other, true)
	s.Correct([]store.Correction{{Request: &r[0], Refund: 4}, {Request: &other[0], Leave: true}}, nil)
	other = newRequest()
	take(other, true)
	if d := other[0].Outcome.Decisions[0]; d.Remaining != 0 {
		t.Errorf("%+v, want that a charge in addition stays", d)
	}
}
