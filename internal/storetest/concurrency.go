package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// testConcurrency floods one key from many goroutines, by the store's own clock. Exactly the events of the
// limit pass.
func testConcurrency(t *testing.T, s Store) {
	for _, q := range Quotas(100, 1000*minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			limit := Limit(t, "z", q)
			var allowed atomic.Int64
			flood(t, 32, 20, func() error {
				ok, err := s.Take(context.Background(), newRequest("z", "k", 1, limit))
				if ok {
					allowed.Add(1)
				}
				return err
			})
			if allowed.Load() != 100 {
				t.Errorf("%d of 640 concurrent requests passed a limit of 100", allowed.Load())
			}
		})
	}
}

// testConcurrencyRefund gives back every second charge at once. The others use up the budget exactly, except for smooth.
// There, requests wait for the cost of the last one that passes. Until then, what each other goroutine has still to give
// back is lost: at most an event each.
func testConcurrencyRefund(t *testing.T, s Store) {
	const goroutines = 16
	for _, q := range Quotas(100, 1000*minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			limit := Limit(t, "z", q)
			var kept, taken atomic.Int64
			flood(t, goroutines, 40, func() error {
				r := newRequest("z", "k", 1, limit)
				ok, err := s.Take(context.Background(), r)
				if !ok || err != nil {
					return err
				}
				if taken.Add(1)%2 == 0 {
					s.Correct(Refunds(r, 1), func(err error) { t.Errorf("refund: %v", err) })
					return nil
				}
				kept.Add(1)
				return nil
			})
			for range 200 {
				if ok, err := s.Take(context.Background(), newRequest("z", "k", 1, limit)); err != nil {
					t.Fatal(err)
				} else if ok {
					kept.Add(1)
				}
			}
			minPassed := int64(100)
			if q.Algorithm == "smooth" {
				minPassed -= goroutines - 1
			}
			if kept.Load() > 100 || kept.Load() < minPassed {
				t.Errorf("%d requests passed a limit of 100", kept.Load())
			}
		})
	}
}

// testConcurrencyKeys takes overlapping pairs of keys in every order. There is no deadlock, and no denied
// request leaves a charge.
func testConcurrencyKeys(t *testing.T, s Store) {
	for _, q := range Quotas(50, 1000*minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			zones := []string{"x", "y"}
			limits := []store.Limit{Limit(t, "x", q), Limit(t, "y", q)}
			var charged [2][4]atomic.Int64
			flood(t, 16, 40, func() error {
				first := rand.IntN(2) // zones and keys in any order
				var r []store.ZoneRequest
				var chosen [2]int
				for i := range zones {
					z := (first + i) % 2
					chosen[z] = rand.IntN(4)
					r = append(r, newRequest(zones[z], fmt.Sprint(chosen[z]), 1, limits[z])...)
				}
				ok, err := s.Take(context.Background(), r)
				if ok {
					charged[0][chosen[0]].Add(1)
					charged[1][chosen[1]].Add(1)
				}
				return err
			})
			for z := range zones {
				for i := range charged[z] {
					r := newRequest(zones[z], fmt.Sprint(i), 0, limits[z])
					if _, err := s.Take(context.Background(), r); err != nil {
						t.Fatal(err)
					}
					d := r[0].Outcome.Decisions[0]
					if _, ok := s.(GivesBack); ok && q.Algorithm == "smooth" && charged[z][i].Load()+d.Remaining < 50 {
						continue
					}
					if charged[z][i].Load()+d.Remaining != 50 {
						t.Errorf("zone %s key %d: %d charged and %d remaining of 50", zones[z], i, charged[z][i].Load(), d.Remaining)
					}
				}
			}
		})
	}
}

// flood calls f from goroutines at once, so many times from each.
func flood(t *testing.T, goroutines, each int, f func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
