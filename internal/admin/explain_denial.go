package admin

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// VerdictUnknown is the verdict if the keys of a denied request are not known.
const VerdictUnknown = "unknown"

// ExplainDenial explains a denied request by its ID: what happened then, and how the zones that it met
// would decide about the same keys now.
func (a *Request) ExplainDenial(ctx context.Context, q adminapi.Request) (*adminapi.Explanation, error) {
	if !reflect.DeepEqual(q, adminapi.Request{Denial: q.Denial}) {
		return nil, Error(http.StatusBadRequest, `denial stands for the whole request: write {"denial":"k3f9x2mq7t"} alone`)
	}
	record := denials.LookUp(q.Denial)
	if record == nil {
		return nil, Error(http.StatusNotFound, "the denial ID %.64q is unknown here: another instance denied the request, "+
			"the denial is older than ten minutes, or newer denials took its place; "+
			"ask the instance that denied the request, or describe the request with url", q.Denial)
	}
	denied := record.Denial
	denied.At = denied.At.UTC().Truncate(time.Millisecond)
	x := &explanation{view: &adminapi.Explanation{
		Request: adminapi.Request{Denial: denied.ID}, Denied: &denied,
		Verdict: verdictUnlimited, Handlers: []adminapi.ExplainedHandler{},
	}}
	if h := a.handlerOf(record); h == nil {
		x.view.Verdict = VerdictUnknown
		x.note("the configuration in force has no zone %s", record.Zone)
	} else if err := x.explainRecord(ctx, h, record); err != nil {
		return nil, err
	}
	return x.view, nil
}

// handlerOf returns the handler that has the zone of the denial, and most other zones of the request;
// nil if there is none.
func (a *Request) handlerOf(record *denials.Record) (best *limiter.Limiter) {
	most := 0
	for _, z := range a.Configuration.Zones[record.Zone] {
		n := 0
		for _, met := range record.Zones {
			if z.Limiter.ZoneNamed(met.Zone) != nil {
				n++
			}
		}
		if n > most {
			best, most = z.Limiter, n
		}
	}
	return best
}

// explainRecord explains how a handler would decide about the keys of a denied request.
func (x *explanation) explainRecord(ctx context.Context, h *limiter.Limiter, record *denials.Record) error {
	x.view.Handlers = append(x.view.Handlers, adminapi.ExplainedHandler{Reached: true})
	state := h.NewState(caddy.NewReplacer())
	state.Explained = true
	e := &handlerExplanation{explanation: x, state: state, handler: &x.view.Handlers[0]}
	unknown := false
	_, storeError := state.WithOverrides(func(o limiter.CollectOptions) error {
		unknown = e.collectRecord(record, o)
		return nil
	}, func() error { return e.peek(ctx) })
	next := 0
	for i := range e.handler.Zones {
		v := &e.handler.Zones[i]
		if next < len(state.Entries) && state.Entries[next].Zone.Name == v.Zone {
			entry := &state.Entries[next]
			next++
			if v.Applies == limiter.AppliesUnlimited {
				continue
			}
			v.Cost, v.Mode, v.Shadow = entry.Cost, entry.Mode.String(), entry.Shadow
			if state.Decided {
				e.describeOutcome(entry, v)
			}
		}
	}
	if storeError != nil {
		return e.concludeStoreError(ctx, storeError)
	}
	if len(state.Requests) > 0 {
		e.concludeDecision()
	}
	if unknown && x.view.Verdict != verdictDenied {
		x.view.Verdict, x.view.Decides = VerdictUnknown, nil
	}
	return nil
}

// collectRecord adds a view for each zone of the record, and an entry if the zone would limit the key.
// It reports whether the present state of a key is unknown.
func (e *handlerExplanation) collectRecord(record *denials.Record, o limiter.CollectOptions) (unknown bool) {
	e.handler.Zones = []adminapi.ExplainedZone{}
	e.state.BeginCollecting()
	defer e.state.EndCollecting()
	for _, met := range record.Zones {
		z := e.state.Limiter.ZoneNamed(met.Zone)
		if z == nil || met.Alternative >= len(z.Keys) {
			e.note("zone %s has changed since the denial, and is left out", met.Zone)
			continue
		}
		shown := met.Key.View()
		v := adminapi.ExplainedZone{Zone: z.Name, Applies: limiter.AppliesYes, Key: &shown}
		v.Alternative = z.AlternativeText(met.Alternative)
		if met.Key.Hashed || met.Key.Cut {
			unknown = true
			e.note("only the hash or the beginning of the key in zone %s is known, so the present state of the key is unknown", z.Name)
		} else {
			var key limiter.Key
			key, v.Applies = e.state.AddRecorded(z, met, o)
			if v.Applies != limiter.AppliesBan && !describeOverride(z, key, &v) && z.PlanSets[met.Plan] != nil {
				v.Plan = &met.Plan
			}
		}
		e.handler.Zones = append(e.handler.Zones, v)
	}
	return unknown
}
