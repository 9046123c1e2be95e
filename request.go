package ratelimit

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// requestState is one handler's evaluation of one request. Placeholders refer to it, so it
// lives as long as the request.
type requestState struct {
	handler      *Handler
	entries      []zoneEntry     // one per zone that limits the request
	requests     []store.Request // one per entry
	explained    bool            // the request is only described, so nothing is counted or logged
	decided      bool            // the store has decided
	allowed      bool            // by all zones
	corrected    bool            // the corrections are sent
	usesBackend  bool            // the handler's backend stays open for this request
	came         time.Time       // when the handler began to decide
	collecting   *zone           // for which placeholders are being replaced
	request      *http.Request   // whose body placeholders may read
	body         *requestBody    // nil until a zone needs it
	bodyError    *bodyError      // why the zone being collected can't read the body
	trace        *requestTrace   // nil if the request isn't traced
	watchedZones uint64          // bit i: the handler's zone i has placeholders that later handlers may set

	// Several handlers can evaluate a request. The replacer of the request knows the state of
	// the outermost handler. From there the others are found.
	outer     *requestState // of the handler around this one
	innermost *requestState // of the last handler so far; set in the outermost state

	// Set when the handler denies the request.
	denying    *zoneEntry        // the zone that denies it; see [requestState.longestDenial]
	retryAfter algorithms.Micros // as in Retry-After, with jitter
	denialID   string            // "" if too many keys are denied at present

	// Space for the usual number of zones, so that a request needs only one allocation.
	entryRoom      [1]zoneEntry
	requestRoom    [1]store.Request
	correctionRoom [1]store.Correction
	decisionRoom   [2]algorithms.Decision
	fieldRoom      [2]string
}

// zoneEntry is the part of a requestState about one zone that limits the request.
type zoneEntry struct {
	zone     *zone
	limitSet *limitSet // the limits of the request's key in the zone
	*store.Request
	alternative int          // the index of the zone's key that made the request's key
	factor      int64        // as [zone.factorOf] returns it; 0 for a look-up of a ban
	hasPlace    bool         // the request has a place in the delay queue of the zone
	held        *heldRequest // in that queue, while a limit delays the request
	waited      bool         // the request has waited for a slot of the zone
	isBanLookup bool         // the request doesn't belong to the zone; see [requestState.collectBanLookup]
	settled     bool         // the response tells the true cost; see [Settle]
	trueCost    int64        // how many events that is
}

// newRequestState returns the state of a request that comes to the handler.
func (h *Handler) newRequestState(repl *caddy.Replacer) *requestState {
	state := new(requestState)
	state.begin(h, repl)
	return state
}

// begin makes the state ready for a request that comes to the handler. The state is zero.
func (state *requestState) begin(h *Handler, repl *caddy.Replacer) {
	state.handler = h
	state.entries, state.requests = state.entryRoom[:0], state.requestRoom[:0]
	v, _ := repl.Get(placeholderPrefix)
	outermost, ok := v.(*requestState)
	if !ok {
		outermost = state
		repl.Map(state.lookUpPlaceholder)
	}
	state.outer, outermost.innermost = outermost.innermost, state
}

// collect fills in the zones that limit the request, and one store request per zone. The request
// belongs to these zones, or their ban applies to all requests of the handler. collect is called
// again if the store knows other overrides than this instance; attempt counts the calls from 0.
func (state *requestState) collect(r *http.Request, repl *caddy.Replacer, attempt int) error {
	state.beginCollecting(r)
	defer state.endCollecting()
	for i := range state.handler.zones {
		if _, err := state.collectZone(i, r, repl, attempt); err != nil {
			return err
		}
	}
	return nil
}

func (state *requestState) beginCollecting(r *http.Request) {
	state.entries, state.requests, state.watchedZones = state.entries[:0], state.requests[:0], 0
	state.request = r
}

// endCollecting connects the entries with their requests, whose places are known now. From here on, the values of
// the body are only for later handlers.
func (state *requestState) endCollecting() {
	state.collecting = nil
	if state.body != nil && !state.explained { // an explanation shows keys, and is short
		state.body.keepValues()
	}
	for i := range state.entries {
		state.entries[i].Request = &state.requests[i]
	}
	if len(state.requests) > 0 {
		state.requests[0].Outcome.Decisions = state.decisionRoom[:0]
	}
}

// The ways in which a zone applies to a request.
const (
	appliesNot       = "no_match"
	appliesExempt    = "exempt"
	appliesUnlimited = "unlimited" // by factor or an override
	appliesBan       = "ban_only"  // the request doesn't belong to the zone, but its ban denies it, too
	appliesYes       = "yes"
)

// collectZone adds an entry for the handler's zone i if the zone limits the request, or if its ban
// applies. It returns how the zone applies.
func (state *requestState) collectZone(i int, r *http.Request, repl *caddy.Replacer, attempt int) (applies string, err error) {
	z := state.handler.zones[i]
	state.collecting, state.bodyError = nil, nil
	if z.unlimited {
		return appliesUnlimited, nil
	}
	matches, err := z.matches(r)
	if err != nil || !matches && z.banLookup == nil {
		return appliesNot, err
	}
	exempt, err := z.exempts(r)
	switch {
	case err != nil:
	case exempt && matches:
		if attempt == 0 {
			state.countOutcome(z, outcomeExempt)
		}
		return appliesExempt, nil
	case exempt:
	case matches:
		state.checkKeySource(i, r)
		return state.collectLimits(z, r, repl, attempt)
	default:
		return state.collectBanLookup(z, r, repl)
	}
	return appliesNot, err
}

// collectLimits adds an entry for a zone that the request belongs to, unless the request has neither
// limits nor a ban there.
func (state *requestState) collectLimits(z *zone, r *http.Request, repl *caddy.Replacer, attempt int) (applies string, err error) {
	state.collecting = z // from here on, placeholders may read the body
	factor := state.factorOf(z, repl)
	if factor == 0 {
		return appliesUnlimited, nil
	}
	if z.tooEarly(r, repl) {
		if z.enforce == 0 {
			return appliesUnlimited, nil
		}
		return appliesYes, errTooEarly
	}
	key := z.keyOf(repl)
	limits, override := z.limitSetFor(key, repl)
	if attempt == maxAttempts-1 {
		override = nil
	}
	request := z.requestFor(key, limits, override, factor)
	if !limits.unlimited {
		request.Cost = state.costOf(z, repl)
	}
	if err := state.checkBody(z, key); err != nil {
		return appliesYes, err
	}
	if attempt == 0 {
		z.warnOfEmptyKey(key)
	}
	applies = appliesYes
	switch {
	case !limits.unlimited:
	case request.Slots != nil || request.Ban != nil: // they apply without limits, too
	case z.mayHaveRuntimeOverride(key): // the store may know a run-time override with limits
		request.Shadow = true // an unlimited key passes also while the store fails
		applies = appliesUnlimited
	default:
		if attempt == 0 {
			state.countOutcome(z, outcomeOverridden)
		}
		return appliesUnlimited, nil
	}
	state.add(zoneEntry{zone: z, limitSet: limits, alternative: key.alternative, factor: factor}, request)
	return applies, nil
}

// requestFor returns the store request of a key with these limits, apart from its cost.
func (z *zone) requestFor(key requestKey, limits *limitSet, override *store.Override, factor int64) store.Request {
	b := &limits.budgets[key.alternative]
	request := store.Request{
		Zone: z.name, Key: z.shortKey(key.text), Slots: b.slots, Ban: b.ban, Override: override, Shadow: !z.enforces(key.text),
	}
	if !limits.unlimited {
		request.Limits, request.Mode = scaleLimits(b.limits, factor), z.mode
	}
	return request
}

// add adds an entry and its store request.
func (state *requestState) add(e zoneEntry, request store.Request) {
	state.entries = append(state.entries, e)
	state.requests = append(state.requests, request)
}

// denies reports whether the zone denies the request, or would without shadow mode.
func (e *zoneEntry) denies() bool {
	return e.Outcome.Verdict == store.Denied || e.Outcome.Verdict == store.Banned
}

// limitDenies reports whether a limit denies a request.
func limitDenies(d algorithms.Decision) bool { return !d.Allowed && !d.NotAsked }

// retryAfter returns how long it takes until the zone has room for the request, as far as is
// known.
func (e *zoneEntry) retryAfter() algorithms.Micros {
	wait := e.Outcome.Ban.EndsAfter
	for _, d := range e.Outcome.Decisions {
		wait = max(wait, d.RetryAfter)
	}
	if e.lacksSlot() {
		wait = max(wait, slotRetryAfter)
	}
	return wait
}
