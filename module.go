// Package ratelimit limits HTTP requests in Caddy. The limits are exact, in the memory of one
// process or in a Redis that any number of processes share.
//
// The package is configuration: JSON, Caddyfile, checks, and what Caddy needs of a module. Everything that runs is in
// the packages below internal. [Handler.Provision] makes a limiter of the configuration, and
// [Handler.ServeHTTP] gives each request to it. The package never decides a request itself.
package ratelimit

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/command"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

func init() {
	caddy.RegisterModule(Handler{})
	command.Register()
}

// Handler limits requests by zones. A zone is a named rule: it says which requests it matches,
// which budget a request is charged to, and how much that budget grants.
//
// A request passes if every zone that matches it has room for it. Then the request is charged to
// all of these zones. Otherwise it is denied with status 429, and charged to none. The option
// mode of a zone changes this. A denied gRPC call ends with RESOURCE_EXHAUSTED instead.
//
// The module has the same ID and directive as two older limiters. Build it into Caddy instead
// of them.
//
// The handler sets these placeholders for every zone of the configuration. They are empty for a
// request that the zone does not limit:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.<zone>.limit}` | How many events can be taken at once from the zone's limit that is nearest to exhaustion
// `{http.rate_limit.<zone>.remaining}` | How many events of cost 1 could be taken now
// `{http.rate_limit.<zone>.reset}` | Seconds until the budget is fully restored, rounded up
// `{http.rate_limit.<zone>.retry_after}` | Seconds until this request would be allowed, rounded up; empty if it is, or waiting won't help
// `{http.rate_limit.<zone>.allowed}` | true if the zone had room, otherwise false
// `{http.rate_limit.<zone>.charged}` | How many events were charged
// `{http.rate_limit.<zone>.banned}` | true if the key is banned, also if the ban began with this request; otherwise false
//
// These placeholders describe the denial of a request, for an error page that serves all zones.
// They are empty if no zone denied the request:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.exceeded.name}` | The zone that denied the request, with the longest wait if several did
// `{http.rate_limit.exceeded.limit}` | The burst, or else the events, of the limit that denied; for concurrency, the slots; empty for a ban
// `{http.rate_limit.exceeded.remaining}` | How many events of cost 1 could be taken now from this limit; empty for a ban
// `{http.rate_limit.exceeded.retry_after}` | Seconds as in Retry-After, with jitter; empty if waiting won't help
// `{http.rate_limit.exceeded.reason}` | limit, concurrency, reserved, or ban; ban also if the ban began with this request
// `{http.rate_limit.exceeded.id}` | The denial ID, for operators; empty while more than 1000 keys are denied in a second
//
// This placeholder is for access logs, which `caddy rate-limit simulate` reads. Write it there with
// `log_append rate_limit_instant {http.rate_limit.instant}`:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.instant}` | When the request was decided, in microseconds since the Unix epoch, by the clock of the store
//
// This placeholder has its value before the password is checked:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.request.basic_user}` | The user name of a basic login; empty without exactly one field Authorization
//
// These placeholders have values of the request's body. They work in key, plan, cost and factor of a
// zone:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.request.json.<path>}` | A value of a JSON body, such as user.name or items.0.id
// `{http.rate_limit.request.form.<field>}` | A field of a form
//
// These placeholders have values of the response's body. They work only in cost of settle:
//
// Placeholder | Value
// ------------|---------------
// `{http.rate_limit.response.json.<path>}` | A value in a JSON response, or in the last event of an event stream that has it
// `{http.rate_limit.response.bytes}` | How many bytes of the response's body are sent, so after compression
// `{http.rate_limit.response.seconds}` | Seconds until the end of the response's body, with a fraction
type Handler struct {
	// The zones, by name. A name has 1 to 64 printable ASCII characters without { } " \ /. It
	// doesn't begin with @ or *. The names exceeded, request and response are reserved, alone and
	// before a dot. Zones with the same name in several handlers are one zone, and must agree
	// (default: none, so the handler uses shared zones).
	RateLimits map[string]*Zone `json:"rate_limits,omitempty"`

	// The names of shared zones that the handler uses besides its own zones. The rate_limit app
	// declares the shared zones (default: all of them if rate_limits is empty, otherwise none).
	Zones []string `json:"zones,omitempty"`

	Options

	// Return an error for denied requests, for the error routes of the JSON subroute that
	// contains this handler. If the server has error routes, the handler always returns an
	// error (default false).
	ReturnErrors bool `json:"return_errors,omitempty"`

	app     *App
	limiter *limiter.Limiter // made by Provision
	zones   []*liveZone      // of the limiter
	logger  *zap.Logger
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.rate_limit",
		New: func() caddy.Module { return new(Handler) },
	}
}

// UnmarshalJSON implements [json.Unmarshaler]. Its errors name the path of the value and the
// correction. Unknown fields are errors, as they are without this method.
func (h *Handler) UnmarshalJSON(data []byte) error {
	type plain Handler
	return options.DecodeStrictly(data, (*plain)(h))
}

// Provision inherits unset options from the app, and compiles the zones. It opens no connection
// and touches no budget.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	app, err := ctx.App("rate_limit")
	if err != nil {
		return err
	}
	h.app = app.(*App)
	h.warn(h.logger) // the app warns about what the handler inherits
	h.inherit(h.app.Options)
	sources, err := h.zoneSources()
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		h.logger.Warn("no zones are configured, so nothing is limited: write at least one zone, here or in the global option rate_limit")
	}
	if h.limiter, err = h.newLimiter(); err != nil {
		return err
	}
	storeID, err := h.app.openStore(ctx, &h.Options, h.limiter)
	if err != nil {
		return err
	}
	h.limiter.DenialSource = &denials.Source{Logger: h.logger, LogsKeys: h.LogKey != nil && *h.LogKey, HashSecret: h.limiter.HashSecret}
	var newZones []*liveZone // which no other handler has, so they are to be warned about
	for _, source := range sources {
		z, err := source.provision(ctx, h.limiter)
		if err != nil {
			return err
		}
		z.Identity = z.identify(storeID)
		h.zones, h.limiter.Zones = append(h.zones, z), append(h.limiter.Zones, z.Zone)
		first, err := source.checkUse(h.app)
		if err != nil {
			return err
		}
		for _, name := range z.Settle.Placeholders() {
			if err := h.limiter.ResponseValues.Add(name); err != nil {
				return inZone(z.Name, err)
			}
		}
		if first {
			newZones = append(newZones, z)
		}
	}
	for _, z := range newZones {
		z.WarnOfKeys()
		z.WarnOfPlan()
		z.warnOfCosts()
		z.warnOfCalendars()
	}
	if err := boundWork(h.zones); err != nil {
		return err
	}
	for _, z := range h.zones {
		h.app.registerZone(z)
		if z.DeniedKeys == nil {
			z.DeniedKeys = h.app.openTopKeys(z)
		}
	}
	return nil
}

// newLimiter returns the limiter of the handler, without its store and its zones. Options are inherited already.
func (h *Handler) newLimiter() (*limiter.Limiter, error) {
	policy, err := compileOnStoreError(h.OnStoreError)
	l := &limiter.Limiter{
		ReportFailure: h.app.reportFailure, Denials: h.app.denials, StoreErrorPolicy: policy, Logger: h.logger,
		SlotLines: limiter.ProcessSlotLines, BodyMemory: limiter.ProcessBodyMemory,
		HeaderForms: limiter.NewHeaderForms(h.Headers), Jitter: h.Jitter, CountsRequests: !h.DisableMetrics,
		ProblemJSON: h.ProblemJSON != nil && *h.ProblemJSON, ReturnErrors: h.ReturnErrors,
	}
	l.ReportCorrectionFailure = func(err error) {
		l.ReportStoreFailure(fmt.Errorf("correcting what a request was charged, giving back its slot, or claiming a share for notify: %w", err))
	}
	return l, err
}

// Validate checks the options, and that zones with the same name agree.
func (h *Handler) Validate() error {
	if err := h.check(); err != nil {
		return err
	}
	for _, z := range h.zones {
		if err := h.app.checkAgreement(z); err != nil {
			return z.source.inSource(err)
		}
	}
	return nil
}

// inZone adds the name of a zone to an error.
func inZone(name string, err error) error { return fmt.Errorf("zone %q: %w", name, err) }

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
