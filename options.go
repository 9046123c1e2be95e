package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// Options are the options of a handler besides its zones. The rate_limit app has the same
// options, as defaults for all handlers. An option of a handler replaces the default as a whole.
// For example, a redis block of a handler keeps nothing of the app's redis block.
type Options struct {
	// The Redis that keeps the budgets, for any number of Caddy instances (default: none, so
	// budgets are kept in memory).
	Redis *Redis `json:"redis,omitempty"`

	// The place of the budgets: "memory" or "redis" (default: redis if one is configured, here or
	// in the app; otherwise memory).
	Store string `json:"store,omitempty"`

	// How requests are decided while Redis fails (default local).
	OnStoreError *OnStoreError `json:"on_store_error,omitempty"`

	// The header fields that tell clients about their budgets (default ["draft"]):
	//
	// - "draft": RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-10.
	// - "draft_06": RateLimit-Limit, -Remaining, and -Reset in seconds from now.
	// - "x_ratelimit": X-RateLimit-Limit, -Remaining, and -Reset in seconds from now.
	// - "x_ratelimit_epoch": the same, but -Reset in seconds since the Unix epoch.
	// - "sharkey": X-RateLimit-Remaining and -Clear, and on denials -Reset. -Clear is the time
	//   until the budget is fully restored, and -Reset the time until the request would be
	//   allowed. Both are in seconds with three decimals.
	// - "off": none of them.
	//
	// Several can be combined, but only one of the three with X-RateLimit fields. "off" stands
	// alone. With any value, a denial has Retry-After, unless no wait helps.
	Headers []string `json:"headers,omitempty"`

	// Explain each denial in its body, as application/problem+json (RFC 9457). If error routes
	// render the denial, this has no effect (default false: a denial has no body).
	ProblemJSON *bool `json:"problem_json,omitempty"`

	// The largest random addition to Retry-After, as a fraction from 0 to 1000: 0.2 adds up to a
	// fifth. Then clients don't all come back at the same time (default 0: nothing is added).
	Jitter float64 `json:"jitter,omitempty"`

	// Log the key of denied requests (default false: keys can be secrets). A key of
	// more than 256 bytes is logged as its first 256 bytes and "…".
	LogKey *bool `json:"log_key,omitempty"`

	// Leave this handler's requests out of the metrics (default false).
	DisableMetrics bool `json:"disable_metrics,omitempty"`

	// How often expired budgets are dropped from memory. The shortest interval of all
	// handlers that keep budgets in memory applies; at least 1ms (default 1m).
	SweepInterval caddy.Duration `json:"sweep_interval,omitempty"`

	// Has no effect but a warning. Configurations for another limiter may have it. Use redis to
	// share budgets between instances.
	Distributed any `json:"distributed,omitempty"`

	// Has no effect but a warning. Configurations for another limiter may have it. Budgets are
	// kept in memory or in redis.
	Storage any `json:"storage,omitempty"`
}

// inherit sets each unset option to its value in defaults.
func (o *Options) inherit(defaults Options) {
	if o.Store == "" && o.Redis == nil { // a handler with its own Redis uses it
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

// storeName returns the place of the budgets, after options were inherited.
func (o *Options) storeName() string {
	if o.Store == "" && o.Redis != nil {
		return "redis"
	}
	return cmp.Or(o.Store, "memory")
}

// warnOfIgnored warns of options that have no effect.
func (o *Options) warnOfIgnored(logger *zap.Logger) {
	if o.Distributed != nil {
		logger.Warn("distributed has no effect: write redis <host:port> for all instances to share one exact limit")
	}
	if o.Storage != nil {
		logger.Warn("storage has no effect: budgets are kept in memory, or with redis <host:port> in a Redis")
	}
}

// check checks the options. An error names the option, its value and what to write instead.
func (o *Options) check() error {
	var redis error
	if o.Redis != nil {
		redis = o.Redis.check()
	}
	_, storeError := o.OnStoreError.compile()
	return errors.Join(
		redis,
		storeError,
		checkStore(o.Store, true),
		checkHeaders(o.Headers),
		checkJitter(o.Jitter),
		checkSweepInterval(time.Duration(o.SweepInterval)),
	)
}

// checkStore checks the option store. hasRedis reports whether a Redis is configured.
func checkStore(name string, hasRedis bool) error {
	switch {
	case name != "" && name != "memory" && name != "redis":
		return fmt.Errorf("store must be memory or redis, not %q", name)
	case name == "redis" && !hasRedis:
		return errors.New("store is redis, but no Redis is named: " +
			"write for example redis 127.0.0.1:6379, here or in the global option rate_limit")
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
