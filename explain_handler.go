package ratelimit

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The verdicts of an explanation. That of a zone can also be verdictBanned.
const (
	verdictAllowed   = "allowed"
	verdictDelayed   = "delayed"
	verdictDenied    = "denied"
	verdictUnlimited = "unlimited"
	verdictBanned    = "banned"
)

// Further reasons of a denial, besides those of [zoneEntry.denialReason].
const (
	reasonBody  = "body"
	reasonStore = "store"
)

// meet explains a handler that the request meets. Then it passes the request on, also if the handler
// would deny it.
func (x *explanation) meet(h *Handler, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	state := h.newRequestState(repl)
	state.explained = true
	defer state.releaseExplained()
	x.view.Handlers = append(x.view.Handlers, adminapi.ExplainedHandler{
		Server: x.server, Reached: x.view.Verdict != verdictDenied, Zones: []adminapi.ExplainedZone{},
	})
	e := &handlerExplanation{
		explanation: x, state: state, repl: repl,
		handler: &x.view.Handlers[len(x.view.Handlers)-1], applies: make([]string, len(h.zones)), added: make(map[*zone]int64),
	}
	if err := e.decide(r); err != nil {
		return err
	}
	return next.ServeHTTP(rw, r)
}

// releaseExplained gives back the memory for the body of an explained request.
func (state *requestState) releaseExplained() {
	if state.holdsBody() {
		state.body.release()
	}
}

// handlerExplanation is the explanation of one handler.
type handlerExplanation struct {
	*explanation
	state    *requestState
	repl     *caddy.Replacer
	handler  *adminapi.ExplainedHandler
	applies  []string        // how each zone applies; empty for zones that are not reached
	slotless *zoneEntry      // the request waits for a slot of this zone
	added    map[*zone]int64 // to the cost in a zone: the charges of the handlers before
}

// decide decides the request as [Handler.ServeHTTP] does, and describes the decision.
func (e *handlerExplanation) decide(r *http.Request) error {
	var storeError error
	for attempt := 1; attempt < maxAttempts; attempt++ { // only the first attempt, number 0, counts and warns
		err := e.collect(r, attempt)
		if denied, ok := err.(*deniedBody); ok {
			e.describeZones()
			e.conclude(verdictDenied, adminapi.Decision{Zone: denied.zone.name, Reason: reasonBody})
			e.walk.note("zone %s can't read the body (%s), and denies the request with status %d", denied.zone.name, denied.reason, denied.status)
			return nil
		}
		if err != nil {
			return err
		}
		if len(e.state.requests) == 0 {
			break
		}
		if storeError = e.peek(r.Context()); !e.state.rememberOverrides(storeError) {
			break
		}
	}
	e.describeZones()
	for i := range e.state.entries {
		entry := &e.state.entries[i]
		e.charges[entry.charge()] = entry.Cost // with the charges before
	}
	switch {
	case storeError != nil:
		return e.concludeStoreError(r.Context(), storeError)
	case len(e.state.requests) > 0:
		e.concludeDecision()
	}
	return nil
}

// charge names the budgets that a zone charges.
type charge struct {
	identity    zoneIdentity
	key         string
	alternative string // the ID of the first limit, which differs by alternative
}

func (e *zoneEntry) charge() charge {
	c := charge{identity: e.zone.identity, key: e.Key}
	if len(e.Limits) > 0 {
		c.alternative = e.Limits[0].ID
	}
	return c
}

// collect is [requestState.collect], and remembers how each zone applies.
func (e *handlerExplanation) collect(r *http.Request, attempt int) (err error) {
	e.state.beginCollecting(r)
	defer e.state.endCollecting()
	clear(e.applies)
	for i := range e.state.handler.zones {
		if e.applies[i], err = e.state.collectZone(i, r, e.repl, attempt); err != nil {
			return err
		}
	}
	return nil
}

// peek decides the request as [requestState.take] does, but changes nothing. If Redis fails, the local
// budgets decide, as for any request.
func (e *handlerExplanation) peek(ctx context.Context) (err error) {
	state := e.state
	state.came = time.Now()
	state.reservePlaces()
	for i := range state.entries {
		entry := &state.entries[i]
		entry.Peek = true
		if before := e.charges[entry.charge()]; before > 0 {
			e.walk.note("the request meets zone %s twice, so its cost counts twice", entry.zone.name)
			entry.Cost += before
			e.added[entry.zone] = before
		}
	}
	if occupied := state.occupiedLine(); occupied != nil {
		if !state.canWaitIn(occupied) {
			state.denyForSlot(occupied)
			state.decided = true
			return nil
		}
		e.slotless = occupied // a newcomer doesn't overtake the requests that wait
	}
	state.allowed, err = state.handler.authoritativeStore().Take(ctx, state.requests)
	failover, hasLocal := state.handler.store.(*store.Failover)
	if err != nil && hasLocal && ctx.Err() == nil && !store.IsOverridden(err) && !store.IsBusy(err) {
		state.allowed, err = failover.Local().Take(ctx, state.requests)
	}
	state.decided = err == nil
	if err == nil && !state.allowed {
		e.slotless = state.missingSlot(nil)
	}
	return err
}

// conclude sets the verdict about the whole request, unless an earlier handler denies it. A denial
// counts more than a delay, and a longer delay more than a shorter one.
func (e *handlerExplanation) conclude(verdict string, decides adminapi.Decision) {
	v := e.view
	switch {
	case v.Verdict == verdictDenied:
	case verdict == verdictAllowed && v.Verdict == verdictDelayed:
	case verdict == verdictAllowed:
		v.Verdict = verdict
	case verdict == verdictDelayed && v.Decides != nil && !isLonger(decides.RetryAfter, v.Decides.RetryAfter):
	default:
		v.Verdict, v.Decides = verdict, &decides
	}
}

// isLonger reports whether one span is longer than another. A span of unknown length is longest.
func isLonger(span, than *float64) bool {
	return than != nil && (span == nil || *span > *than)
}

// concludeDecision concludes from the decision of the store.
func (e *handlerExplanation) concludeDecision() {
	state := e.state
	if e.slotless != nil {
		e.walk.note("zone %s delays the request until a slot is free, for at most %v; then the limits decide",
			e.slotless.zone.name, e.slotless.zone.delay.longestDelay())
		e.conclude(verdictDelayed, e.slotless.decisionView(reasonConcurrency, 0, nil))
		return
	}
	if !state.allowed {
		denying, wait := state.longestDenial()
		reason, limit := denying.denialReason()
		if denying.banned() {
			reason = reasonBan
		}
		e.conclude(verdictDenied, denying.decisionView(reason, limit, secondsUntil(wait)))
		return
	}
	if delay := state.requiredDelay(); delay > 0 {
		for i := range state.entries {
			if entry := &state.entries[i]; entry.requiredDelay() == delay {
				e.conclude(verdictDelayed, entry.decisionView(reasonLimit, entry.delayingLimit(), secondsUntil(delay)))
				return
			}
		}
	}
	if slices.ContainsFunc(e.handler.Zones, func(z adminapi.ExplainedZone) bool { return z.Applies == appliesYes }) {
		e.conclude(verdictAllowed, adminapi.Decision{})
	}
}

// delayingLimit returns the index of the limit that delays the request longest.
func (e *zoneEntry) delayingLimit() (limit int) {
	for i, d := range e.Outcome.Decisions {
		if d.Wait > e.Outcome.Decisions[limit].Wait {
			limit = i
		}
	}
	return limit
}

// concludeStoreError concludes from a failure of the store, as [Handler.handleStoreError] does.
func (e *handlerExplanation) concludeStoreError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	state := e.state
	mode := state.handler.storeErrorPolicy.mode
	if mode == "allow" || !state.hasEnforcedZone() {
		e.walk.note("the store fails (%v), so the handler passes the request on", err)
		e.conclude(verdictAllowed, adminapi.Decision{})
		return nil
	}
	e.walk.note("the store fails (%v), so the handler denies the request with status %d", err, http.StatusServiceUnavailable)
	for i := range state.entries {
		if entry := &state.entries[i]; !entry.Shadow {
			e.conclude(verdictDenied, adminapi.Decision{Zone: entry.zone.name, Reason: reasonStore, RetryAfter: secondsUntil(outageRetryAfter)})
			break
		}
	}
	return nil
}

// secondsUntil returns a span in seconds, or nil if it never ends.
func secondsUntil(span algorithms.Micros) *float64 {
	if span >= algorithms.Forever {
		return nil
	}
	s := fractionalSeconds(span)
	return &s
}

// decisionView returns the view of a decision by the zone. limit is the index of the limit that
// decides, if one does.
func (e *zoneEntry) decisionView(reason string, limit int, retryAfter *float64) adminapi.Decision {
	d := adminapi.Decision{Zone: e.zone.name, Reason: reason, RetryAfter: retryAfter}
	switch reason {
	case reasonLimit:
		d.Limit = e.grantedLimit(limit).String()
	case reasonConcurrency:
		d.Limit = fmt.Sprint("concurrency ", e.grantedSlots())
	}
	return d
}

// grantedLimit returns a limit as it decided: in an outage, its share of this instance.
func (e *zoneEntry) grantedLimit(i int) *algorithms.Limit {
	if l := &e.Limits[i]; e.Outcome.Local && l.Share != nil {
		return l.Share
	}
	return e.Limits[i].Limit
}

// grantedSlots returns the number of slots as it decided.
func (e *zoneEntry) grantedSlots() int64 {
	if e.Outcome.Local && e.Slots.Share > 0 {
		return e.Slots.Share
	}
	return e.Slots.Limit
}

// describeZones adds the views of the handler's zones.
func (e *handlerExplanation) describeZones() {
	entries := make(map[*zone]*zoneEntry)
	for i := range e.state.entries {
		entries[e.state.entries[i].zone] = &e.state.entries[i]
	}
	for i, z := range e.state.handler.zones {
		if e.applies[i] != "" {
			e.handler.Zones = append(e.handler.Zones, e.describeZone(z, e.applies[i], entries[z]))
		}
	}
}

// describeZone returns the view of a zone. entry is nil if the zone doesn't limit the request.
func (e *handlerExplanation) describeZone(z *zone, applies string, entry *zoneEntry) adminapi.ExplainedZone {
	v := adminapi.ExplainedZone{Zone: z.name, Applies: applies}
	if applies == appliesNot || applies == appliesExempt || z.unlimited {
		return v
	}
	key := z.keyOf(e.repl)
	shown := newShownKey(z.handler.hashSecret, key.text, maxShownKey).view()
	v.Key = &shown
	if len(z.keys) > 1 {
		v.Alternative = key.alternative + 1
	}
	if applies != appliesBan {
		e.describePolicy(z, key, &v)
	}
	if entry == nil || applies == appliesUnlimited {
		return v
	}
	v.Cost, v.Mode, v.Shadow = entry.Cost-e.added[z], entry.Mode.String(), entry.Shadow
	if e.state.decided {
		e.describeOutcome(entry, &v)
	}
	return v
}

// describePolicy adds where the limits of the key come from: an override or a plan.
func (e *handlerExplanation) describePolicy(z *zone, key requestKey, v *adminapi.ExplainedZone) {
	runtime := ""
	if z.mayHaveRuntimeOverride(key) {
		runtime = z.knownOverrides.lookup(z.shortKey(key.text)).Text
	}
	var set *limitSet
	v.Override, set = z.overrideInForce(key.text, key.network, runtime)
	if set == nil && z.planSets != nil {
		value, _ := z.planBy.expand(e.repl)
		v.Plan = &value
	}
}

// describeOutcome adds the outcome of the request in the zone, and the budgets as they are without the
// request.
func (e *handlerExplanation) describeOutcome(entry *zoneEntry, v *adminapi.ExplainedZone) {
	o := &entry.Outcome
	if o.Local {
		v.Store = "local"
	}
	switch {
	case o.Verdict == store.Banned:
		v.Verdict = verdictBanned
	case entry == e.slotless, o.Verdict == store.Allowed && entry.requiredDelay() > 0:
		v.Verdict = verdictDelayed
	case o.Verdict == store.Denied:
		v.Verdict = verdictDenied
	case o.Verdict == store.Allowed:
		v.Verdict = verdictAllowed
	}
	for i, d := range o.Decisions {
		if d.NotAsked {
			continue
		}
		l := newLimitView(nil, entry.Limits[i], d, o.Local)
		l.RetryAfter = secondsUntil(max(d.RetryAfter, d.Wait)) // one of them is 0
		v.Limits = append(v.Limits, l)
	}
	if entry.askedForSlot() {
		v.Concurrency = &adminapi.Concurrency{Limit: entry.grantedSlots(), InUse: o.Slots.InFlight}
	}
	if entry.Ban != nil {
		ban := adminapi.Ban{Banned: o.Ban.Stands, Ends: fractionalSeconds(o.Ban.EndsAfter)}
		v.Ban = &adminapi.ExplainedBan{Ban: ban, Begins: o.Ban.Began}
	}
	if entry.settles() {
		e.walk.note("zone %s has settle, so the true cost of the request is known only after the response", entry.zone.name)
	}
}
