package limiter

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// State is one limiter's evaluation of one request. Placeholders refer to it, so it lives as long as the request.
type State struct {
	Limiter   *Limiter
	Explained bool                // the request is only described, so nothing is counted or logged
	trace     *telemetry.Trace    // nil if the request isn't traced
	Body      *bodies.RequestBody // nil until a zone needs it
	response  http.ResponseWriter // nil in an explanation

	// Set by [State.Collect].
	Entries  []Entry             // one per zone that limits the request
	Requests []store.ZoneRequest // one per entry
	matched  uint64              // bit i: the request belongs to the limiter's zone i, up to 64
	header   http.Header         // of the request

	// Set by the decision and after it.
	Wait      lines.Request // the same entries, while the limiter decides
	Decided   bool          // the store has decided
	Allowed   bool          // by all zones
	passed    bool          // to the next handler
	corrected bool          // the corrections are sent

	// Several limiters can evaluate a request. The replacer of the request knows the state of
	// the outermost limiter. From there the others are found.
	outer     *State // of the limiter around this one
	innermost *State // of the last limiter so far; set in the outermost state

	// Set when the limiter denies the request.
	denying    *Entry            // the zone that denies it; see [State.LongestDenial]
	retryAfter algorithms.Micros // as in Retry-After, with jitter
	denialID   string            // "" if too many keys are denied at present

	// Space for the usual number of zones, so that a request needs only one allocation.
	entryRoom      [1]Entry
	requestRoom    [1]store.ZoneRequest
	correctionRoom [1]store.Correction
	decisionRoom   [2]algorithms.Decision
	waitRoom       [1]lines.ZoneWait
	fieldRoom      [2]string
}

// Entry is the part of a [State] about one zone that limits the request.
type Entry struct {
	*store.ZoneRequest           // one of the state's Requests; its methods are in store/outcome.go
	Zone               *Zone     // the zone of the request
	LimitSet           *LimitSet // the limits of the request's key in the zone
	Alternative        int       // the index of the zone's key that made the request's key
	Factor             int64     // the divisor of the bursts, in millionths; 0 for a look-up of a ban
	IsBanLookup        bool      // the request doesn't belong to the zone, but a ban of its key there denies it, too

	waited      bool        // the request has waited in a line of the zone, or for the end of a ban
	Settled     bool        // the true cost is known, so that the charge is corrected
	TrueCost    int64       // in events, by the response
	final       bool        // the rest of the response can't change the charge any more
	corrected   bool        // the correction of the charge is sent
	reservation *time.Timer // ends what the request has reserved, if its charge isn't final before; nil if it has reserved nothing
}

// NewState returns the state of a request that comes to the limiter.
func (l *Limiter) NewState(repl *caddy.Replacer) *State {
	state := new(State)
	state.Begin(l, repl)
	return state
}

// Begin makes the state ready for a request that comes to the limiter. The state is zero.
func (state *State) Begin(l *Limiter, repl *caddy.Replacer) {
	state.Limiter = l
	state.Entries, state.Requests = state.entryRoom[:0], state.requestRoom[:0]
	v, _ := repl.Get(PlaceholderPrefix)
	outermost, ok := v.(*State)
	if !ok {
		outermost = state
		repl.Map(state.lookUpPlaceholder)
	}
	state.outer, outermost.innermost = outermost.innermost, state
}

// Forget makes the state zero, but keeps the memory for entries, which can be more than the usual number.
func (state *State) Forget() {
	entries, requests := state.Entries, state.Requests
	clear(entries)
	clear(requests)
	*state = State{Entries: entries[:0], Requests: requests[:0]}
}

// Collect fills in the zones that limit the request, and one zone request per zone. The request
// belongs to these zones, or their ban applies to all requests of the limiter. Collect is called
// again if the store knows other overrides than this instance.
func (state *State) Collect(r *http.Request, repl *caddy.Replacer, a Attempt) error {
	state.Entries, state.Requests, state.matched = state.Entries[:0], state.Requests[:0], 0 // of an earlier attempt
	state.header = r.Header
	defer state.endCollecting()
	for i := range state.Limiter.Zones {
		applies, err := state.collectZone(i, r, repl, a)
		if a.Observe != nil {
			a.Observe(i, applies)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endCollecting connects the entries with their requests, whose places are known now. From here on, the values of
// the body are only for later handlers.
func (state *State) endCollecting() {
	if !state.Explained { // an explanation shows keys, and is short
		state.Body.KeepValues()
	}
	for i := range state.Entries {
		state.Entries[i].ZoneRequest = &state.Requests[i]
	}
	if len(state.Requests) > 0 {
		state.Requests[0].Outcome.Decisions = state.decisionRoom[:0]
	}
}

// The ways in which a zone applies to a request.
const (
	AppliesNot       = "no_match"
	AppliesExempt    = "exempt"
	AppliesUnlimited = "unlimited" // by factor or an override
	AppliesBan       = "ban_only"  // the request doesn't belong to the zone, but its ban denies it, too
	AppliesYes       = "yes"
)

// collectZone adds an entry for the limiter's zone i if the zone limits the request, or if its ban
// applies. It returns how the zone applies.
func (state *State) collectZone(i int, r *http.Request, repl *caddy.Replacer, a Attempt) (applies string, err error) {
	z := state.Limiter.Zones[i]
	matches, err := z.Matchers.AnyMatchWithError(r) // true without matchers
	if err != nil || !matches && z.BanLookup == nil {
		return AppliesNot, err
	}
	exempt, err := z.exempts(r)
	switch {
	case err != nil || exempt && !matches:
		return AppliesNot, err
	case exempt:
		if a.counts {
			state.countOutcome(z, telemetry.OutcomeExempt)
		}
		return AppliesExempt, nil
	case !matches:
		return state.collectBanLookup(z, r, repl)
	}
	state.matched |= 1 << i
	state.checkKeySource(z, r)
	applies, err = state.collectLimits(z, r, repl, a)
	state.Body.EndZone()
	return applies, err
}

// collectLimits adds an entry for a zone that the request belongs to, unless the request has neither
// limits nor a ban there.
func (state *State) collectLimits(z *Zone, r *http.Request, repl *caddy.Replacer, a Attempt) (applies string, err error) {
	body := bodyReader{state: state, zone: z, r: r}
	body.read(z.BodyNeeds.Factor)
	factor := state.factorOf(z, repl)
	if factor == 0 && body.err == nil {
		return AppliesUnlimited, nil
	}
	if z.tooEarly(r, repl, &body) {
		if z.Enforce == 0 {
			return AppliesUnlimited, nil
		}
		return AppliesYes, errTooEarly
	}
	key := z.KeyOf(repl, &body)
	limits, override := z.limitSetFor(key, func() string {
		body.read(z.BodyNeeds.Plan)
		value, _ := z.PlanBy.Expand(repl)
		return value
	})
	cost := int64(0)
	if !limits.Unlimited {
		body.read(z.BodyNeeds.Cost)
		cost = state.costOf(z, repl)
	}
	body.read(z.BodyNeeds.Share)
	if err := body.check(key); err != nil {
		return AppliesYes, err
	}
	if a.counts {
		z.warnOfEmptyKey(key)
	}
	var tenant store.Tenant
	if z.Share != nil {
		tenant, _ = z.Share.TenantOf(repl, z.HashSecret)
	}
	return state.addKey(Entry{Zone: z, LimitSet: limits, Factor: factor}, key, override, cost, tenant, a), nil
}

// addKey adds an entry for the request's key in a zone, unless the key has neither limits nor a ban there. It
// returns how the zone applies.
func (state *State) addKey(e Entry, key Key, override *store.Override, cost int64, tenant store.Tenant, a Attempt) (applies string) {
	z, b := e.Zone, &e.LimitSet.Budgets[key.Alternative]
	e.Alternative = key.Alternative
	request := store.ZoneRequest{
		Zone: z.Name, Key: z.ShortKey(key.Text), Cost: cost, Slots: b.Slots, Tenant: tenant, Ban: b.Ban, Shadow: !z.Enforces(key.Text),
	}
	if a.looksUp {
		request.Override = override
	}
	applies = AppliesYes
	switch {
	case !e.LimitSet.Unlimited:
		request.Limits, request.Mode = scaleLimits(b.Limits, e.Factor), z.Mode
		if z.Settle != nil && len(b.Limits) > 0 {
			request.ReservedID = b.ReservedID
		}
	case request.Slots != nil || request.Ban != nil: // they apply without limits, too
	case z.MayHaveRuntimeOverride(key): // the store may know a run-time override with limits
		request.Shadow = true // an unlimited key passes also while the store fails
		applies = AppliesUnlimited
	default:
		if a.counts {
			state.countOutcome(z, telemetry.OutcomeOverridden)
		}
		return AppliesUnlimited
	}
	state.add(e, request)
	return applies
}

// collectBanLookup adds an entry that only looks up the ban of the request's key, in a zone that the
// request doesn't belong to. It charges and counts nothing. A key with an empty placeholder has no
// ban here: otherwise a ban of the empty key would deny all requests without such a value.
func (state *State) collectBanLookup(z *Zone, r *http.Request, repl *caddy.Replacer) (applies string, err error) {
	if z.Factor != "" {
		if factor, _ := ParseFactor(repl.ReplaceAll(z.Factor, "")); factor == 0 {
			return AppliesNot, nil
		}
	}
	if z.tooEarly(r, repl, nil) {
		if z.Enforce == 0 {
			return AppliesNot, nil
		}
		return AppliesBan, errTooEarly
	}
	key := z.KeyOf(repl, nil)
	if !key.Complete {
		return AppliesNot, nil
	}
	state.add(Entry{Zone: z, LimitSet: z.BanLookup, Alternative: key.Alternative, IsBanLookup: true}, store.ZoneRequest{
		Zone: z.Name, Key: z.ShortKey(key.Text), Ban: z.BanLookup.Budgets[key.Alternative].Ban, Shadow: !z.Enforces(key.Text),
	})
	return AppliesBan, nil
}

// add adds an entry and its zone request.
func (state *State) add(e Entry, request store.ZoneRequest) {
	state.Entries = append(state.Entries, e)
	state.Requests = append(state.Requests, request)
}

// HasEnforcedZone reports whether any zone of the request can deny it.
func (state *State) HasEnforcedZone() bool {
	return slices.ContainsFunc(state.Entries, func(e Entry) bool { return !e.Shadow })
}
