package store_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A middleware allows each client address 10 requests per second, and 50 of them at once.
func Example() {
	tokenBucket, err := algorithms.NewLimit(algorithms.Quota{
		Algorithm: "token_bucket", Events: 10, Window: 1_000_000, Burst: 50,
	})
	if err != nil {
		panic(err)
	}
	limits := []store.Limit{store.NewLimit("api", "", tokenBucket)}
	oneZone := func() int { return 1 }
	memory := store.NewSharedMemory().Bounded(1_000_000, oneZone, nil)

	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		requests := []store.Request{{Zone: "api", Key: client, Limits: limits, Cost: 1}}
		if allowed, err := memory.Take(r.Context(), requests); err == nil && !allowed {
			http.Error(w, "Too many requests.", http.StatusTooManyRequests)
			return
		}
		fmt.Fprint(w, "Hello.")
	})

	w := httptest.NewRecorder()
	limited.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 200 Hello.
}
