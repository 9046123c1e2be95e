package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/defaults"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
)

// MaxBody bounds the bodies that a zone reads.
type MaxBody struct {
	// The size of the largest body that the zone reads, 1 to 10485760 bytes. A request with a larger
	// body is denied with status 413 (default 65536).
	Bytes int64 `json:"bytes,omitempty" zero:"65536"`

	// Pass requests whose bodies can't be read, instead of denying them. All values from the body
	// are then empty. This applies to bodies that are too large, late, malformed or compressed, and
	// to bodies without room in memory (default false).
	Pass bool `json:"pass,omitempty"`
}

const (
	defaultMaxBody   = 64 << 10
	largestMaxBody   = 10 << 20
	leastBodyTimeout = time.Millisecond
)

func checkMaxBody(m *MaxBody) error {
	if m.Bytes < 0 || m.Bytes > largestMaxBody {
		return maxBodyRangeError(m.Bytes)
	}
	return nil
}

func maxBodyRangeError(n any) error {
	return fmt.Errorf("max_body must be from 1 byte to 10MiB (%d), not %v: write for example max_body 64KiB", largestMaxBody, n)
}

func checkBodyTimeout(d caddy.Duration) error {
	if timeout := time.Duration(d); timeout < leastBodyTimeout {
		return fmt.Errorf("body_timeout must be at least %v, not %v: write for example 5s", leastBodyTimeout, timeout)
	}
	return nil
}

// unmarshalMaxBody reads max_body <bytes> [pass].
func unmarshalMaxBody(d *caddyfile.Dispenser) (*MaxBody, error) {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 || len(args) == 2 && args[1] != "pass" {
		return nil, fmt.Errorf("max_body takes a number of bytes and optionally pass, not %q: write for example max_body 64KiB pass",
			strings.Join(args, " "))
	}
	n, err := humanize.ParseBytes(args[0])
	if err != nil {
		return nil, fmt.Errorf("max_body must be a number of bytes, not %q: write for example 64KiB or 1MB", args[0])
	}
	if n == 0 || n > largestMaxBody {
		return nil, maxBodyRangeError(args[0])
	}
	return &MaxBody{Bytes: int64(n), Pass: len(args) == 2}, nil
}

// compileBodyPolicy returns how the zone reads bodies. It has a timeout only if the zone denies each request whose body is
// late, because such a body can't be passed on.
func (c *Zone) compileBodyPolicy(enforce float64) bodies.Policy {
	p := bodies.Policy{Limit: defaultMaxBody, Timeout: cmp.Or(time.Duration(c.BodyTimeout), defaults.BodyTimeout)}
	if c.MaxBody != nil {
		p.Limit, p.Pass = cmp.Or(int(c.MaxBody.Bytes), defaultMaxBody), c.MaxBody.Pass
	}
	if p.Pass || enforce < 100 {
		p.Timeout = 0
	}
	return p
}

func (c *Zone) bodyNeeds() limiter.BodyNeeds {
	needs := limiter.BodyNeeds{Factor: limiter.BodyKindsOf(string(c.Factor)), Cost: limiter.BodyKindsOf(string(c.Cost))}
	if c.Plan != nil {
		needs.Plan = limiter.BodyKindsOf(c.Plan.By)
	}
	for _, key := range c.keys() {
		needs.Keys = append(needs.Keys, limiter.BodyKindsOf(key))
	}
	return needs
}

// readsBody reports whether a text of the zone needs a body.
func (c *Zone) readsBody() bool {
	return slices.ContainsFunc(c.decidingTexts(), func(t placeholder.Text) bool { return limiter.BodyKindsOf(t.Text) != 0 })
}

// Ban denies all requests of a key for a while, after the zone's limits have denied the key often
// enough. While a ban is in force, the zone charges nothing.
type Ban struct {
	// How long a ban lasts; at least 1µs.
	Duration caddy.Duration `json:"duration,omitempty"`

	// The number of denials after which a ban begins. Only denials by the zone's own limits
	// count, within the longest window of these limits, from the first denial on (default 1).
	After int64 `json:"after,omitempty" zero:"1"`

	// The longest ban. Each ban is twice as long as the one before, up to max. If a key has no
	// ban for the time max, its next ban has the length of duration again (default: duration,
	// so all bans have the same length).
	Max caddy.Duration `json:"max,omitempty" zero:"duration"`

	// The requests that a ban denies. With "zone", a ban denies the requests of the zone. With
	// "handler", a ban denies all requests of the handler whose key is banned, also requests that
	// match leaves out. Each request of the handler then looks up the ban in the store (default
	// zone).
	Scope string `json:"scope,omitempty"`
}

// compile returns the ban of a zone with these limits.
func (b *Ban) compile(limits []*algorithms.Limit) (*algorithms.Ban, error) {
	if b.Duration == 0 {
		return nil, errors.New("ban has no duration: write how long it lasts, such as 1h")
	}
	if err := checkBanScope(b.Scope); err != nil {
		return nil, fmt.Errorf("ban: %w", err)
	}
	ban := &algorithms.Ban{After: b.After, Duration: time.Duration(b.Duration).Microseconds(), Max: time.Duration(b.Max).Microseconds()}
	for _, span := range []caddy.Duration{b.Duration, b.Max} {
		if span := time.Duration(span); span%time.Microsecond != 0 {
			return nil, fmt.Errorf("ban: its durations must be whole numbers of microseconds, not %v: write for example %v",
				span, options.MicrosExample(span))
		}
	}
	if b.After == 0 {
		ban.After = 1
	}
	if b.Max == 0 {
		ban.Max = ban.Duration
	}
	if len(limits) == 0 {
		return nil, errors.New("ban needs a limit, because only denials by limits count: " +
			"write a limit, such as token_bucket 10 1s, or leave out ban")
	}
	for _, l := range limits {
		ban.Window = max(ban.Window, l.Window)
	}
	if err := ban.Check(); err != nil {
		return nil, fmt.Errorf("ban: %w", err)
	}
	return ban, nil
}

// describe returns the settings as text. Bans with the same text are the same.
func (b *Ban) describe() string {
	if b == nil {
		return "none"
	}
	text := fmt.Sprintf("%v after %d max %v", time.Duration(b.Duration), max(b.After, 1), time.Duration(max(b.Max, b.Duration)))
	if b.isForHandler() {
		text += " scope handler"
	}
	return text
}

// The values of the option scope.
const (
	banScopeZone    = "zone"
	banScopeHandler = "handler"
)

func checkBanScope(scope string) error {
	switch scope {
	case "", banScopeZone, banScopeHandler:
		return nil
	}
	return fmt.Errorf("scope must be zone or handler, not %q: write zone for the requests of the zone, "+
		"or handler for all requests of the handler", scope)
}

// isForHandler reports whether a ban denies all requests of the handler.
func (b *Ban) isForHandler() bool { return b != nil && b.Scope == banScopeHandler }

// unmarshalBan reads ban <duration> [after <n>] [max <duration>] [scope zone|handler].
func unmarshalBan(d *caddyfile.Dispenser) (*Ban, error) {
	const example = "write for example ban 1h after 5 max 24h"
	args := d.RemainingArgs()
	if len(args) == 0 || len(args)%2 == 0 {
		return nil, fmt.Errorf("ban takes a duration, and optionally after, max and scope with a value each, but has %d values: %s",
			len(args), example)
	}
	b := new(Ban)
	var err error
	b.Duration, err = options.ParseDuration("duration", args[0], "1h")
	if err == nil && b.Duration <= 0 {
		err = fmt.Errorf("the duration must be above 0, not %v: %s", time.Duration(b.Duration), example)
	}
	for i := 1; i < len(args) && err == nil; i += 2 {
		switch word, value := args[i], args[i+1]; {
		case word == "after" && b.After == 0:
			if b.After, err = options.ParseInteger("after", value, "5"); err == nil && b.After <= 0 {
				err = fmt.Errorf("after must be above 0, not %d: write the number of denials before a ban, or leave it out for 1", b.After)
			}
		case word == "max" && b.Max == 0:
			if b.Max, err = options.ParseDuration("max", value, "24h"); err == nil && b.Max < b.Duration {
				err = fmt.Errorf("max must be at least %v, the duration, not %v: write the longest ban, or leave it out",
					time.Duration(b.Duration), time.Duration(b.Max))
			}
		case word == "scope" && b.Scope == "":
			b.Scope = value
			err = checkBanScope(value)
		default:
			err = fmt.Errorf("after the duration, ban takes only after, max and scope, each once and with a value, not %q: %s", word, example)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ban: %w", err)
	}
	return b, nil
}

// Delay delays requests until there is room for them, instead of denying them. Requests that a limit
// delays are charged in advance, and pass in the order of their charges. Requests that wait for a
// slot of concurrency are charged when they get one. In an instance, they get slots in the order in
// which they came.
type Delay struct {
	// The longest delay of a request, for a slot and for limits together; at least 1µs. A request
	// that would have to wait longer is denied.
	Max caddy.Duration `json:"max,omitempty"`

	// The number of places for requests of the zone that this instance delays, or decides on, at
	// the same time. Without a free place a request passes only if there is room for it at once.
	// A key gets another place only while more places are free than it has, so a single key gets
	// half of them. A key without placeholders can have all (default 1000).
	Held int64 `json:"held,omitempty" zero:"1000"`
}

const defaultHeld = 1000

// maxWait returns the option max.
func (d *Delay) maxWait() algorithms.Micros { return time.Duration(d.Max).Microseconds() }

// check checks the options together with the zone's mode and limits.
func (d *Delay) check(mode algorithms.Mode, limits []*algorithms.Limit) error {
	maxWait := time.Duration(d.Max)
	switch {
	case maxWait <= 0:
		return fmt.Errorf("delay must be above 0, not %v: write the longest delay of a request, such as delay 2s", maxWait)
	case maxWait%time.Microsecond != 0:
		return fmt.Errorf("delay must be a whole number of microseconds, not %v: write for example %v", maxWait, options.MicrosExample(maxWait))
	case d.Held < 0:
		return fmt.Errorf("delay must have places for at least 1 request, not %d: write for example delay 2s 100", d.Held)
	case mode != algorithms.Binary:
		return fmt.Errorf("delay and mode %v don't go together: a delayed request gets all of its cost, as in mode binary; leave out mode", mode)
	}
	for _, l := range limits {
		if err := l.CheckDelay(maxWait.Microseconds()); err != nil {
			return fmt.Errorf("delay: %w", err)
		}
	}
	return nil
}

// policy returns the compiled option delay of a zone. Zones of one name share their places.
func (d *Delay) policy(zone string, singleKey bool) *lines.Policy {
	return &lines.Policy{
		MaxDelay: d.maxWait(), MaxPlaces: cmp.Or(d.Held, defaultHeld), SingleKey: singleKey, Places: limiter.DelayPlacesOf(zone),
	}
}

// unmarshalDelay reads delay <max> [<requests>].
func unmarshalDelay(d *caddyfile.Dispenser) (*Delay, error) {
	args := d.RemainingArgs()
	if len(args) < 1 || len(args) > 2 {
		return nil, fmt.Errorf("delay takes a duration and optionally a number of requests, but has %d values: write for example delay 2s 100",
			len(args))
	}
	if len(args) == 2 && options.IsInteger(args[0]) && !options.IsInteger(args[1]) {
		return nil, fmt.Errorf("delay takes the duration first, not %q: write delay %s %s", strings.Join(args, " "), args[1], args[0])
	}
	if len(args) == 1 && options.IsInteger(args[0]) {
		return nil, fmt.Errorf("delay is the longest wait, and not a number of requests such as %s: write for example delay 2s", args[0])
	}
	maxWait, err := options.ParseDuration("delay", args[0], "2s")
	if err != nil || len(args) == 1 {
		return &Delay{Max: maxWait}, err
	}
	held, err := options.ParseInteger("requests", args[1], "100")
	if err == nil && held <= 0 {
		err = fmt.Errorf("requests must be above 0, not %d: write how many can be delayed at the same time, or leave it out for %d",
			held, defaultHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("delay: %w", err)
	}
	return &Delay{Max: maxWait, Held: held}, nil
}

// Settle corrects the charge of a request once its response is known. Until then the request is
// charged its cost, so that concurrent requests don't get more than remains.
type Settle struct {
	// The responses that are charged. For all other responses the whole charge is given back.
	// The matcher sees the header fields as the handlers behind this one have set them. If the client
	// leaves before the header of the response, the charge stays (default: all responses).
	Match *caddyhttp.ResponseMatcher `json:"match,omitempty"`

	// The true cost of the request, in the same form as cost of the zone. It is usually
	// {http.response.header.*}, which can also be a trailer, or a value of the response's body:
	// {http.rate_limit.response.json.*}, {http.rate_limit.response.bytes} or
	// {http.rate_limit.response.seconds}. If the true cost is higher than the charge, the difference
	// is charged as far as there is room. If it is lower, the difference is given back. Without a
	// number the charge stays (default: the charge).
	Cost Number `json:"cost,omitempty"`
}

// check checks the options together with the zone's mode and limits.
func (s *Settle) check(mode algorithms.Mode, limits []*algorithms.Limit) error {
	if s.Match == nil && s.Cost == "" {
		return errors.New("settle has neither match nor cost: write which responses are charged, such as match status 401, " +
			"or their true cost, such as cost {http.response.header.X-Tokens}")
	}
	if err := s.checkStatus(); err != nil {
		return err
	}
	if mode != algorithms.Binary {
		return fmt.Errorf("settle and mode %v don't go together: only mode binary charges exactly the cost; leave out mode", mode)
	}
	for _, l := range limits {
		if l.Algorithm().BinaryOnly && s.Cost != "" {
			return fmt.Errorf("cost of settle and %s don't go together: it can't be charged after the response; write another limit, or match alone",
				l.Algorithm().Name)
		}
	}
	return nil
}

// checkStatus checks the status codes of match.
func (s *Settle) checkStatus() error {
	if s.Match == nil {
		return nil
	}
	for _, code := range s.Match.StatusCode {
		if (code < 1 || code > 5) && (code < 100 || code > 599) {
			return fmt.Errorf("match of settle: no response has status %d: write one from 100 to 599, or a class such as 4xx (in JSON 4)", code)
		}
	}
	return nil
}

// unmarshalSettle reads settle { match status 401 403  cost <number or placeholder> }.
func unmarshalSettle(d *caddyfile.Dispenser) (*Settle, error) {
	s, line := new(Settle), *d
	if words := line.RemainingArgs(); len(words) > 0 && options.IsInteger(words[0]) {
		return nil, fmt.Errorf("settle has its options in braces: write\nsettle {\n\tmatch status %s\n}", strings.Join(words, " "))
	}
	err := optionTable.ReadBlock(d, "settle", settleOptions, func(option string) (err error) {
		if option == "cost" {
			s.Cost, err = readCost(d, settleCostSum)
			return err
		}
		if s.Match != nil {
			return errors.New("match of settle is given twice: write status and header in one block, match { ... }")
		}
		matchers := make(map[string]caddyhttp.ResponseMatcher)
		if err := caddyhttp.ParseNamedResponseMatcher(d.NewFromNextSegment(), matchers); err != nil {
			reason, _, _ := strings.Cut(err.Error(), ", at ") // readBlock adds file and line
			reason, _, _ = strings.Cut(reason, ": strconv.")
			return fmt.Errorf("match of settle takes status or header: write for example "+
				"match status 401 4xx or match header X-Failed true (%s)", reason)
		}
		matcher := matchers["match"]
		if matcher.StatusCode == nil && matcher.Headers == nil {
			return errors.New("match of settle takes status or header: write for example match status 401 403 or match header X-Failed true")
		}
		s.Match = &matcher
		return nil
	}, func() error { return s.check(algorithms.Binary, nil) })
	return s, err
}

// The option exempt names requests of the zone that pass unlimited. It comes before everything else
// that the zone does with a request: the zone doesn't even make the key.

// checkExempt returns an error for a matcher set that exempts all requests.
func (c *Zone) checkExempt() error {
	for _, set := range c.ExemptRaw {
		if len(set) == 0 {
			return errors.New(`exempt has a matcher set without matchers, which would exempt all requests: ` +
				`write for example {"client_ip": {"ranges": ["203.0.113.0/24"]}}, or leave it out`)
		}
	}
	return nil
}

// unmarshalExempt reads exempt <matcher>, or exempt { <matchers> }.
func (c *Zone) unmarshalExempt(d *caddyfile.Dispenser) error {
	set, err := options.MatcherSet(d, "client_ip 203.0.113.0/24", zoneOptions())
	c.ExemptRaw = append(c.ExemptRaw, set)
	return err
}

// A zone with the option shadow decides, charges, counts and logs requests, but it never denies
// or delays one, and sends no header fields. With the option enforce this applies to a part of
// the keys.

// checkEnforce checks the option enforce: the share of keys that are not in shadow mode, in
// percent.
func checkEnforce(percent *float64) error {
	if !(*percent >= 0 && *percent <= 100) {
		return fmt.Errorf("enforce must be from 0 to 100, not %v: write the percentage of keys whose requests can be denied, such as enforce 25",
			*percent)
	}
	return nil
}

// readNotify reads notify <percent>...
func readNotify(d *caddyfile.Dispenser) (shares []int64, err error) {
	for _, arg := range d.RemainingArgs() {
		if arg == "%" {
			return nil, errors.New("notify has a space before %: write for example notify 80% 100%")
		}
		percent, err := options.ParseInteger("notify", strings.TrimSuffix(arg, "%"), "80% 100%")
		if err != nil {
			return nil, err
		}
		shares = append(shares, percent)
	}
	if len(shares) == 0 {
		return nil, errors.New("notify takes at least one share: write for example notify 80% 100%")
	}
	return shares, nil
}

// checkNotify checks the shares of notify.
func checkNotify(shares []int64) error {
	for i, percent := range shares {
		if percent < 1 || percent > 100 {
			return fmt.Errorf("notify must be from 1%% to 100%%, not %d: write for example notify 80%% 100%%", percent)
		}
		if i > 0 && percent <= shares[i-1] {
			return fmt.Errorf("the shares of notify must grow: %d%% follows %d%%", percent, shares[i-1])
		}
	}
	return nil
}

// A request takes a slot of its key in every zone with the option concurrency, and gives it back
// when its response has ended. The store takes the slots in the same call as the charges. If an
// instance is killed, the store frees the slots of its requests.

// maxConcurrency is the largest value of the option concurrency.
const maxConcurrency = 10_000_000

// checkConcurrency checks the option concurrency.
func checkConcurrency(n int64) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("concurrency must be from 1 to %d, not %d: write how many requests of a key may be in flight at the same time",
			maxConcurrency, n)
	}
	return nil
}

// checkConcurrencyOnly checks a zone with concurrency and without limits. It rejects options that
// need a limit, and overrides that lift the limits, unless an override may have a limit.
func (c *Zone) checkConcurrencyOnly() error {
	for _, set := range c.Override {
		if set != nil && !set.Unlimited {
			return nil
		}
	}
	for _, s := range c.settings() {
		if s.needsLimits && s.value != nil && !c.RuntimeOverrides {
			return fmt.Errorf("%s needs a limit, but the zone has only concurrency: "+
				"leave it out, or write a limit, such as token_bucket 10 1s", s.name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Override)) {
		if c.Override[key] != nil {
			return fmt.Errorf("override %q unlimited lifts only limits, and the zone has only concurrency: "+
				"write exempt instead, with a matcher such as client_ip 203.0.113.0/24, to let requests pass without a slot", key)
		}
	}
	return nil
}
