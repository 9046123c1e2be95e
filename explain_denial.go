package ratelimit

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// verdictUnknown is the verdict if the keys of a denied request are not known.
const verdictUnknown = "unknown"

// explainDenial explains a denied request by its ID: what happened then, and how the zones that it met
// would decide about the same keys now.
func (a *adminRequest) explainDenial(ctx context.Context, q adminapi.Request) (*adminapi.Explanation, error) {
	if !reflect.DeepEqual(q, adminapi.Request{Denial: q.Denial}) {
		return nil, adminError(http.StatusBadRequest, `denial stands for the whole request: write {"denial":"k3f9x2mq7t"} alone`)
	}
	record, err := processDenials.lookUp(q.Denial)
	if err != nil {
		return nil, err
	}
	denied := record.Denial
	denied.At = denied.At.UTC().Truncate(time.Millisecond)
	x := &explanation{walk: new(routeWalk), view: &adminapi.Explanation{
		Request: adminapi.Request{Denial: denied.ID}, Denied: &denied,
		Verdict: verdictUnlimited, Handlers: []adminapi.ExplainedHandler{},
	}}
	if h := a.handlerOf(record); h == nil {
		x.view.Verdict = verdictUnknown
		x.walk.note("the configuration in force has no zone %s", record.Zone)
	} else if err := x.explainRecord(ctx, h, record); err != nil {
		return nil, err
	}
	x.view.Notes = x.walk.notes
	return x.view, nil
}

// handlerOf returns the handler that has the zone of the denial, and most other zones of the request;
// nil if there is none.
func (a *adminRequest) handlerOf(record *denialRecord) (best *Handler) {
	most := 0
	for _, z := range a.app.zonesByName[record.Zone] {
		n := 0
		for _, met := range record.zones {
			if z.handler.zoneNamed(met.zone) != nil {
				n++
			}
		}
		if n > most {
			best, most = z.handler, n
		}
	}
	return best
}

// zoneNamed returns the handler's zone of a name, or nil.
func (h *Handler) zoneNamed(name string) *zone {
	if i := slices.IndexFunc(h.zones, func(z *zone) bool { return z.name == name }); i >= 0 {
		return h.zones[i]
	}
	return nil
}

// explainRecord explains how a handler would decide about the keys of a denied request.
func (x *explanation) explainRecord(ctx context.Context, h *Handler, record *denialRecord) error {
	x.view.Handlers = append(x.view.Handlers, adminapi.ExplainedHandler{Reached: true})
	state := h.newRequestState(caddy.NewReplacer())
	state.explained = true
	e := &handlerExplanation{explanation: x, state: state, handler: &x.view.Handlers[0]}
	unknown, storeError := false, error(nil)
	for range maxAttempts - 1 {
		unknown = e.collectRecord(record)
		if len(state.requests) == 0 {
			break
		}
		if storeError = e.peek(ctx); !state.rememberOverrides(storeError) {
			break
		}
	}
	next := 0
	for i := range e.handler.Zones {
		v := &e.handler.Zones[i]
		if next < len(state.entries) && state.entries[next].zone.name == v.Zone {
			entry := &state.entries[next]
			next++
			if v.Applies == appliesUnlimited {
				continue
			}
			v.Cost, v.Mode, v.Shadow = entry.Cost, entry.Mode.String(), entry.Shadow
			if state.decided {
				e.describeOutcome(entry, v)
			}
		}
	}
	if storeError != nil {
		return e.concludeStoreError(ctx, storeError)
	}
	if len(state.requests) > 0 {
		e.concludeDecision()
	}
	if unknown && x.view.Verdict != verdictDenied {
		x.view.Verdict, x.view.Decides = verdictUnknown, nil
	}
	return nil
}

// collectRecord adds a view for each zone of the record, and an entry if the zone would limit the key.
// It reports whether the present state of a key is unknown.
func (e *handlerExplanation) collectRecord(record *denialRecord) (unknown bool) {
	e.handler.Zones = []adminapi.ExplainedZone{}
	e.state.beginCollecting(nil)
	defer e.state.endCollecting()
	for _, met := range record.zones {
		z := e.state.handler.zoneNamed(met.zone)
		if z == nil || met.alternative >= len(z.keys) {
			e.walk.note("zone %s has changed since the denial, and is left out", met.zone)
			continue
		}
		shown := met.key.view()
		v := adminapi.ExplainedZone{Zone: z.name, Applies: appliesYes, Key: &shown}
		if len(z.keys) > 1 {
			v.Alternative = met.alternative + 1
		}
		switch {
		case met.key.hashed || met.key.cut:
			unknown = true
			e.walk.note("only the hash or the beginning of the key in zone %s is known, so the present state of the key is unknown", z.name)
		case met.factor == 0:
			v.Applies = appliesBan
			e.addBanLookup(z, met)
		default:
			e.addRecorded(z, met, &v)
		}
		e.handler.Zones = append(e.handler.Zones, v)
	}
	return unknown
}

// addBanLookup adds an entry that looks up the ban of a key; see [requestState.collectBanLookup].
func (e *handlerExplanation) addBanLookup(z *zone, met recordedZone) {
	if z.banLookup == nil {
		return
	}
	e.state.add(zoneEntry{zone: z, limitSet: z.banLookup, isBanLookup: true}, store.Request{
		Zone: z.name, Key: met.key.text, Ban: z.banLookup.budgets[met.alternative].ban, Shadow: !z.enforces(met.key.text),
	})
}

// addRecorded adds an entry for a key with the limits that it has now; see [requestState.collectLimits].
func (e *handlerExplanation) addRecorded(z *zone, met recordedZone, v *adminapi.ExplainedZone) {
	key := requestKey{text: met.key.text, alternative: met.alternative, complete: true}
	if z.keys[met.alternative].address {
		key.network, _ = parseNetwork(key.text)
	}
	var known knownOverride
	if z.mayHaveRuntimeOverride(key) {
		known = z.knownOverrides.lookup(key.text)
	}
	override := ""
	if known.Override != nil {
		override = known.Text
	}
	var set *limitSet
	if v.Override, set = z.overrideInForce(key.text, key.network, override); set == nil {
		set = z.defaultSet
		if planned := z.planSets[met.plan]; planned != nil {
			set, v.Plan = planned, &met.plan
		}
	}
	request := z.requestFor(key, set, known.Override, met.factor)
	if !set.unlimited {
		request.Cost = met.cost
	} else if request.Slots == nil && request.Ban == nil {
		v.Applies = appliesUnlimited
		if request.Override == nil {
			return
		}
		request.Shadow = true
	}
	e.state.add(zoneEntry{zone: z, limitSet: set, alternative: key.alternative, factor: met.factor}, request)
}
