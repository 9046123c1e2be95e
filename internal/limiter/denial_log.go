package limiter

import (
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// recordDenials counts the denials of the request by key, and logs those of zones in shadow mode, and the bans that
// begin with the request.
func (state *State) recordDenials(r *http.Request) {
	for i := range state.Entries {
		e := &state.Entries[i]
		if !e.Denies() {
			continue
		}
		cause := e.denialCause()
		e.Zone.DeniedKeys.Add(time.Now(), state.Limiter.HashSecret, e.Key, e.Shadow, cause)
		if e.Shadow {
			state.logDenial(r, e, denials.Denial{Shadow: true, Cause: cause, Wait: e.RetryAfter()})
		}
		if e.Outcome.Ban.Began {
			state.logDenial(r, e, denials.Denial{Shadow: e.Shadow, Ban: true, Cause: cause, Wait: e.Outcome.Ban.EndsAfter})
		}
	}
}

// logDenial fills in the rest of a denial by the zone, and logs it. It returns the ID of the denial, if
// it has one.
func (state *State) logDenial(r *http.Request, e *Entry, d denials.Denial) (id string) {
	d.Zone, d.Key, d.Source = e.Zone.Name, e.Key, state.Limiter.DenialSource
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

// denialCause returns what denies the request in the zone.
func (e *Entry) denialCause() (c denials.Cause) {
	var limit int
	switch c.Reason, limit = e.DenialReason(); c.Reason {
	case store.DeniedByLimit, store.DeniedByReserved:
		c.Limit = e.LimitSet.Limits[limit]
	case store.DeniedByConcurrency:
		c.Slots = e.Slots.Limit
	}
	return c
}
