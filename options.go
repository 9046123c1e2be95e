package ratelimit

import (
	"cmp"
	"encoding/json"
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

	// How requests are decided while Redis fails (default local).
	OnStoreError *OnStoreError `json:"on_store_error,omitempty"`

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

// warn warns of options that have no effect, or too much.
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
		checkStoreName(o.Store),
		checkHeaders(o.Headers),
		checkJitter(o.Jitter),
		checkSweepInterval(o.SweepInterval),
	)
}

// checkStore checks the option store. hasRedis reports whether a Redis is configured.
func checkStore(name string, hasRedis bool) error {
	if err := checkStoreName(name); err != nil {
		return err
	}
	if name == "redis" && !hasRedis {
		return errors.New("store is redis, but no Redis is named: " +
			"write for example redis 127.0.0.1:6379, here or in the global option rate_limit")
	}
	return nil
}

func checkStoreName(name string) error {
	if name != "" && name != "memory" && name != "redis" {
		return fmt.Errorf("store must be memory or redis, not %q", name)
	}
	return nil
}

func checkJitter(fraction float64) error {
	if !(fraction >= 0 && fraction <= 1000) {
		return fmt.Errorf("jitter must be a fraction from 0 to 1000, not %v: write for example 0.2 to add up to a fifth to Retry-After", fraction)
	}
	return nil
}

func checkSweepInterval(d caddy.Duration) error {
	if interval := time.Duration(d); interval < 0 || interval > 0 && interval < time.Millisecond {
		return fmt.Errorf("sweep_interval must be at least 1ms, not %v: write for example 1m", interval)
	}
	return nil
}

// option is an option of a block, with the function that reads the rest of its line.
type option struct {
	name string
	read func(*caddyfile.Dispenser) error
}

// fieldOption returns an option whose value becomes that of a field. check can be nil.
func fieldOption[T any](name string, field *T, read func(*caddyfile.Dispenser) (T, error), check func(T) error) option {
	return option{name, func(d *caddyfile.Dispenser) (err error) {
		if *field, err = read(d); err == nil && check != nil {
			err = check(*field)
		}
		return err
	}}
}

// withExample returns read with its example filled in. Errors show the example.
func withExample[T any](read func(*caddyfile.Dispenser, string) (T, error), example string) func(*caddyfile.Dispenser) (T, error) {
	return func(d *caddyfile.Dispenser) (T, error) { return read(d, example) }
}

// pointer returns read with a pointer to its value, for fields that are nil by default.
func pointer[T any](read func(*caddyfile.Dispenser) (T, error)) func(*caddyfile.Dispenser) (*T, error) {
	return func(d *caddyfile.Dispenser) (*T, error) {
		v, err := read(d)
		return &v, err
	}
}

// presence reads an option without a value.
func presence(d *caddyfile.Dispenser) (bool, error) { return true, options.NoValue(d) }

// ignored reads an option that has no effect, whatever it holds.
func ignored(d *caddyfile.Dispenser) (any, error) {
	d.NextSegment()
	return map[string]any{}, nil
}

// readOptions reads a block with these options, and checks them together if check is not nil.
func readOptions(d *caddyfile.Dispenser, block string, all []option, check func() error) error {
	return optionTable.ReadBlock(d, block, optionNames(all), func(name string) error {
		return all[slices.IndexFunc(all, func(o option) bool { return o.name == name })].read(d)
	}, check)
}

func optionNames(all []option) (names []string) {
	for _, o := range all {
		names = append(names, o.name)
	}
	return names
}

// blockOptions returns the options that handlers and the app share.
func (o *Options) blockOptions() []option {
	return []option{
		fieldOption("redis", &o.Redis, unmarshalRedis, nil),
		fieldOption("store", &o.Store, withExample(options.Value, "redis"), checkStoreName),
		fieldOption("on_store_error", &o.OnStoreError, unmarshalOnStoreError, nil),
		fieldOption("headers", &o.Headers, readHeaders, checkHeaders),
		fieldOption("problem_json", &o.ProblemJSON, options.OnOff, nil),
		fieldOption("jitter", &o.Jitter, withExample(options.Fraction, "0.2"), checkJitter),
		fieldOption("log_key", &o.LogKey, options.OnOff, nil),
		fieldOption("disable_metrics", &o.DisableMetrics, presence, nil),
		fieldOption("sweep_interval", &o.SweepInterval, withExample(options.PositiveDuration, "1m"), checkSweepInterval),
		fieldOption("distributed", &o.Distributed, ignored, nil),
		fieldOption("storage", &o.Storage, ignored, nil),
	}
}

// The names of options, in the order they are listed to users.
var (
	sharedOptions  = optionNames(new(Options).blockOptions())
	handlerOptions = append([]string{"zone"}, sharedOptions...)
	globalOptions  = append([]string{"zone", "memory"}, sharedOptions...)
	limitOptions   = append([]string{"legacy"}, algorithmNames()...)
	settleOptions  = []string{"match", "cost"}
	redisOptions   = optionNames(new(Redis).blockOptions())
	memoryOptions  = optionNames(new(MemoryOptions).blockOptions())
	tlsOptions     = optionNames(new(RedisTLS).blockOptions())
)

// optionTable describes the options of all blocks, for errors. It is made by init, because the functions that
// read a block need it, too.
var optionTable *options.Table

func init() { optionTable = newOptionTable() }

func newOptionTable() *options.Table {
	t := &options.Table{
		Blocks: []options.Block{
			{Name: "the global option rate_limit", Options: []string{"memory"}},
			{Name: "the memory block of the global option rate_limit", Options: memoryOptions},
			{Name: "the directive rate_limit or its global option", Options: handlerOptions},
			{Name: "a zone, as in zone api { ... }", Options: zoneOptions()},
			{Name: "a redis block", Options: redisOptions},
			{Name: "the tls block of redis", Within: "redis", Options: tlsOptions},
		},
		Repeatable: append([]string{"zone"}, limitOptions...),
		Examples: map[string]string{
			"key":         "for example key {client_ip}",
			"key_case":    "key_case lower",
			"match":       "for example match path /api/*",
			"status":      "for example status 429",
			"settle":      "for example\nsettle {\n\tmatch status 401 403\n}",
			"concurrency": "for example concurrency 10",
			"exempt":      "for example exempt client_ip 203.0.113.0/24",
			"override":    "for example override 203.0.113.7 unlimited",
		},
		Correct: correctOption,
	}
	for _, s := range zoneSettings() {
		if s.repeatable {
			t.Repeatable = append(t.Repeatable, s.name)
		}
	}
	for _, name := range algorithmNames() {
		t.Examples[name] = fmt.Sprintf("for example %s %s", name, algorithms.ExampleOf(name))
	}
	return t
}

// correctOption returns the correction for an option of limits that stands elsewhere, and for status in settle.
func correctOption(option, block string) string {
	limits := algorithms.AlgorithmsWith(option)
	switch {
	case limits != nil:
		return "it belongs in the block of " + strings.Join(limits, " or ")
	case option == "status" && block == "settle":
		return "write for example match status 401 403"
	case option == "max_connections" && block == "redis": // not concurrency
		return "write one of " + strings.Join(redisOptions, ", ")
	case option != "burst" || block == "the global option rate_limit" || block == "redis":
		return ""
	}
	name := "token_bucket"
	if a, err := algorithms.Lookup(block); err == nil {
		if name = a.Name; !a.Burst {
			return name + " admits up to events at once; write a limit with a burst, such as token_bucket 10 1s 20"
		}
	}
	return fmt.Sprintf("burst is the third argument of a limit, as in %s 10 1s 20", name)
}

func algorithmNames() (names []string) {
	for _, a := range algorithms.All() {
		names = append(names, a.Name)
	}
	return names
}

// OnStoreError says what happens to requests while Redis fails. In JSON it can also be the mode
// alone, such as "allow".
type OnStoreError struct {
	// "local": the same limits apply, with budgets in this process. "allow": requests pass
	// unlimited. "deny": requests are answered with status 503 (default local).
	Mode string `json:"mode,omitempty"`

	// The share of the limits that this process grants in mode local: a fraction such as 1/3
	// for one of three instances. It is rounded down to at least 1 event (default 1: all).
	Share string `json:"share,omitempty"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *OnStoreError) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &o.Mode)
	}
	if len(data) > 0 && data[0] != '{' {
		return errors.New("must be a string or an object, such as \"allow\"")
	}
	type plain OnStoreError
	return options.DecodeStrictly(data, (*plain)(o))
}

// MarshalJSON implements [json.Marshaler].
func (o OnStoreError) MarshalJSON() ([]byte, error) {
	if o.Share == "" {
		return json.Marshal(o.Mode)
	}
	type plain OnStoreError
	return json.Marshal(plain(o))
}

// onStoreErrorForm describes the values of the option on_store_error, for errors.
const onStoreErrorForm = "local, local with a share as in local 1/3, allow or deny"

// compile returns the checked policy; for nil, the default.
func (o *OnStoreError) compile() (limiter.StoreErrorPolicy, error) {
	policy := limiter.StoreErrorPolicy{Mode: "local", Num: 1, Den: 1}
	if o == nil {
		return policy, nil
	}
	switch o.Mode {
	case "local", "allow", "deny":
		policy.Mode = o.Mode
	case "":
		if o.Share == "" {
			return policy, errors.New("on_store_error is empty: write " + onStoreErrorForm)
		}
	default:
		return policy, fmt.Errorf("on_store_error must be %s, not %q", onStoreErrorForm, o.Mode)
	}
	if o.Share == "" {
		return policy, nil
	}
	if policy.Mode != "local" {
		return policy, fmt.Errorf("on_store_error %s takes no share, not %q: only local has limits to share", o.Mode, o.Share)
	}
	const maxDenominator = 1_000_000
	share, ok := new(big.Rat).SetString(o.Share)
	if !ok || len(o.Share) > 20 || strings.ContainsAny(o.Share, "eEpPxX_") ||
		share.Sign() <= 0 || share.Cmp(big.NewRat(1, 1)) > 0 || share.Denom().Cmp(big.NewInt(maxDenominator)) > 0 {
		return policy, fmt.Errorf("the share of on_store_error local must be above 0 and at most 1, not %q: write for example 1/3", o.Share)
	}
	policy.Num, policy.Den = share.Num().Int64(), share.Denom().Int64()
	return policy, nil
}

// unmarshalOnStoreError reads on_store_error local [<share>]|allow|deny.
func unmarshalOnStoreError(d *caddyfile.Dispenser) (*OnStoreError, error) {
	args := d.RemainingArgs()
	if len(args) < 1 || len(args) > 2 {
		return nil, fmt.Errorf("on_store_error takes %s, not %d values", onStoreErrorForm, len(args))
	}
	o := &OnStoreError{Mode: args[0]}
	if len(args) == 2 {
		o.Share = args[1]
	}
	_, err := o.compile()
	return o, err
}

// headerNames are the values of the option headers.
const headerNames = "draft, draft_06, x_ratelimit, x_ratelimit_epoch, sharkey or off"

// readHeaders reads the option headers.
func readHeaders(d *caddyfile.Dispenser) ([]string, error) {
	names := d.RemainingArgs()
	if len(names) == 0 {
		return nil, errors.New("headers takes at least one value: write " + headerNames)
	}
	return names, nil
}

// checkHeaders checks the option headers.
func checkHeaders(names []string) error {
	for i, name := range names {
		family, known := httpfields.FamilyByName(name)
		switch {
		case !known && name != "draft" && name != "off":
			return fmt.Errorf("headers has no form %q: write %s", name, headerNames)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("headers names %s twice: write it once", name)
		case name == "off" && len(names) > 1:
			return fmt.Errorf("headers off stands alone, not with %s", strings.Join(names, " "))
		}
		for _, earlier := range names[:i] {
			if other, ok := httpfields.FamilyByName(earlier); ok && known && other.SharesFields(family) {
				return fmt.Errorf("headers %s and %s write the same fields: choose one", earlier, name)
			}
		}
	}
	return nil
}
