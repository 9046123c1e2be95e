package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

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
	// match excludes. Each request of the handler then looks up the ban in the store (default
	// zone).
	Scope string `json:"scope,omitempty"`
}

// compile returns the ban of a zone with these limits.
func (b *Ban) compile(limits []*algorithms.Limit) (*algorithms.Ban, error) {
	if b.Duration == 0 {
		return nil, errors.New("ban has no duration: write how long it lasts, such as 1h")
	}
	if err := checkSet(b.options()); err != nil {
		return nil, err
	}
	ban := &algorithms.Ban{After: b.After, Duration: time.Duration(b.Duration).Microseconds(), Max: time.Duration(b.Max).Microseconds()}
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
		return ""
	}
	text := fmt.Sprintf("%v after %d max %v", time.Duration(b.Duration), max(b.After, 1), time.Duration(max(b.Max, b.Duration)))
	if b.isForHandler() {
		text += " scope handler"
	}
	return text
}

// isForHandler reports whether a ban denies all requests of the handler.
func (b *Ban) isForHandler() bool { return b != nil && b.Scope == "handler" }

// options returns the values of the option ban, of which a Caddyfile writes the first without its name.
func (b *Ban) options() []options.Option {
	return []options.Option{
		options.Single("ban", "1h after 5", &b.Duration, options.Duration, options.WholeMicros),
		options.Single("after", "5", &b.After, options.Integer, options.Above0),
		options.Single("max", "24h", &b.Max, options.Duration, options.WholeMicros),
		options.Single("scope", "handler", &b.Scope, options.Text, options.OneOf("zone", "handler")),
	}
}

// unmarshalBan reads ban <duration> [after <n>] [max <duration>] [scope zone|handler].
func unmarshalBan(d *caddyfile.Dispenser) (*Ban, error) {
	b := new(Ban)
	if err := options.ReadLine(append([]string{"ban"}, d.RemainingArgs()...), b.options()); err != nil {
		return nil, err
	}
	_, err := b.compile(anyLimits)
	return b, err
}

// compileBan returns the ban of a zone with these limits, or nil. Denials begin it, or responses.
func (c *Zone) compileBan(limits []*algorithms.Limit) (*algorithms.Ban, error) {
	switch {
	case c.Ban != nil && c.Hold != nil:
		return nil, errors.New("ban and hold don't go together, because a key has one ban in a zone: write them in two zones")
	case c.Ban != nil:
		return c.Ban.compile(limits)
	case c.Hold != nil:
		_, ban, err := c.Hold.compile()
		return ban, err
	}
	return nil, nil
}

// Hold bans a key when the response to one of its requests has one of these statuses, until the Retry-After of the response.
type Hold struct {
	// The statuses of the responses, 400 to 599. 4 stands for 4xx, and 5 for 5xx.
	StatusCode []int `json:"status_code,omitempty"`

	// The longest ban (default 10m).
	Max caddy.Duration `json:"max,omitempty" zero:"10m"`

	// How long a ban lasts if the response has no Retry-After with seconds or a date, at most max. With 0 such a response
	// begins none (default 5s).
	Default *caddy.Duration `json:"default,omitempty"`
}

// compile returns the policy of responses, and the bans that they begin.
func (h *Hold) compile() (*limiter.HoldPolicy, *algorithms.Ban, error) {
	longest, without := cmp.Or(time.Duration(h.Max), 10*time.Minute), 5*time.Second
	if h.Default != nil {
		without = time.Duration(*h.Default)
	}
	p := &limiter.HoldPolicy{Statuses: h.StatusCode, Max: longest.Microseconds(), Default: without.Microseconds()}
	ban := &algorithms.Ban{Window: 1, Duration: p.Max, Max: p.Max} // a hold is as long as the first ban at most
	switch err := errors.Join(checkSet(h.options()), ban.Check()); {
	case len(h.StatusCode) == 0:
		return nil, nil, errors.New("hold has no status: write the statuses of the responses, such as hold status 429 503")
	case err != nil:
		return nil, nil, fmt.Errorf("hold: %w", err)
	case h.Default != nil && without > longest:
		return nil, nil, fmt.Errorf("default of hold is %v, but no hold lasts longer than its max, %v: write a smaller default, or a larger max",
			without, longest)
	}
	return p, ban, nil
}

func (h *Hold) options() []options.Option {
	return []options.Option{
		options.List("status", "429 503", &h.StatusCode, parseStatus, checkHeldStatuses),
		options.Single("max", "10m", &h.Max, options.Duration, options.AtLeast(time.Microsecond)),
		options.Single("default", "5s", &h.Default, options.Pointer(options.Duration), checkWait),
	}
}

// parseStatus reads a status, or a class such as 4xx, which becomes 4.
func parseStatus(text string) (int, error) {
	class, isClass := strings.CutSuffix(text, "xx")
	n, err := options.SmallInteger(class)
	if err == nil && isClass != (n < 10) {
		return 0, options.Must("takes statuses from 400 to 599, and 4xx and 5xx, not %q", text)
	}
	return n, err
}

func checkHeldStatuses(statuses []int) error {
	for _, s := range statuses {
		if s != 4 && s != 5 && (s < 400 || s > 599 || s == 499) { // 499: the client has left
			return options.Must("takes statuses from 400 to 599, and 4xx and 5xx, not %d", s)
		}
	}
	return nil
}

// unmarshalHold reads hold status <code>... [max <duration>] [default <duration>].
func unmarshalHold(d *caddyfile.Dispenser) (*Hold, error) {
	h := new(Hold)
	if err := options.ReadLine(d.RemainingArgs(), h.options()); err != nil {
		return nil, err
	}
	_, _, err := h.compile()
	return h, err
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
		return fmt.Errorf("delay must be a whole number of microseconds, not %v: write for example delay 2s", maxWait)
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

// delayPolicy returns the compiled option delay of a zone, and wait of settle, or nil if no request waits. Zones of one name
// share their places.
func (c *Zone) delayPolicy(zone string, singleKey bool) *lines.DelayPolicy {
	wait := c.Settle.longestWait().Microseconds()
	if c.Delay == nil && wait == 0 {
		return nil
	}
	p := &lines.DelayPolicy{MaxReserved: wait, MaxPlaces: defaultHeld, SingleKey: singleKey, Places: limiter.DelayPlacesOf(zone)}
	if d := c.Delay; d != nil {
		p.MaxDelay, p.MaxPlaces = d.maxWait(), cmp.Or(d.Held, defaultHeld)
	}
	if wait > 0 {
		p.MaxReserved = max(wait, p.MaxDelay)
	}
	return p
}

// unmarshalDelay reads delay <max> [<requests>].
func unmarshalDelay(d *caddyfile.Dispenser) (*Delay, error) {
	args, p := d.RemainingArgs(), new(Delay)
	wrong := options.Must("takes a duration and optionally a number of requests, not %q", strings.Join(args, " "))
	if len(args) == 0 || len(args) > 2 {
		return nil, wrong
	}
	var err error
	if p.Max, err = options.Duration(args[0]); err == nil && len(args) == 2 {
		p.Held, err = options.Integer(args[1])
	}
	if err != nil || len(args) == 2 && p.Held < 1 {
		return nil, wrong
	}
	return p, nil
}

// Share divides the slots of a key among tenants. A tenant can take slots that are idle. While requests wait, each free slot
// goes to the waiting tenant that holds the least for its weight.
type Share struct {
	// The tenant of a request: text with placeholders, such as {http.auth.user.id}. It is required. Requests for which the
	// text is the same belong to one tenant, also those for which it is empty. key_case and the prefixes apply to it.
	By string `json:"by,omitempty"`

	// The weight of the tenant, in the same form as cost of the zone. All requests of a tenant should have the same. Below 1 it
	// counts as 1, and above 1000 as 1000 (default 1).
	Weight Number `json:"weight,omitempty"`
}

// checkShare checks the option share together with the zone's other options.
func (c *Zone) checkShare() error {
	s := c.Share
	switch {
	case s == nil:
		return nil
	case c.Concurrency == 0 || c.Delay == nil:
		return errors.New("share needs concurrency and delay, because tenants share slots by waiting for them: " +
			"write for example concurrency 50 and delay 10s, or leave out share")
	case !strings.Contains(s.By, "{"):
		return fmt.Errorf("share %q has no placeholder, so all requests belong to one tenant: "+
			"write for example concurrency %d share {http.auth.user.id}", s.By, c.Concurrency)
	}
	return errors.Join(keys.CheckBraces("share", s.By), checkSum("weight of share")(s.Weight))
}

// readConcurrency reads concurrency <requests> [share <tenant> [weight <number or placeholder>]].
func (c *Zone) readConcurrency(d *caddyfile.Dispenser) (n int64, err error) {
	s, words := new(Share), append([]string{"concurrency"}, d.RemainingArgs()...)
	if len(words) > 2 {
		c.Share = s
	}
	err = options.ReadLine(words, []options.Option{
		options.Single("concurrency", "10", &n, options.Integer, nil),
		options.Single("share", "{http.auth.user.id}", &s.By, options.Text, nil),
		options.Made("weight", "{http.auth.user.weight}", &s.Weight, readSum, checkSum("weight of share")),
	})
	return n, err
}

// Settle corrects the charge of a request once its response is known. Until then the request is
// charged its cost, so that concurrent requests don't get more than remains.
type Settle struct {
	// The responses that are charged. For all other responses the whole charge is given back.
	// The matcher sees the header fields as the handlers after this one have set them. If the client
	// disconnects before the header of the response, the charge stays (default: all responses).
	Match *caddyhttp.ResponseMatcher `json:"match,omitempty"`

	// The true cost of the request, in the same form as cost of the zone. It is usually
	// {http.response.header.*}, which can also be a trailer, or a value of the response's body:
	// {http.rate_limit.response.json.*}, {http.rate_limit.response.bytes} or
	// {http.rate_limit.response.seconds}. If the true cost is higher than the charge, all of the difference
	// is charged, even if less is left. If it is lower, the difference is given back. Without a
	// number the charge stays. A max bounds what one response can be charged, as in
	// "{http.response.header.X-Tokens} max 5000" (default: the charge).
	Cost Number `json:"cost,omitempty"`

	// The longest wait of a request that lacks only reserved events. Other requests of its key were charged these events,
	// and may give them back. With delay, a request waits at most for the longer of the two times. 0 denies such
	// a request at once (default: 10s if settle has only match, otherwise 0).
	Wait *caddy.Duration `json:"wait,omitempty"`
}

// defaultReservedWait is the wait of failed logins and the like, whose responses come soon.
const defaultReservedWait = 10 * time.Second

// longestWait returns the option wait.
func (s *Settle) longestWait() time.Duration {
	switch {
	case s == nil:
		return 0
	case s.Wait != nil:
		return time.Duration(*s.Wait)
	case s.Cost != "":
		return 0
	}
	return defaultReservedWait
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

// checkWait checks a wait that may be 0.
func checkWait(wait *caddy.Duration) error {
	switch {
	case wait == nil:
		return nil
	case *wait < 0:
		return options.Must("must be 0 or more, not %v", time.Duration(*wait))
	}
	return options.WholeMicros(*wait)
}

// unmarshalSettle reads settle { match status 401 403  cost <number or placeholder>  wait <duration> }.
func unmarshalSettle(d *caddyfile.Dispenser) (*Settle, error) {
	s := new(Settle)
	err := readBlock(d, "settle", []options.Option{
		options.Made("match", "status 401 403", &s.Match, readResponseMatcher, nil),
		options.Made("cost", "{http.response.header.X-Tokens}", &s.Cost, readSum, checkSettleCost),
		options.Single("wait", "10s", &s.Wait, options.Pointer(options.Duration), checkWait),
	}, func() error { return s.check(algorithms.Binary, nil) })
	return s, err
}

// readResponseMatcher reads match status <code>..., match header <field> <value>, or a block with both.
func readResponseMatcher(d *caddyfile.Dispenser) (*caddyhttp.ResponseMatcher, error) {
	matchers := make(map[string]caddyhttp.ResponseMatcher)
	err := caddyhttp.ParseNamedResponseMatcher(d.NewFromNextSegment(), matchers)
	matcher := matchers["match"]
	if err != nil || matcher.StatusCode == nil && matcher.Headers == nil {
		return nil, options.Must("takes status or header, with values")
	}
	return &matcher, nil
}
