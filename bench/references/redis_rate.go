package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

const timeout = 10 * time.Second

// redisRate is the limiter that is written in an afternoon: one script call a request, by a
// well-known package.
type redisRate struct{ limiter *redis_rate.Limiter }

func (*redisRate) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.redis_rate", New: func() caddy.Module { return new(redisRate) }}
}

func (h *redisRate) Provision(caddy.Context) error {
	if nodes := addresses(); len(nodes) > 1 {
		h.limiter = redis_rate.NewLimiter(redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes, ReadTimeout: timeout}))
	} else {
		h.limiter = redis_rate.NewLimiter(open(nodes[0]))
	}
	return nil
}

func (h *redisRate) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	result, err := h.limiter.Allow(r.Context(), key(r), redis_rate.Limit{Rate: 1_000_000, Burst: 1_000_000, Period: time.Second})
	if err != nil {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	w.Header().Set("Ratelimit", `"bench";r=`+strconv.Itoa(result.Remaining)+";t=1")
	if result.Allowed == 0 {
		w.WriteHeader(http.StatusTooManyRequests)
		return nil
	}
	return next.ServeHTTP(w, r)
}
