// Package budgets is the handler rate_limit_budget, which tells clients their own budgets. It never charges them.
package budgets

import (
	"errors"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

func init() {
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterHandlerDirective("rate_limit_budget", parse)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit_budget", httpcaddyfile.Before, "invoke") // behind authentication
}

// Handler answers GET and HEAD with the budgets that the client of the request has. It charges nothing and shows no key. It
// makes the key of each zone from the request, also if the zone doesn't match the request, or exempts it. It skips zones
// whose key lacks a value or comes from a body, and zones in shadow mode.
type Handler struct {
	// The names of the zones, which can be of any rate_limit handler (default: the zones of all rate_limit handlers that the
	// request has passed, except zones with headers off).
	Zones []string `json:"zones,omitempty"`

	app source
}

// source is the app rate_limit.
type source interface {
	// NeedZone has the start of the app fail if there is no zone of this name.
	NeedZone(name string)
	// ZonesNamed returns the zones of this name. Zones with one identity share their budgets.
	ZonesNamed(name string) []*admin.Zone
}

// Answer is the body of a response.
type Answer struct {
	Budgets []Zone `json:"budgets"`
}

// Zone has the budgets of the client in a zone.
type Zone struct {
	Zone        string                `json:"zone"`
	Limits      []Limit               `json:"limits"`
	Concurrency *adminapi.Concurrency `json:"concurrency,omitempty"`
	Ban         *adminapi.Ban         `json:"ban,omitempty"` // nil unless the client is banned
}

// Limit is the budget of a limit.
type Limit struct {
	Quota int64 `json:"quota"` // the most events that can be taken at once
	adminapi.Limit
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.rate_limit_budget",
		New: func() caddy.Module { return new(Handler) },
	}
}

// parse reads the directive:
//
//	rate_limit_budget [<matcher>] [<zone>...]
func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next()
	handler := &Handler{Zones: h.RemainingArgs()}
	if h.NextBlock(0) {
		return nil, h.Err("rate_limit_budget takes no block: write only names of zones")
	}
	return handler, nil
}

// Provision finds the app. All zones are known when the app starts.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := ctx.App("rate_limit")
	if err != nil {
		return err
	}
	h.app = app.(source)
	for _, name := range h.Zones {
		h.app.NeedZone(name)
	}
	return nil
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler]. In error routes it keeps the status of the error.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	status := http.StatusOK
	if failed, ok := r.Context().Value(caddyhttp.ErrorCtxKey).(caddyhttp.HandlerError); ok {
		status = failed.StatusCode
	} else if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return caddyhttp.Error(http.StatusMethodNotAllowed, errors.New("rate_limit_budget answers only GET and HEAD"))
	}
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	answer, seen := Answer{Budgets: []Zone{}}, make(map[shown]bool)
	for _, part := range h.parts(repl) {
		entries, err := part.limiter.PeekOwn(r, repl, part.zones)
		if err != nil {
			part.limiter.ReportStoreFailure(err)
			httpfields.SetRetryAfter(w.Header(), limiter.OutageRetryAfter)
			w.WriteHeader(http.StatusServiceUnavailable) // an error would write a log line for each request
			return nil
		}
		for _, e := range entries {
			zone := shown{e.Zone.Name, e.Zone.Identity}
			if !seen[zone] && (len(e.Limits) > 0 || e.Slots != nil || e.Outcome.Ban.Stands) {
				seen[zone] = true
				answer.Budgets = append(answer.Budgets, view(&e))
			}
		}
	}
	w.Header().Set("Cache-Control", "no-store") // each client has another answer
	return admin.WriteJSON(w, status, answer)
}

// shown names a zone in an answer. Zones of one name in several handlers can share their budgets, or not.
type shown struct {
	name     string
	identity limiter.Identity
}

// part is a limiter with the zones of it that are asked.
type part struct {
	limiter *limiter.Limiter
	zones   []*limiter.Zone
}

// parts returns the zones, each once, by the limiters that decide them. A call of the store can't have a limit twice.
func (h *Handler) parts(repl *caddy.Replacer) (all []part) {
	add := func(l *limiter.Limiter, z *limiter.Zone) {
		n := slices.IndexFunc(all, func(p part) bool { return p.limiter == l })
		if n < 0 {
			n = len(all)
			all = append(all, part{limiter: l})
		}
		if !slices.Contains(all[n].zones, z) {
			all[n].zones = append(all[n].zones, z)
		}
	}
	for _, name := range h.Zones {
		for _, z := range h.app.ZonesNamed(name) {
			add(z.Limiter, z.Zone)
		}
	}
	if len(h.Zones) > 0 {
		return all
	}
	for _, l := range limiter.PassedLimiters(repl) {
		for _, z := range l.Zones {
			if !z.Hidden {
				add(l, z)
			}
		}
	}
	return all
}

// view returns the budgets of a peek as clients see them.
func view(e *limiter.Entry) Zone {
	v := Zone{Zone: e.Zone.Name, Limits: []Limit{}}
	for i := range e.Limits {
		v.Limits = append(v.Limits, Limit{Quota: e.GrantedLimit(i).Burst, Limit: admin.NewLimitView(e.ZoneRequest, i)})
	}
	if e.Slots != nil {
		v.Concurrency = &adminapi.Concurrency{Limit: e.GrantedSlots(), InUse: e.Outcome.Slots.InFlight}
	}
	if e.Outcome.Ban.Stands {
		v.Ban = &adminapi.Ban{Banned: true, Ends: admin.FractionalSeconds(e.Outcome.Ban.EndsAfter)}
	}
	return v
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
