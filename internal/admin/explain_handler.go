package admin

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
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
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

// Reasons for a denial, besides those of [store.ZoneRequest.DenialReason].
const (
	reasonBody  = "body"
	reasonStore = "store"
)

// Meet implements [routes.Visitor]. It explains a handler that the request meets. Then it passes the request on,
// also if the handler would deny it.
func (x *explanation) Meet(h *limiter.Limiter, rw http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	state := h.NewState(repl)
	state.Explained = true
	defer func() { state.Body.Release() }()
	x.view.Handlers = append(x.view.Handlers, adminapi.ExplainedHandler{
		Server: x.server, Reached: x.view.Verdict != verdictDenied, Zones: []adminapi.ExplainedZone{},
	})
	e := &handlerExplanation{
		explanation: x, state: state, repl: repl,
		handler: &x.view.Handlers[len(x.view.Handlers)-1], applies: make([]string, len(h.Zones)), added: make(map[*limiter.Zone]int64),
	}
	if err := e.decide(r); err != nil {
		return err
	}
	return next.ServeHTTP(rw, r)
}

// handlerExplanation is the explanation of one handler.
type handlerExplanation struct {
	*explanation
	state    *limiter.State
	repl     *caddy.Replacer
	handler  *adminapi.ExplainedHandler
	applies  []string                // how each zone applies; empty for zones that are not reached
	waitsFor *lines.Need             // nil if the request waits in no line
	added    map[*limiter.Zone]int64 // to the cost in a zone: the charges of the handlers before
}

// decide decides the request as [limiter.Limiter.Serve] does, and describes the decision.
func (e *handlerExplanation) decide(r *http.Request) error {
	collectError, storeError := e.state.WithOverrides(
		func(attempt limiter.Attempt) error {
			clear(e.applies)
			attempt.Observe = func(zone int, applies string) { e.applies[zone] = applies }
			return e.state.Collect(r, e.repl, attempt)
		},
		func() error { return e.peek(r.Context()) },
	)
	denied, isDenied := collectError.(*limiter.DeniedBody)
	if collectError != nil && !isDenied {
		return collectError
	}
	e.describeZones()
	if isDenied {
		e.conclude(verdictDenied, adminapi.Decision{Zone: denied.Zone.Name, Reason: reasonBody})
		e.note("zone %s can't read the body (%s), and denies the request with status %d", denied.Zone.Name, denied.Err.Reason, denied.Err.Status)
		return nil
	}
	for i := range e.state.Entries {
		entry := &e.state.Entries[i]
		e.charges[chargeOf(entry)] = entry.Cost // with the charges before
	}
	switch {
	case storeError != nil:
		return e.concludeStoreError(r.Context(), storeError)
	case len(e.state.Requests) > 0:
		e.concludeDecision()
	}
	return nil
}

// charge names the budgets that a zone charges.
type charge struct {
	zone        string
	identity    limiter.Identity
	key         string
	alternative string // the ID of the first limit, which differs by alternative
}

func chargeOf(e *limiter.Entry) charge {
	c := charge{zone: e.Zone.Name, identity: e.Zone.Identity, key: e.Key}
	if len(e.Limits) > 0 {
		c.alternative = e.Limits[0].ID
	}
	return c
}

// peek decides the request, with the charges of the handlers before.
func (e *handlerExplanation) peek(ctx context.Context) (err error) {
	for i := range e.state.Entries {
		entry := &e.state.Entries[i]
		if before := e.charges[chargeOf(entry)]; before > 0 {
			e.note("the request meets zone %s twice, so its cost counts twice", entry.Zone.Name)
			entry.Cost += before
			e.added[entry.Zone] = before
		}
	}
	e.waitsFor, err = e.state.Peek(ctx)
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
	if e.waitsFor != nil {
		e.concludeWait()
		return
	}
	if !state.Allowed {
		denying, wait := state.LongestDenial()
		_, limit := denying.DenialReason()
		e.conclude(verdictDenied, decisionView(denying, denying.ClientReason(), limit, secondsUntil(wait)))
		return
	}
	if delay := state.RequiredDelay(); delay > 0 {
		for i := range state.Entries {
			if entry := &state.Entries[i]; entry.RequiredDelay() == delay {
				e.conclude(verdictDelayed, decisionView(entry, store.DeniedByLimit, entry.DelayingLimit(), secondsUntil(delay)))
				return
			}
		}
	}
	if slices.ContainsFunc(e.handler.Zones, func(z adminapi.ExplainedZone) bool { return z.Applies == limiter.AppliesYes }) {
		e.conclude(verdictAllowed, adminapi.Decision{})
	}
}

// concludeWait concludes that the request waits in a line.
func (e *handlerExplanation) concludeWait() {
	entry := &e.state.Entries[e.waitsFor.Zone]
	reason, thing, longest, frees := store.DeniedByConcurrency, "a slot is free", entry.Zone.Delay.MaxDelay, (*float64)(nil)
	switch {
	case e.waitsFor.Ban:
		reason, thing, frees = store.DeniedByHold, "the hold ends", secondsUntil(entry.Outcome.Ban.EndsAfter)
	case e.waitsFor.Reserved:
		reason, thing, longest = store.DeniedByReserved, "others give back what they have reserved", entry.Zone.Delay.MaxReserved
	}
	e.note("zone %s delays the request until %s, for at most %v; then the limits decide", entry.Zone.Name, thing,
		time.Duration(longest)*time.Microsecond)
	_, limit := entry.DenialReason()
	e.conclude(verdictDelayed, decisionView(entry, reason, max(limit, 0), frees))
}

// concludeStoreError concludes from a failure of the store, as a limiter does.
func (e *handlerExplanation) concludeStoreError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	state := e.state
	mode := state.Limiter.StoreErrorPolicy.Mode
	if mode == "allow" || !state.HasEnforcedZone() {
		e.note("the store fails (%v), so the handler passes the request on", err)
		e.conclude(verdictAllowed, adminapi.Decision{})
		return nil
	}
	e.note("the store fails (%v), so the handler denies the request with status %d", err, http.StatusServiceUnavailable)
	for i := range state.Entries {
		if entry := &state.Entries[i]; !entry.Shadow {
			e.conclude(verdictDenied, adminapi.Decision{
				Zone: entry.Zone.Name, Reason: reasonStore, RetryAfter: secondsUntil(limiter.OutageRetryAfter),
			})
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
	s := FractionalSeconds(span)
	return &s
}

// decisionView returns the view of a decision by the zone. limit is the index of the limit that
// decides, if one does.
func decisionView(e *limiter.Entry, reason string, limit int, retryAfter *float64) adminapi.Decision {
	d := adminapi.Decision{Zone: e.Zone.Name, Reason: reason, RetryAfter: retryAfter}
	switch reason {
	case store.DeniedByLimit, store.DeniedByReserved:
		d.Limit = e.GrantedLimit(limit).String()
	case store.DeniedByConcurrency:
		d.Limit = fmt.Sprint("concurrency ", e.GrantedSlots())
	}
	return d
}

// describeZones adds the views of the handler's zones.
func (e *handlerExplanation) describeZones() {
	entries := make(map[*limiter.Zone]*limiter.Entry)
	for i := range e.state.Entries {
		entries[e.state.Entries[i].Zone] = &e.state.Entries[i]
	}
	for i, z := range e.state.Limiter.Zones {
		if e.applies[i] != "" {
			e.handler.Zones = append(e.handler.Zones, e.describeZone(z, e.applies[i], entries[z]))
		}
	}
}

// describeZone returns the view of a zone. entry is nil if the zone doesn't limit the request.
func (e *handlerExplanation) describeZone(z *limiter.Zone, applies string, entry *limiter.Entry) adminapi.ExplainedZone {
	v := adminapi.ExplainedZone{Zone: z.Name, Applies: applies}
	if applies == limiter.AppliesNot || applies == limiter.AppliesExempt {
		return v
	}
	key := z.KeyOf(e.repl, nil)
	shown := keys.NewShown(z.HashSecret, key.Text).View()
	v.Key = &shown
	v.Denials = z.DeniedKeys.Of(time.Now(), z.HashSecret, z.ShortKey(key.Text))
	v.Alternative = z.AlternativeText(key.Alternative)
	if applies != limiter.AppliesBan && !describeOverride(z, key, &v) && z.PlanSets != nil {
		value, _ := z.PlanBy.Expand(e.repl)
		v.Plan = &value
	}
	if entry == nil || applies == limiter.AppliesUnlimited {
		return v
	}
	v.Cost, v.Mode, v.Shadow = entry.Cost-e.added[z], entry.Mode.String(), entry.Shadow
	if e.state.Decided {
		e.describeOutcome(entry, &v)
	}
	return v
}

// describeOverride adds the override that the limits of the key come from. It reports whether there is one.
func describeOverride(z *limiter.Zone, key limiter.Key, v *adminapi.ExplainedZone) (overridden bool) {
	runtime := ""
	if z.MayHaveRuntimeOverride(key) {
		runtime = z.KnownOverrides.Lookup(z.ShortKey(key.Text)).Text
	}
	var set *limiter.LimitSet
	v.Override, set = overrideInForce(z, key.Text, key.Network, runtime)
	return set != nil
}

// describeOutcome adds the outcome of the request in the zone, and the budgets as they are without the
// request.
func (e *handlerExplanation) describeOutcome(entry *limiter.Entry, v *adminapi.ExplainedZone) {
	o := &entry.Outcome
	if o.Local {
		v.Store = "local"
	}
	switch {
	case e.waitsFor != nil && entry == &e.state.Entries[e.waitsFor.Zone], o.Verdict == store.Allowed && entry.RequiredDelay() > 0:
		v.Verdict = verdictDelayed
	case o.Verdict == store.Banned:
		v.Verdict = verdictBanned
	case o.Verdict == store.Denied:
		v.Verdict = verdictDenied
	case o.Verdict == store.Allowed:
		v.Verdict = verdictAllowed
	}
	for i, d := range o.Decisions {
		if d.NotAsked {
			continue
		}
		l := NewLimitView(entry.ZoneRequest, i)
		l.RetryAfter = secondsUntil(max(d.RetryAfter, d.Wait)) // one of them is 0
		v.Limits = append(v.Limits, l)
	}
	if entry.AskedForSlot() {
		v.Concurrency = &adminapi.Concurrency{Limit: entry.GrantedSlots(), InUse: o.Slots.InFlight}
	}
	if z := entry.Zone; z.Share != nil && entry.Slots != nil {
		tenant, name := z.Share.TenantOf(e.repl, z.HashSecret)
		e.note("in zone %s the tenant of the request is %q, with weight %d", z.Name, keys.Encoded(z.HashSecret, name), tenant.Weight)
	}
	if entry.Ban != nil {
		ban := adminapi.Ban{Banned: o.Ban.Stands, Ends: FractionalSeconds(o.Ban.EndsAfter)}
		v.Ban = &adminapi.ExplainedBan{Ban: ban, Begins: o.Ban.Began}
	}
	if entry.Settles() {
		e.note("zone %s has settle, so the true cost of the request is known only after the response", entry.Zone.Name)
	}
}
