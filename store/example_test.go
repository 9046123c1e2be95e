package store_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const (
	second algorithms.Micros = 1_000_000
	minute                   = 60 * second
	hour                     = 60 * minute
)

// Limit the requests to an HTTP handler in memory: each API key can send 3 requests at once and 3 per
// hour.
func Example() {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "token_bucket", Events: 3, Window: hour})
	if err != nil {
		log.Fatal(err)
	}
	limits := []store.Limit{store.NewLimit("api", "", limit)}
	budgets := store.NewMemory(100_000)

	limited := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			requests := []store.ZoneRequest{{Zone: "api", Key: r.Header.Get("X-Api-Key"), Limits: limits, Cost: 1}}
			if allowed, _ := budgets.Take(r.Context(), requests); !allowed {
				seconds := (requests[0].Outcome.Decisions[0].RetryAfter + second - 1) / second
				w.Header().Set("Retry-After", fmt.Sprint(seconds))
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		}
	}

	handler := limited(http.NotFoundHandler())
	for _, key := range []string{"alice", "alice", "alice", "alice", "bob"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("X-Api-Key", key)
		handler(w, r)
		fmt.Println(key, w.Code)
	}
	// Output:
	// alice 404
	// alice 404
	// alice 404
	// alice 429
	// bob 404
}

// Decide at instants of your choice, for tests and simulations.
func ExampleMemory_TakeAt() {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "sliding_log", Events: 2, Window: 10 * second})
	if err != nil {
		log.Fatal(err)
	}
	limits := []store.Limit{store.NewLimit("login", "", limit)}
	budgets := store.NewMemory(100_000)

	start := 1_700_000_000 * second
	for _, at := range []algorithms.Micros{0, 4 * second, 9 * second, 10 * second} {
		requests := []store.ZoneRequest{{Zone: "login", Key: "alice", Limits: limits, Cost: 1}}
		allowed, _ := budgets.TakeAt(context.Background(), start+at, requests)
		fmt.Println(at/second, allowed, requests[0].Outcome.Decisions[0].RetryAfter/second)
	}
	// Output:
	// 0 true 0
	// 4 true 0
	// 9 false 1
	// 10 true 0
}

// Apply several limits to a request. It is charged to all of them, or to none.
func ExampleMemory_Take() {
	var limits []store.Limit
	for _, q := range []algorithms.Quota{
		{Algorithm: "fixed_window", Events: 100, Window: hour},
		{Algorithm: "token_bucket", Events: 2, Window: hour},
	} {
		limit, err := algorithms.NewLimit(q)
		if err != nil {
			log.Fatal(err)
		}
		limits = append(limits, store.NewLimit("api", "", limit))
	}
	budgets := store.NewMemory(100_000)

	for range 3 {
		requests := []store.ZoneRequest{{Zone: "api", Key: "alice", Limits: limits, Cost: 1}}
		allowed, _ := budgets.Take(context.Background(), requests)
		decisions := requests[0].Outcome.Decisions
		fmt.Println(allowed, decisions[0].Remaining, decisions[1].Remaining)
	}
	// Output:
	// true 99 1
	// true 98 0
	// false 98 0
}

// Give back the charge of a request that failed.
func ExampleMemory_Correct() {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: hour})
	if err != nil {
		log.Fatal(err)
	}
	limits := []store.Limit{store.NewLimit("api", "", limit)}
	budgets := store.NewMemory(100_000)
	take := func(cost int64) []store.ZoneRequest {
		requests := []store.ZoneRequest{{Zone: "api", Key: "alice", Limits: limits, Cost: cost, Peek: cost == 0}}
		_, _ = budgets.Take(context.Background(), requests)
		fmt.Println(requests[0].Outcome.Decisions[0].Remaining)
		return requests
	}

	requests := take(4)
	budgets.Correct([]store.Correction{{Request: &requests[0], Refund: 4}}, nil)
	take(0)
	// Output:
	// 6
	// 10
}
