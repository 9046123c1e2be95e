package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
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

	// How requests are decided while Redis fails. With "local", the same limits apply, with budgets in this process.
	// "local 1/3" grants a share of the limits, such as one of three instances. The share is above 0 and at most 1, and is
	// rounded down to at least 1 event. With "allow", requests pass unlimited. With "deny", requests are answered with
	// status 503 (default local).
	OnStoreError string `json:"on_store_error,omitempty"`

	// The header fields that tell clients about their budgets (default ["draft"]):
	//
	// - "draft": RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-11.
	// - "draft_06": RateLimit-Limit, -Remaining, and -Reset in seconds from now.
	// - "x_ratelimit": X-RateLimit-Limit, -Remaining, and -Reset in seconds from now.
	// - "x_ratelimit_epoch": the same, but -Reset in seconds since the Unix epoch.
	// - "sharkey": X-RateLimit-Remaining and -Clear, and on denials -Reset. -Clear is the time
	//   until the budget is fully restored, and -Reset the time until the request would be
	//   allowed. Both are in seconds with three decimals.
	// - "off": none of them.
	//
	// Several can be combined, but only one of the three with X-RateLimit fields. "off" can't
	// be combined. With any value, a denial has Retry-After, unless waiting won't help.
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
	o.Redis = cmp.Or(o.Redis, defaults.Redis)
	if len(o.Headers) == 0 {
		o.Headers = defaults.Headers
	}
	if len(o.Headers) == 0 {
		o.Headers = []string{"draft"}
	}
	o.OnStoreError = cmp.Or(o.OnStoreError, defaults.OnStoreError)
	o.ProblemJSON = cmp.Or(o.ProblemJSON, defaults.ProblemJSON)
	o.Jitter = cmp.Or(o.Jitter, defaults.Jitter)
	o.LogKey = cmp.Or(o.LogKey, defaults.LogKey)
	o.DisableMetrics = o.DisableMetrics || defaults.DisableMetrics
	o.SweepInterval = cmp.Or(o.SweepInterval, defaults.SweepInterval)
}

// storeName returns the place of the budgets, after options were inherited.
func (o *Options) storeName() string {
	if o.Store == "" && o.Redis != nil {
		return "redis"
	}
	return cmp.Or(o.Store, "memory")
}

// warn warns about options that have no effect, or too much.
func (o *Options) warn(logger *zap.Logger) {
	if o.Distributed != nil {
		logger.Warn("distributed has no effect: write redis <host:port> for all instances to share one exact limit")
	}
	if o.Storage != nil {
		logger.Warn("storage has no effect: budgets are kept in memory, or with redis <host:port> in a Redis")
	}
	if o.Jitter > 1 {
		logger.Warn("jitter is a fraction, and one above 1 can more than double Retry-After: write for example 0.1 for 10 %",
			zap.Float64("jitter", o.Jitter))
	}
}

// checkStore checks that a store in Redis has one. hasRedis reports whether a Redis is configured.
func checkStore(name string, hasRedis bool) error {
	if name == "redis" && !hasRedis {
		return errors.New("store is redis, but no Redis is named: " +
			"write for example redis 127.0.0.1:6379, here or in the global option rate_limit")
	}
	return nil
}

// ignored returns an option that has no effect, whatever it holds.
func ignored(name string, field *any) options.Option {
	return options.Made(name, "", field, func(d *caddyfile.Dispenser) (any, error) {
		d.NextSegment()
		return map[string]any{}, nil
	}, nil)
}

// blockOptions returns the options that handlers and the app share.
func (o *Options) blockOptions() []options.Option {
	return []options.Option{
		options.Made("redis", "127.0.0.1:6379", &o.Redis, unmarshalRedis, (*Redis).check),
		options.Single("store", "redis", &o.Store, options.Text, options.OneOf("memory", "redis")),
		options.Made("on_store_error", "local", &o.OnStoreError, options.Words, checkOnStoreError),
		options.List("headers", "draft x_ratelimit", &o.Headers, options.Text, checkHeaders),
		options.OnOff("problem_json", &o.ProblemJSON),
		options.Single("jitter", "0.2", &o.Jitter, options.Number, options.Within(0., 1000)),
		options.OnOff("log_key", &o.LogKey),
		options.Flag("disable_metrics", &o.DisableMetrics),
		options.Single("sweep_interval", "1m", &o.SweepInterval, options.Duration, options.AtLeast(time.Millisecond)),
		ignored("distributed", &o.Distributed),
		ignored("storage", &o.Storage),
	}
}

// check checks each option that is set by itself.
func (o *Options) check() error { return checkSet(o.blockOptions()) }

// checkSet checks each option that is set by itself.
func checkSet(all []options.Option) error {
	var errs []error
	for _, o := range all {
		if o.Check != nil && o.Value != nil {
			errs = append(errs, o.Check())
		}
	}
	return errors.Join(errs...)
}

// The names of options, in the order they are listed to users.
var (
	sharedOptions  = options.Names(new(Options).blockOptions())
	handlerOptions = append([]string{"zone"}, sharedOptions...)
	globalOptions  = append([]string{"zone", "memory"}, sharedOptions...)
	limitOptions   = append([]string{"legacy"}, algorithmNames()...)
	settleOptions  = []string{"match", "cost", "wait"}
	redisOptions   = options.Names(new(Redis).blockOptions())
	memoryOptions  = options.Names(new(MemoryOptions).blockOptions())
	tlsOptions     = options.Names(new(RedisTLS).blockOptions())
)

// blocks are all blocks, for errors about options in a wrong one. They are made by init, because the functions that
// read a block need them, too.
var blocks []options.Block

func init() {
	blocks = []options.Block{
		{Name: "the global option rate_limit", Options: []string{"memory"}},
		{Name: "the memory block of the global option rate_limit", Options: memoryOptions},
		{Name: "the directive rate_limit or its global option", Options: handlerOptions},
		{Name: "a zone, as in zone api { ... }", Options: zoneOptions()},
		{Name: "the line of a limit, as in token_bucket 10 1s 20", Options: []string{"burst"}},
		{Name: "match of settle, as in match status 401", Options: []string{"status"}},
		{Name: "the line of a cost, as in cost {http.response.header.X-Tokens} max 4000", Options: []string{"min", "max"}, Words: true},
		{Name: "a redis block", Options: redisOptions},
		{Name: "the tls block of redis", Options: tlsOptions},
	}
	for _, a := range algorithms.All() {
		blocks = append(blocks, options.Block{Name: "the block of " + a.Name, Options: a.OptionNames()})
	}
}

// readBlock reads a block with these options, and checks them together if check is not nil.
func readBlock(d *caddyfile.Dispenser, name string, all []options.Option, check func() error) error {
	return options.ReadBlock(d, name, all, blocks, check)
}

func algorithmNames() (names []string) {
	for _, a := range algorithms.All() {
		names = append(names, a.Name)
	}
	return names
}

// compileOnStoreError returns the policy of the option on_store_error; without the option, the default.
func compileOnStoreError(text string) (limiter.StoreErrorPolicy, error) {
	mode, share, _ := strings.Cut(cmp.Or(text, "local"), " ")
	policy := limiter.StoreErrorPolicy{Mode: mode, Num: 1, Den: 1}
	if mode != "local" && mode != "allow" && mode != "deny" || share != "" && mode != "local" {
		return policy, options.Must("must be local, local with a share as in local 1/3, allow or deny, not %q", text)
	}
	if share == "" {
		return policy, nil
	}
	const maxDenominator = 1_000_000
	part := new(big.Rat)
	if len(share) > 20 || strings.ContainsAny(share, "eEpPxX_") || part.UnmarshalText([]byte(share)) != nil ||
		part.Sign() <= 0 || part.Cmp(big.NewRat(1, 1)) > 0 || part.Denom().Cmp(big.NewInt(maxDenominator)) > 0 {
		return policy, fmt.Errorf("the share of on_store_error local must be above 0 and at most 1, not %q: write for example 1/3", share)
	}
	policy.Num, policy.Den = part.Num().Int64(), part.Denom().Int64()
	return policy, nil
}

func checkOnStoreError(text string) error {
	_, err := compileOnStoreError(text)
	return err
}

// checkHeaders checks the option headers.
func checkHeaders(names []string) error {
	for i, name := range names {
		family, known := httpfields.FamilyByName(name)
		switch {
		case !known && name != "draft" && name != "off":
			return fmt.Errorf("headers has no form %q: write draft, draft_06, x_ratelimit, x_ratelimit_epoch, sharkey or off", name)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("headers names %s twice: write it once", name)
		case name == "off" && len(names) > 1:
			return fmt.Errorf("headers off can't be combined with %s: write one or the other", strings.Join(names, " "))
		}
		for _, earlier := range names[:i] {
			if other, ok := httpfields.FamilyByName(earlier); ok && known && other.SharesFields(family) {
				return fmt.Errorf("headers %s and %s write the same fields: choose one", earlier, name)
			}
		}
	}
	return nil
}
