package redisstore_test

import (
	"log"
	"net/http"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Share the budgets of an HTTP handler between all processes that use a Redis. While Redis fails,
// requests pass.
func Example() {
	redis, err := redisstore.Open(redisstore.Options{Address: "127.0.0.1:6379"}, redisstore.Hooks{})
	if err != nil {
		log.Fatal(err)
	}
	defer redis.Close()
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 100, Window: 60_000_000})
	if err != nil {
		log.Fatal(err)
	}
	limits := []store.Limit{store.NewLimit("api", "", limit)}

	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		requests := []store.ZoneRequest{{Zone: "api", Key: r.Header.Get("X-Api-Key"), Limits: limits, Cost: 1}}
		if allowed, err := redis.Take(r.Context(), requests); err == nil && !allowed {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
}
