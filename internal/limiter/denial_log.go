package limiter

import (
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// logShadowsAndBans logs the denials of zones in shadow mode, and the bans that begin with this
// request.
func (state *State) logShadowsAndBans(r *http.Request) {
	for i := range state.Entries {
		e := &state.Entries[i]
		if !e.Denies() {
			continue
		}
		if e.Shadow {
			state.logDenial(r, e, denials.Denial{Shadow: true, Wait: e.RetryAfter()})
		}
		if e.Outcome.Ban.Began {
			state.logDenial(r, e, denials.Denial{Shadow: e.Shadow, Ban: true, Wait: e.Outcome.Ban.EndsAfter})
		}
	}
}

// logDenial fills in the rest of a denial by the zone, and logs it. It returns the ID of the denial, if
// it has one.
func (state *State) logDenial(r *http.Request, e *Entry, d denials.Denial) (id string) {
	d.Zone, d.Key, d.Source = e.Zone.Name, e.Key, state.Limiter.DenialSource
	var limit int
	switch d.Reason, limit = e.DenialReason(); d.Reason {
	case store.DeniedByLimit, store.DeniedByReserved:
		d.Limit = e.LimitSet.Limits[limit]
	case store.DeniedByConcurrency:
		d.Slots = e.Slots.Limit
	}
	remoteIP, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		remoteIP = r.RemoteAddr
	}
	d.RemoteIP = remoteIP
	d.ClientIP, _ = caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	path := r.URL.Path
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok { // before rewrites
		path = original.URL.Path
	}
	d.Method, d.Host, d.Path = r.Method, r.Host, path
	return state.Limiter.Denials.Record(d)
}

// countDeniedKeys counts a denied request for the keys that were denied.
func (state *State) countDeniedKeys() {
	now := time.Now()
	for i := range state.Entries {
		if e := &state.Entries[i]; !e.Shadow && e.Denies() {
			e.Zone.DeniedKeys.Add(now, state.Limiter.HashSecret, e.Key)
		}
	}
}
