package ratelimit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// Zone is a named rule. It says which requests it limits, which key a request has, and which limits
// a key gets.
type Zone struct {
	// The requests that belong to the zone. A request belongs to the zone if one of the matcher
	// sets matches it (default: all requests).
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The requests of the zone that pass unlimited. A request is exempt if one of the matcher sets
	// matches it. The zone then looks up no ban, takes no slot and charges nothing (default: none).
	ExemptRaw caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// The key: text with placeholders, by their full names, such as {http.vars.client_ip}. Requests with the same key
	// share a budget. Of several values, the first one without an empty placeholder is the key. If all values have an
	// empty placeholder, the last one is the key. A placeholder that nothing can provide is an error. Addresses are
	// written in one form: ::ffff:198.51.100.1 counts as 198.51.100.1 (default "": one budget for all requests).
	Key Key `json:"key,omitempty"`

	// The number of bits that count in a key that is an IPv4 address, 1 to 32. All addresses of
	// such a network share one budget (default 0: the whole address counts).
	IPv4Prefix int `json:"ipv4_prefix,omitempty"`

	// The number of bits that count in a key that is an IPv6 address, 1 to 128. A customer usually
	// has a network of 56 or 64 bits (default 0: the whole address counts).
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`

	// "lower" makes one key of texts that differ only in the case of letters, by the rules of Unicode.
	// It applies to all values of key, to the keys of override, and to keys in the admin API (default
	// "": Alice and alice are two keys).
	KeyCase string `json:"key_case,omitempty"`

	// The number of events that pass in any window. max_events and window together are short for
	// a first limit with the algorithm sliding_log (default 0: no such limit).
	MaxEvents int64 `json:"max_events,omitempty"`

	// The window of max_events, a duration such as "1m" (default 0: no such limit).
	Window caddy.Duration `json:"window,omitempty"`

	// The limits. A request passes if all of them have room for it (default: none; then
	// max_events, concurrency or plan must limit the zone).
	Limits []Limit `json:"limits,omitempty"`

	// How many events a request costs: a number from 0, or text with placeholders. Fractions are
	// rounded up. The maximum is 2147483647, and a larger number counts as the maximum. If a
	// placeholder gives no number, or a negative one, the request costs 1 (default 1).
	Cost Number `json:"cost,omitempty"`

	// The mode decides how much of the cost the zone grants if a limit has too little room for
	// all of it. "binary" grants all or nothing. "nary" grants as much as there is room for.
	// "uniform" grants all or nothing, but charges denied requests, too. "force" grants
	// everything, and charges as much as there is room for (default binary).
	Mode string `json:"mode,omitempty"`

	// The divisor of the bursts: a number from 0, or text with placeholders. Each burst is divided
	// by it, and rounded up to at least 1. With 0 the zone ignores the request: no limit, no
	// concurrency and no ban applies. If a placeholder gives no such number, the factor is 1. All
	// limits must have a burst (default 1).
	Factor Number `json:"factor,omitempty"`

	// The number of requests of a key that can be in flight at the same time, 1 to 10000000. A
	// request is in flight until its response has ended. Further requests are denied, or wait if
	// the zone has delay (default: any number).
	Concurrency int64 `json:"concurrency,omitempty"`

	// The tenants that share the slots of concurrency. This needs delay (default: first come, first served).
	Share *Share `json:"share,omitempty"`

	// Delay requests until there is room for them, instead of denying them. With concurrency,
	// requests also wait for a free slot. This needs mode binary. Limits must have the algorithm
	// fixed_window, gcra, leaky_bucket, smooth or token_bucket (default: no request is delayed).
	Delay *Delay `json:"delay,omitempty"`

	// Other limits for some keys, by key. A key can also be a network such as 203.0.113.0/24,
	// which stands for all its addresses. This works for keys from an address placeholder:
	// {http.vars.client_ip}, {http.request.remote.host} or {http.request.remote.host/24,64}.
	// If several networks contain an address, the smallest counts (default: none).
	Override map[string]*LimitSet `json:"override,omitempty"`

	// Apply overrides that are set at run time, over the admin API. The zone looks them up in the
	// store for each request. They take precedence over all other limits (default false).
	RuntimeOverrides bool `json:"runtime_overrides,omitempty"`

	// Limits by a value, such as a customer's plan. An override takes precedence over the plan
	// (default: none).
	Plan *Plan `json:"plan,omitempty"`

	// Correct what a request was charged once its response is known. This needs mode binary
	// (default: the charge stays).
	Settle *Settle `json:"settle,omitempty"`

	// Shadow mode: the zone decides, charges, counts and logs requests, but denies and delays
	// none. Clients don't see the zone. Use it to learn what the zone would do (default false).
	Shadow bool `json:"shadow,omitempty"`

	// The share of keys that can be denied, in percent, 0 to 100. For all other keys the zone is
	// in shadow mode. All instances pick the same keys. A larger share adds keys, and drops none
	// (default 100).
	Enforce *float64 `json:"enforce,omitempty"`

	// Report when a key has used these shares of a calendar, in percent, 1 to 100. Of all instances, one reports it, once
	// in each period: as a log message and the event rate_limit_threshold (default: no report).
	Notify []int64 `json:"notify,omitempty"`

	// Ban a key after its limits have denied it too often: deny all its requests for a while
	// (default: no key is banned).
	Ban *Ban `json:"ban,omitempty"`

	// Ban a key as the responses to its requests say, which is usually what an upstream says about its own limit. All
	// instances deny the key then, or delay its requests if the zone has delay (default: no response bans a key).
	Hold *Hold `json:"hold,omitempty"`

	// The bounds of the request bodies that the zone reads. It reads a body for the placeholders
	// {http.rate_limit.request.json.<path>} and {http.rate_limit.request.form.<field>} in key, plan,
	// cost and factor (default: at most 65536 bytes; larger bodies are denied).
	MaxBody *MaxBody `json:"max_body,omitempty"`

	// How long the zone waits for the end of a body that it reads. A request whose body takes longer
	// is denied with status 408, unless max_body has pass (default 5s).
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty" zero:"5s"`

	// "off" hides the budgets of the zone from clients: RateLimit and other header fields, and problem documents, don't
	// show its limits. Retry-After stays (default: what headers of the handler says).
	Headers string `json:"headers,omitempty"`

	// The status of denied requests, 400 to 599. Denied gRPC calls get status 200 and a status of
	// gRPC instead (default 429).
	Status int `json:"status,omitempty" zero:"429"`

	position string // the file and line in the Caddyfile that is being adapted, or ""
}

// liveZone is a zone of a handler, with everything that it was made from.
type liveZone struct {
	*limiter.Zone
	handler *limiter.Limiter
	source  *zoneSource
	config  *Zone
	maxWork int64 // of a request with any limitSet; see [boundWork]
}

// compile checks and compiles the zone for a handler, without its matchers. Its errors don't repeat the
// zone's name.
func (c *Zone) compile(name string, h *limiter.Limiter, source *zoneSource) (*liveZone, error) {
	sum, err := c.Cost.sum("cost")
	if err := errors.Join(checkZoneName(name), c.checkValues(), err); err != nil {
		return nil, err
	}
	mode, _ := algorithms.ParseMode(c.Mode) // checked above
	z := &limiter.Zone{
		Name: name, Mode: mode, FixedCost: 1, Status: cmp.Or(c.Status, http.StatusTooManyRequests),
		Enforce: 100, Notify: c.Notify, Hidden: c.Headers == "off", Logger: h.Logger,
		Metrics: telemetry.ZoneMetrics{
			Name: name, Disabled: !h.CountsRequests,
			HasSlots: c.Concurrency > 0, HasDelay: c.Delay != nil, HasBan: c.Ban != nil || c.Hold != nil, HasHold: c.Hold != nil,
			HasSettle:       c.Settle != nil,
			HasReservedWait: c.Settle.longestWait() > 0,
		},
		Concurrency: c.Concurrency, HashSecret: h.HashSecret,
	}
	if c.Shadow {
		z.Enforce = 0
	} else if c.Enforce != nil {
		z.Enforce = *c.Enforce
	}
	if sum != nil {
		var fixed bool
		if z.FixedCost, fixed = sum.Fixed(); !fixed {
			z.Cost = sum
		}
	}
	z.Keys = c.templates(c.keys()...)
	singleKey := !slices.ContainsFunc(z.Keys, func(k keys.Template) bool { return !k.Plain })
	if z.Delay = c.delayPolicy(name, singleKey); z.Delay != nil {
		z.Delay.CountWaiting = func(n lines.Need, more int64) { z.Metrics.CountWaitingFor(limiter.WaitsFor(n), more) }
	}
	factor := c.fixedFactor()
	if c.Factor.varies() {
		z.Factor = string(c.Factor)
	} else if factor == 0 {
		z.Factor = "0"
	}
	if z.LimitSets, err = source.limitSetsFor(z, factor, h.StoreErrorPolicy); err != nil {
		return nil, err
	}
	if c.Settle != nil {
		sum, err := settleCostSum(c.Settle.Cost)
		if err != nil {
			return nil, err
		}
		z.Settle = limiter.NewSettlePolicy(name, c.Settle.Match, sum)
	}
	z.Ban, _ = c.compileBan(anyLimits) // checked with the limits
	if c.Hold != nil {
		z.Hold, _, _ = c.Hold.compile()
	}
	if c.Share != nil {
		z.Share = &limiter.SharePolicy{By: c.templates(c.Share.By)[0]}
		z.Share.Weight, _ = cmp.Or(c.Share.Weight, "1").sum("") // checked before
	}
	z.KeyWarnings = source.warningsFor(z)
	if c.Ban.isForHandler() {
		z.BanLookup = limiter.NewBanLookup(z)
	}
	z.BodyPolicy, z.BodyNeeds = c.compileBodyPolicy(z.Enforce), c.bodyNeeds()
	for _, t := range c.decidingTexts() {
		names, _ := keys.Placeholders(t.Text) // checkPlaceholders reports the error
		h.BodyFields.Add(names...)
	}
	z.RuntimeOverrides = c.RuntimeOverrides
	live := &liveZone{Zone: z, handler: h, source: source, config: c}
	z.CompileOverride = live.compileStored
	return live, nil
}

// fixedFactor returns the divisor of the bursts for all requests, in millionths.
func (c *Zone) fixedFactor() int64 {
	if c.Factor == "" || c.Factor.varies() {
		return limiter.UnitFactor
	}
	factor, _ := limiter.ParseFactor(string(c.Factor)) // checked before
	return factor
}

// decidingTexts returns the texts that decide on a request: plan, cost, factor, share, and then the
// alternatives of key.
func (c *Zone) decidingTexts() []placeholder.Text {
	all := []placeholder.Text{{Option: "cost", Text: string(c.Cost)}, {Option: "factor", Text: string(c.Factor)}}
	if s := c.Share; s != nil {
		all = append(all, placeholder.Text{Option: "share", Text: s.By}, placeholder.Text{Option: "weight of share", Text: string(s.Weight)})
	}
	if c.Plan != nil {
		all = append([]placeholder.Text{{Option: "plan", Text: c.Plan.By}}, all...)
	}
	for _, key := range c.Key {
		all = append(all, placeholder.Text{Option: "key", Text: key})
	}
	return all
}

// placeholderTexts returns all texts of the zone that may have placeholders.
func (c *Zone) placeholderTexts() []placeholder.Text {
	all := c.decidingTexts()
	if c.Settle != nil {
		all = append(all, placeholder.Text{Option: "cost of settle", Text: string(c.Settle.Cost), AfterResponse: true})
	}
	return all
}

func checkZoneName(name string) error {
	ok := len(name) >= 1 && len(name) <= 64 && name[0] != '@' && name[0] != '*'
	for _, c := range []byte(name) {
		ok = ok && c >= ' ' && c <= '~' && !strings.ContainsRune(`{}"\/`, rune(c))
	}
	if !ok {
		return fmt.Errorf(`%.100q is not a valid zone name: write 1 to 64 printable ASCII characters `+
			`without { } " \ / and not beginning with @ or *`, name)
	}
	if word, _, _ := strings.Cut(name, "."); slices.Contains(reservedZoneNames, word) {
		return fmt.Errorf("%q is not a valid zone name, because placeholders such as {%s.%s.*} exist: write another name, such as %q",
			name, limiter.PlaceholderPrefix, word, "my-"+name)
	}
	return nil
}

// reservedZoneNames are words that placeholders have instead of the name of a zone. No zone has such a
// name, or begins with one and a dot.
var reservedZoneNames = []string{"exceeded", "request", "response"}

func checkMode(mode string) error {
	_, err := algorithms.ParseMode(mode)
	return err
}

// allLimits returns the zone's limits. The limit of max_events and window is the first.
func (c *Zone) allLimits() []Limit {
	if c.MaxEvents == 0 && c.Window == 0 {
		return c.Limits
	}
	first := Limit{Algorithm: "sliding_log", Events: c.MaxEvents, Window: c.Window}
	return append([]Limit{first}, c.Limits...)
}

// checkLimitSets checks the settings that choose the limits of a key: max_events, limits,
// concurrency, plan, override and ban. It doesn't check the limits themselves.
func (c *Zone) checkLimitSets() error {
	switch {
	case c.MaxEvents == 0 && c.Window != 0:
		return errors.New("events (max_events in JSON) is missing or 0, and must be above 0: write for example events 10")
	case c.MaxEvents != 0 && c.Window == 0:
		return errors.New("window is missing or 0, and must be above 0: write for example window 1m")
	}
	_, err := c.compileBan(anyLimits) // also if all limit sets are unlimited
	if err = errors.Join(err, c.checkShare()); err != nil {
		return err
	}
	hasLimits := len(c.Limits) > 0 || c.MaxEvents != 0
	switch {
	case c.Plan != nil:
		if err := c.Plan.check(hasLimits); err != nil {
			return err
		}
	case hasLimits:
	case c.Concurrency == 0 && c.Hold == nil:
		return errors.New("it has no limit: write at least one, such as token_bucket 10 1s")
	default:
		if err := c.checkWithoutLimits(); err != nil {
			return err
		}
	}
	return c.checkOverrideKeys()
}

// checkCompatible checks that the zone's settings go together with each other and with these
// limits.
func (c *Zone) checkCompatible(limits []*algorithms.Limit) error {
	mode, err := algorithms.ParseMode(c.Mode)
	if err != nil {
		return err
	}
	for _, l := range limits {
		if l.Algorithm().BinaryOnly && mode != algorithms.Binary {
			return fmt.Errorf("mode %v and %s don't go together: %[2]s works only in mode binary; leave out mode, or write another limit",
				mode, l.Algorithm().Name)
		}
		if c.Factor.varies() && l.Initial != nil {
			return errors.New("initial and a factor with placeholders don't go together: " +
				"the factor changes the burst, and initial depends on the burst; leave out one of the two")
		}
		if c.Factor != "" && !l.Scalable() {
			return fmt.Errorf("factor and %v don't go together: factor divides the burst, and this limit has none; "+
				"write a limit with a burst, such as token_bucket", l)
		}
	}
	if c.Settle != nil {
		if err := c.Settle.check(mode, limits); err != nil {
			return err
		}
	}
	if c.Shadow && c.Enforce != nil {
		return fmt.Errorf("shadow and enforce %v don't go together: shadow denies no request; leave out one of the two", *c.Enforce)
	}
	if c.Delay != nil {
		return c.Delay.check(mode, limits)
	}
	return nil
}

// loadMatchers loads the matchers of match and exempt.
func (c *Zone) loadMatchers(ctx caddy.Context, z *limiter.Zone) error {
	load := func(option, field string, raw caddyhttp.RawMatcherSets, sets *caddyhttp.MatcherSets) error {
		if raw == nil {
			return nil
		}
		drained := *c // LoadModule empties the field, but later checks of the zone read it
		matchers, err := ctx.LoadModule(&drained, field)
		if err == nil {
			err = sets.FromInterface(matchers)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", option, err)
		}
		return nil
	}
	return errors.Join(
		load("match", "MatcherSetsRaw", c.MatcherSetsRaw, &z.Matchers),
		load("exempt", "ExemptRaw", c.ExemptRaw, &z.Exempt),
	)
}

// decidingPlaceholders returns the placeholders that decide on a request.
func (c *Zone) decidingPlaceholders() []placeholder.Use {
	uses, _ := placeholder.Uses(c.decidingTexts()) // checked before
	match, _ := json.Marshal(c.MatcherSetsRaw)
	exempt, _ := json.Marshal(c.ExemptRaw)
	return slices.Concat(uses, placeholder.UsesInMatcher("match", match), placeholder.UsesInMatcher("exempt", exempt))
}
