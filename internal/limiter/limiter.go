// Package limiter decides one request: it charges the request to the zones of a rate_limit handler, and passes, delays or
// denies it. It never reads configuration: the root package compiles each zone, and fills in a Limiter.
//
// A request runs through the files in this order. Serve (serve.go) collects the zones that limit the request (request.go):
// each zone makes its key (key.go), and finds the limits of this key (limit_sets.go, overrides.go) and the cost (number.go).
// The store decides all zones in one call, after a wait for slots if need be (slot_wait.go), and an allowed request may be
// delayed (delay.go). Both kinds of responses have header fields (headers.go). A denied request gets its response
// (denial.go, denial_grpc.go) and a log line (denial_log.go). An allowed one goes to the next handler, and its response
// (response.go) can change its charges (settle.go). Other handlers read the result in placeholders (placeholders.go).
package limiter

import (
	"context"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Limiter is a rate_limit handler, ready to decide requests.
type Limiter struct {
	Zones []*Zone

	Store            store.Store
	Backend          Backend // the Redis of the store; nil for a store in memory
	InRedis          bool    // the budgets are in Redis, or would be outside of a simulation
	StoreErrorPolicy StoreErrorPolicy
	SlotLines        *lines.SlotLines
	// ReportFailure logs a failure of the store, or that a request was shed, unless it has just done so.
	ReportFailure func(error)
	// ReportCorrectionFailure is called when corrections of charges may be lost.
	ReportCorrectionFailure func(error)

	BodyFields     bodies.Fields         // the values in bodies of requests that the zones use
	ResponseValues bodies.ResponseValues // the JSON values in bodies of responses that the zones use
	BodyMemory     *bodies.Memory        // of requests

	HeaderForms  HeaderForms
	Jitter       float64 // the largest random part that is added to retry after; 0.5 adds up to half
	ProblemJSON  bool    // explain denials in the body
	ReturnErrors bool    // for denied requests, so that error routes respond

	// HashSecret is the secret of hash_keys: operators see only the HMAC of a key. If it is empty,
	// operators see the key itself.
	HashSecret          string
	CountsRequests      bool // in the metrics
	Denials             *denials.Log
	DenialSource        *denials.Source
	Logger              *zap.Logger
	warnedOfErrorRoutes atomic.Bool
}

// Backend is a Redis. Limiters of several configurations can have the same one. Requests in flight can use it also when no
// configuration does any more.
type Backend interface {
	store.Store
	// DecidedWithout returns the counts of the requests that were decided while the Redis failed.
	DecidedWithout() *OutageCounts
	// Failing returns how many servers of the Redis fail at present.
	Failing() int
	IsCluster() bool
}

// OutageCounts are the numbers of requests that were decided without Redis since the process began, by the mode of
// on_store_error.
type OutageCounts struct{ Local, Allowed, Denied atomic.Int64 }

// Peek decides requests that are peeks. If local budgets decide because Redis fails, failure is the error of
// Redis.
func (l *Limiter) Peek(ctx context.Context, requests []store.ZoneRequest) (allowed bool, failure, err error) {
	if f, ok := l.Store.(*store.Failover); ok {
		return f.Peek(ctx, requests)
	}
	allowed, err = l.Store.Take(ctx, requests)
	return allowed, nil, err
}

// AuthoritativeStore returns the store that decides while it works, without local budgets for
// outages.
func (l *Limiter) AuthoritativeStore() store.Store {
	if l.Backend != nil {
		return l.Backend
	}
	return l.Store
}

// ReportStoreFailure counts a failure of the store, and logs it unless the circuit breaker kept
// the request from the store.
func (l *Limiter) ReportStoreFailure(err error) {
	if l.CountsRequests {
		telemetry.CountStoreError(err)
	}
	if !errors.Is(err, store.ErrOpen) {
		l.ReportFailure(err)
	}
}
