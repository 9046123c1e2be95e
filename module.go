// Package ratelimit limits HTTP requests in Caddy: exactly, in the memory of one
// process or in a Redis that any number of processes share.
//
// The way of a request: Handler.ServeHTTP (handler.go) asks each zone whose it is
// (zone.go), takes from all their budgets in one call of a store (package store,
// or redisstore), whose arithmetic is in package algorithms, and writes what came
// of it into the response (headers.go).
package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler limits requests by zones: named rules that say which requests belong
// to them, whose budget a request is charged to, and how much that budget grants.
// A request passes when every zone it belongs to has room for it, and is then
// charged to all of them; otherwise it is charged to none (but see mode) and
// answered with status 429.
//
// The module has the ID and the directive of two older limiters, so it is built
// into Caddy instead of them.
//
// Placeholders, for every zone of the configuration. They are empty for a request that the zone
// does not limit:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.<zone>.limit}` | How many events can be taken at once, of the zone's limit that is nearest to exhaustion
// `{http.rate_limit.<zone>.remaining}` | How many events of cost 1 could be taken now
// `{http.rate_limit.<zone>.reset}` | Seconds until the budget is as good as untouched, rounded up
// `{http.rate_limit.<zone>.retry_after}` | Seconds until this request would be allowed, rounded up; empty if it is, or never will be
// `{http.rate_limit.<zone>.allowed}` | Whether the zone had room: true or false
// `{http.rate_limit.<zone>.charged}` | How many events were charged
// `{http.rate_limit.<zone>.banned}` | Whether a ban of the key stands, or began with this request: true or false
// `{http.rate_limit.exceeded.name}` | The zone that denied the request, the one with the longest wait if several did; empty if none did
type Handler struct {
	// The zones, by name: 1 to 64 printable ASCII characters without { } " \ /.
	// Zones of one name in several handlers are one and must agree.
	RateLimits map[string]*Zone `json:"rate_limits,omitempty"`

	Options

	// Answer refused requests with an error for the error routes of the JSON
	// subroute this handler is in. It does so of itself where the server has
	// error routes (default false).
	ReturnErrors bool `json:"return_errors,omitempty"`

	app     *App
	store   store.Store
	lost    func(error) // is told of failures after which corrections may be lost
	backend *backend    // the Redis in it; nil: there is none
	outage  outagePolicy
	// hashKeys is the secret keys are logged with; empty if they are as they are.
	hashKeys string
	zones    []*zone
	forms    headerForms
	logger   *zap.Logger

	saidRoutes *atomic.Bool
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.rate_limit",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision inherits from the app what the handler doesn't say itself and makes
// the zones ready. It opens no connection, and no budget is touched.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger, h.saidRoutes = ctx.Logger(), new(atomic.Bool)
	app, err := ctx.App("rate_limit")
	if err != nil {
		return err
	}
	h.app = app.(*App)
	h.inherit(h.app.Options)
	h.warn(h.logger)
	if len(h.RateLimits) == 0 {
		h.logger.Warn("no zones are configured, so nothing is limited: write at least one zone")
	}
	h.forms = newHeaderForms(h.Headers)
	var storeID string
	if h.outage, err = h.OnStoreError.ready(); err != nil {
		return err
	}
	h.lost = func(err error) {
		h.failed(fmt.Errorf("correcting what a request was charged, or giving back its slot: %w", err))
	}
	h.store, storeID, err = h.app.storeFor(ctx, h)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(h.RateLimits)) {
		z, err := h.RateLimits[name].provision(ctx, name, h)
		if err != nil {
			return inZone(name, err)
		}
		z.identity.store = storeID
		h.zones = append(h.zones, z)
	}
	h.warnOfAddresses()
	return boundWork(h.zones)
}

// Validate judges the settings, and whether zones shared with other handlers agree.
func (h *Handler) Validate() error {
	if err := h.check(); err != nil {
		return err
	}
	for _, z := range h.zones {
		if err := h.app.claim(z); err != nil {
			return inZone(z.name, err)
		}
	}
	return nil
}

func inZone(name string, err error) error { return fmt.Errorf("zone %q: %w", name, err) }

// Options are what a handler can be told besides its zones. The rate_limit app
// holds the same as defaults for all handlers; what a handler says itself
// replaces the default whole.
type Options struct {
	// The Redis that keeps the budgets, for any number of Caddy instances
	// (default: none, and budgets are kept in memory).
	Redis *Redis `json:"redis,omitempty"`

	// Where budgets are kept: "memory" or "redis" (default redis where one is
	// configured, here or in the app, else memory).
	Store string `json:"store,omitempty"`

	// What becomes of requests that Redis can't decide on (default local).
	OnStoreError *OnStoreError `json:"on_store_error,omitempty"`

	// Which header fields tell clients about their budgets: "draft" (RateLimit
	// and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-10),
	// "draft_06" (RateLimit-Limit, -Remaining, -Reset), "x_ratelimit" or
	// "x_ratelimit_epoch" (X-RateLimit-Limit, -Remaining, and -Reset in seconds
	// from now or since the Unix epoch), or "sharkey" (X-RateLimit-Remaining,
	// -Clear: seconds until the budget is as good as untouched, and -Reset, on
	// refusals only: seconds until the request would be allowed, both with three
	// decimals); several together, but one of the last three, or "off" alone
	// (default ["draft"]). Retry-After is sent with all of them.
	Headers []string `json:"headers,omitempty"`

	// Say in the body of a refusal why, as application/problem+json (RFC 9457), where
	// no error routes answer it (default false: it has no body).
	ProblemJSON *bool `json:"problem_json,omitempty"`

	// How much is added to Retry-After at most, at random, as a fraction of it,
	// so that clients don't come back all at once; 0.2 adds up to a fifth
	// (default 0: nothing).
	Jitter float64 `json:"jitter,omitempty"`

	// Log the key of denied requests (default false: keys can be secrets). A key of
	// more than 256 bytes is logged as its first 256 bytes and "…".
	LogKey *bool `json:"log_key,omitempty"`

	// Leave this handler's requests out of the metrics (default false).
	DisableMetrics bool `json:"disable_metrics,omitempty"`

	// How often expired budgets are dropped from memory. The shortest interval of
	// all handlers that keep budgets in memory counts (default 1m).
	SweepInterval caddy.Duration `json:"sweep_interval,omitempty"`

	// Accepted, with a warning, for configurations written for another limiter:
	// instances share budgets through redis instead.
	Distributed any `json:"distributed,omitempty"`

	// Accepted, with a warning, for configurations written for another limiter:
	// budgets are kept in memory or in redis.
	Storage any `json:"storage,omitempty"`
}

// inherit takes what isn't set from the defaults.
func (o *Options) inherit(defaults Options) {
	if o.Store == "" && o.Redis == nil { // a Redis of one's own is there to be used
		o.Store = defaults.Store
	}
	if o.Redis == nil {
		o.Redis = defaults.Redis
	}
	if len(o.Headers) == 0 {
		o.Headers = defaults.Headers
	}
	if len(o.Headers) == 0 {
		o.Headers = []string{"draft"}
	}
	if o.OnStoreError == nil {
		o.OnStoreError = defaults.OnStoreError
	}
	if o.ProblemJSON == nil {
		o.ProblemJSON = defaults.ProblemJSON
	}
	if o.Jitter == 0 {
		o.Jitter = defaults.Jitter
	}
	if o.LogKey == nil {
		o.LogKey = defaults.LogKey
	}
	o.DisableMetrics = o.DisableMetrics || defaults.DisableMetrics
	if o.SweepInterval == 0 {
		o.SweepInterval = defaults.SweepInterval
	}
}

// warn tells what is accepted without effect.
func (o *Options) warn(logger *zap.Logger) {
	if o.Distributed != nil {
		logger.Warn("distributed has no effect: write redis <host:port> for all instances to share one exact limit")
	}
	if o.Storage != nil {
		logger.Warn("storage has no effect: budgets are kept in memory, or with redis <host:port> in a Redis")
	}
}

// check judges the options. Its errors name the option, its value and what to
// write instead.
func (o *Options) check() error {
	var redis error
	if o.Redis != nil {
		redis = o.Redis.check()
	}
	_, outage := o.OnStoreError.ready()
	return errors.Join(
		redis,
		outage,
		checkStore(o.Store, true),
		checkHeaders(o.Headers),
		checkJitter(o.Jitter),
		checkSweepInterval(time.Duration(o.SweepInterval)),
	)
}

func checkStore(name string, redis bool) error {
	switch {
	case name != "" && name != "memory" && name != "redis":
		return fmt.Errorf("store must be memory or redis, not %q", name)
	case name == "redis" && !redis:
		return errors.New("store is redis, but no Redis is named: write for example redis 127.0.0.1:6379, here or in the global option rate_limit")
	}
	return nil
}

func checkJitter(fraction float64) error {
	if !(fraction >= 0 && fraction <= 1000) {
		return fmt.Errorf("jitter must be a fraction from 0 to 1000, not %v: write for example 0.2 to add up to a fifth to Retry-After", fraction)
	}
	return nil
}

func checkSweepInterval(interval time.Duration) error {
	if interval < 0 || interval > 0 && interval < time.Millisecond {
		return fmt.Errorf("sweep_interval must be at least 1ms, not %v: write for example 1m", interval)
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
