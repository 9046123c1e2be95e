package ratelimit

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// requestState is what one handler asked about one request and what came of it. It
// lives as long as the request, for its placeholders do.
type requestState struct {
	handler      *Handler
	entries      []entry         // one per zone that the request belongs to
	requests     []store.Request // to the store: one per entry
	isDecided    bool            // the requests are decided
	allowed      bool
	corrected    bool // the charges of the request are final, and its slots given back
	usesBackend  bool // the request uses the handler's backend, which stays open until end
	exceededZone string
	watchedZones uint64 // bit i: the handler's zone i has placeholders that later handlers may set

	// A request can come to several handlers. The outermost one's answer is
	// what its replacer knows, and leads to all others.
	outer     *requestState // of the handler around this one
	innermost *requestState // of the last handler so far; set in the outermost answer

	// Room for the usual case, so that all this is one allocation.
	entryRoom      [1]entry
	requestRoom    [1]store.Request
	correctionRoom [1]store.Correction
	decisionRoom   [2]algorithms.Decision
	fieldRoom      [2]string
}

// entry is one zone that a request belongs to.
type entry struct {
	zone     *zone
	limitSet *limitSet // by which the request belongs to it
	*store.Request
	// trueCost is how many events the request is worth by its response, if settled; see [Settle].
	trueCost int64
	settled  bool
}

func (h *Handler) newRequestState(repl *caddy.Replacer) *requestState {
	state := &requestState{handler: h}
	state.entries, state.requests = state.entryRoom[:0], state.requestRoom[:0] // what ask fills
	v, _ := repl.Get(placeholderPrefix)
	outermost, ok := v.(*requestState)
	if !ok {
		outermost = state
		repl.Map(state.placeholder)
	}
	state.outer, outermost.innermost = outermost.innermost, state
	return state
}

// collect finds the zones the request belongs to, and what to ask about each, perhaps again:
// try is how often that was done before.
func (state *requestState) collect(r *http.Request, repl *caddy.Replacer, try int) error {
	state.entries, state.requests, state.watchedZones = state.entries[:0], state.requests[:0], 0
	for i, z := range state.handler.zones {
		matches, err := z.matches(r)
		if err != nil {
			return err
		}
		if !matches {
			continue
		}
		state.checkKeySource(i, r)
		factor := z.factorOf(repl)
		if factor == 0 {
			continue // unlimited
		}
		if z.tooEarly(r, repl) {
			if z.enforce == 0 {
				continue
			}
			return errTooEarly
		}
		key := z.keyOf(repl)
		if try == 0 {
			z.warnOfEmptyKey(key)
		}
		t, override := z.limitSetFor(key, repl)
		if try == maxTries-1 {
			override = nil
		}
		request := store.Request{Zone: z.name, Key: key.text, Override: override}
		switch {
		case !t.unlimited:
			b := &t.budgets[key.alternative]
			request.Limits, request.Slots, request.Ban = scaled(b.limits, factor), b.slots, b.ban
			request.Mode, request.Cost, request.Shadow = z.mode, z.costOf(repl), !z.enforces(key.text)
		case z.looksUp(key): // an override at run time may end this
			request.Shadow = true
		default:
			if try == 0 {
				z.metrics.count(outcomeOverridden)
			}
			continue
		}
		state.entries = append(state.entries, entry{zone: z, limitSet: t})
		state.requests = append(state.requests, request)
	}
	for i := range state.entries {
		state.entries[i].Request = &state.requests[i]
	}
	if len(state.requests) > 0 {
		state.requests[0].Outcome.Decisions = state.decisionRoom[:0]
	}
	return nil
}

// keepBackendOpen keeps the handler's backend open until end, also after a reload, so that the
// charges of the request can be corrected.
func (state *requestState) keepBackendOpen() {
	if b := state.handler.backend; b != nil && !state.usesBackend {
		state.usesBackend = true
		b.use()
	}
}

// end ends the request.
func (state *requestState) end() {
	state.correct()
	if !state.usesBackend {
		return
	}
	if err := state.handler.backend.leave(); err != nil {
		state.handler.reportStoreFailure(err)
	}
}

// mayCorrect reports whether the request may need corrections when it has ended.
func (state *requestState) mayCorrect() bool {
	for i := range state.entries {
		if e := &state.entries[i]; e.Slots != nil || e.zone.settle != nil {
			return true
		}
	}
	return false
}

// correct corrects the charges of the request by its response, and gives its slots back, in
// one call of the store. Only the first call does anything.
func (state *requestState) correct() {
	if !state.isDecided || state.corrected {
		return
	}
	state.corrected = true
	corrections := state.correctionRoom[:0]
	for i := range state.entries {
		e := &state.entries[i]
		c := store.Correction{Request: e.Request, Leave: e.Outcome.Slots.Taken}
		if e.settled {
			c.Refund, c.Charge = max(e.Cost-e.trueCost, 0), max(e.trueCost-e.Cost, 0)
		}
		if c.Leave || c.Refund > 0 || c.Charge > 0 {
			corrections = append(corrections, c)
		}
	}
	if len(corrections) > 0 {
		state.handler.store.Correct(corrections, state.handler.correctionFailed)
	}
}

// recordDecision notes the outcome.
func (state *requestState) recordDecision(allowed bool, took time.Duration) {
	state.isDecided, state.allowed = true, allowed
	for i := range state.entries {
		e := &state.entries[i]
		if e.Outcome.Cached && !e.Shadow {
			e.zone.metrics.cached()
		}
		if said, asked := e.metricOutcome(allowed); asked {
			e.zone.metrics.decided(said, took)
		}
	}
}

// metricOutcome returns the outcome for metrics. asked reports whether the zone was asked.
func (e *entry) metricOutcome(allowed bool) (said outcome, asked bool) {
	switch verdict := e.Outcome.Verdict; {
	case e.limitSet.unlimited:
		return outcomeOverridden, true
	case verdict == store.NotAsked:
		return 0, false
	case e.denies() && e.Shadow:
		return outcomeShadowDenied, true
	case verdict == store.Banned:
		return outcomeBanned, true
	case verdict == store.Denied:
		return outcomeDenied, true
	case allowed && e.wait() > 0:
		return outcomeDelayed, true
	default:
		return outcomeAllowed, true
	}
}

// denies reports whether the zone denies the request, or would if it weren't a shadow.
func (e *entry) denies() bool {
	return e.Outcome.Verdict == store.Denied || e.Outcome.Verdict == store.Banned
}

// The reasons of denials.
const (
	reasonLimit       = "limit"
	reasonConcurrency = "concurrency"
	reasonBan         = "ban"
)

// limitText returns the reason why the zone denies the request. If limits deny it, denier also returns
// the limit with the longest wait.
func (e *entry) denialReason() (reason string, limit *algorithms.Limit) {
	if e.Outcome.Verdict == store.Banned {
		return reasonBan, nil
	}
	longest := algorithms.Micros(-1)
	for n, d := range e.Outcome.Decisions {
		if limitDenies(d) && d.RetryAfter > longest {
			longest, reason, limit = d.RetryAfter, reasonLimit, e.limitSet.limits[n]
		}
	}
	if e.lacksSlot() && slotRetry > longest {
		return reasonConcurrency, nil
	}
	return reason, limit
}

// limitDenies reports whether a limit denies a request.
func limitDenies(d algorithms.Decision) bool { return !d.Allowed && !d.NotAsked }

// retryAfter returns how long it takes until the zone has room, as far as is known.
func (e *entry) retryAfter() algorithms.Micros {
	wait := e.Outcome.Ban.EndsAfter
	for _, d := range e.Outcome.Decisions {
		wait = max(wait, d.RetryAfter)
	}
	if e.lacksSlot() {
		wait = max(wait, slotRetry)
	}
	return wait
}

// longestDenial returns the zone that denies with the longest wait, and the longest wait of all zones.
// The latter can be that of a uniform zone that had room, but has none after the charge. Shadows
// don't count.
func (state *requestState) longestDenial() (which *entry, wait algorithms.Micros) {
	longest := algorithms.Micros(-1)
	for i := range state.entries {
		e := &state.entries[i]
		if e.Shadow {
			continue
		}
		w := e.retryAfter()
		wait = max(wait, w)
		if e.denies() && w > longest {
			which, longest = e, w
		}
	}
	return which, wait
}
