package ratelimit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func init() {
	caddy.RegisterModule(AdminAPI{})
}

// AdminAPI shows zones and keys, and changes the state of keys, at Caddy's admin endpoint:
//
//	GET           /rate_limit/status                            the instance and its stores
//	POST          /rate_limit/explain                           how a described request would be decided
//	GET           /rate_limit/zones                             all zones
//	GET           /rate_limit/zones/<zone>                      one zone
//	GET           /rate_limit/zones/<zone>/top                  the keys that were denied most lately
//	GET           /rate_limit/zones/<zone>/bans                 the bans in force
//	GET           /rate_limit/zones/<zone>/overrides            the overrides
//	GET, DELETE   /rate_limit/zones/<zone>/keys/<key>           inspect a key, or reset it
//	PUT, DELETE   /rate_limit/zones/<zone>/keys/<key>/override  limits at run time
//	PUT, DELETE   /rate_limit/zones/<zone>/keys/<key>/ban       deny all requests
//
// Zones and keys are percent-encoded. The key can be a parameter instead: keys?key=<key>,
// override?key=<key> and ban?key=<key>. The empty key is also at keys/, override and ban.
//
// AdminAPI has no state: Caddy creates the admin endpoint of a configuration before it accepts
// the configuration. So each request looks up the configuration in force.
type AdminAPI struct{}

// CaddyModule returns the Caddy module information.
func (AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.rate_limit",
		New: func() caddy.Module { return new(AdminAPI) },
	}
}

const adminPath = "/rate_limit/"

// Routes implements [caddy.AdminRouter].
func (a *AdminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: adminPath, Handler: a}}
}

// ServeHTTP implements [caddy.AdminHandler].
func (*AdminAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	resource, a, err := readAdminURL(r.URL)
	if err != nil {
		return err
	}
	action := resource.actions[r.Method]
	if action == nil {
		methods := strings.Join(slices.Sorted(maps.Keys(resource.actions)), ", ")
		w.Header().Set("Allow", methods)
		return adminError(http.StatusMethodNotAllowed, "%s doesn't work on %s: use one of %s", r.Method, adminPath+resource.form, methods)
	}
	a.ctx = r.Context()
	if a.app, err = activeApp(); err != nil {
		return err
	}
	if resource.has("{zone}") {
		if a.zones = a.app.zonesByName[a.zone]; len(a.zones) == 0 {
			return adminError(http.StatusNotFound, "there is no zone %q: GET %szones lists all", a.zone, adminPath)
		}
	}
	if a.hasKey {
		a.key = a.zones[0].config.foldKey(a.key) // zones of one name agree about key_case
		if err := a.checkKey(false); err != nil {
			return adminError(http.StatusBadRequest, "key %w (percent-encoded)", err)
		}
	}
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		if a.body, err = readAdminBody(w, r); err != nil {
			return err
		}
	}
	result, err := action(a)
	if err != nil {
		return err
	}
	if result == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	body, err := readableJSON(result)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // an error means that the client has left
	return nil
}

// readableJSON returns JSON without escapes for < > and &.
func readableJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// adminError returns an error that Caddy's admin endpoint sends with the status.
func adminError(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// activeApp returns the app of the configuration in force.
func activeApp() (*App, error) {
	app, err := caddy.ActiveContext().AppIfConfigured("rate_limit")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, adminError(http.StatusNotFound, "the configuration in force has no rate_limit: write at least one zone")
	}
	if err != nil {
		return nil, err
	}
	return app.(*App), nil
}

// maxAdminBody is the maximum length of a body in bytes.
const maxAdminBody = 64 << 10

func readAdminBody(w http.ResponseWriter, r *http.Request) (string, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return "", adminError(http.StatusRequestEntityTooLarge, "the body is too long: write at most %d bytes", maxAdminBody)
	}
	if err != nil {
		return "", adminError(http.StatusBadRequest, "the body: %w", err)
	}
	return string(bytes.TrimSpace(body)), nil
}

// adminRequest is a request of an operator.
type adminRequest struct {
	ctx    context.Context
	app    *App
	zone   string  // the name in the path
	zones  []*zone // with this name, at least one
	key    string
	hasKey bool
	limit  int    // of a list
	cursor string // of a list
	body   string
}

// checkKey rejects a key that no request can have. If override is set, it also rejects a key that
// no request looks up an override for.
func (a *adminRequest) checkKey(override bool) (err error) {
	for _, z := range a.zones {
		if err = z.checkKey(a.key, override); err == nil {
			return nil
		}
	}
	return err
}

// checkKey does the same for one zone. A key that is an address must be in the form in which the
// zone writes its keys.
func (z *zone) checkKey(key string, override bool) error {
	network, ok := parseNetwork(key)
	if !ok {
		return nil
	}
	proper := ""
	for i := range z.keys {
		t := &z.keys[i]
		var text string
		switch {
		case t.address:
			text, _ = t.formatAddress(network.Addr(), key)
		case !override:
			text, _ = t.normalize(key)
		default:
			continue
		}
		if text == key {
			return nil
		}
		proper = cmp.Or(proper, text)
	}
	if proper == "" {
		return fmt.Errorf("%q is for addresses, and no value of the zone's key is an address placeholder alone, "+
			"so no request would look such an override up: write {client_ip} as a value of key in the configuration", key)
	}
	if p, _ := parseNetwork(proper); network.Bits() < p.Bits() {
		return fmt.Errorf("%q is wider than the keys of the zone: write one of them, such as %s; "+
			"overrides in the configuration can be for wider networks", key, proper)
	}
	return fmt.Errorf("%q is not as the zone writes its keys: write %s", key, proper)
}

// resetKey makes the budgets of a key untouched, and ends its ban.
func (a *adminRequest) resetKey() (any, error) {
	err := a.changeKey(func(z *zone) (c store.Change, err error) {
		text, err := z.lookUpStoredOverride(a.ctx, a.key)
		network, _ := parseNetwork(a.key)
		sets := append(z.limitSetsWithoutOverride(), namedLimitSet{limitSet: z.overrides.lookup(a.key, network)})
		if text != "" {
			set, _ := z.compileStoredOverride(text) // nil for an override that can't be read, which has no effect
			sets = append(sets, namedLimitSet{limitSet: set})
		}
		for i := range z.keys {
			for _, l := range distinctLimits(sets, i) {
				c.Forget = append(c.Forget, l.ID)
			}
		}
		for _, b := range z.bansFor(nil) {
			c.Forget = append(c.Forget, b.ID)
		}
		return c, err
	})
	if err == nil {
		endBan(a.zones[0].name, a.zones[0].shortKey(a.key))
	}
	return nil, err
}

// banKey begins a ban of a key. It replaces a ban that is in force.
func (a *adminRequest) banKey() (any, error) {
	if err := a.requireBan(); err != nil {
		return nil, err
	}
	var body struct {
		Duration *caddy.Duration `json:"duration"`
	}
	if a.body != "" {
		if err := decodeStrictly([]byte(a.body), &body); err != nil {
			return nil, adminError(http.StatusBadRequest,
				`the body: %w; write for example {"duration":"1h"}, or no body for the duration of the zone's bans`, err)
		}
	}
	duration := a.zones[0].config.Ban.Duration
	if body.Duration != nil {
		duration = *body.Duration
	}
	if _, err := (&Ban{Duration: duration}).compile(anyLimits); err != nil {
		return nil, adminError(http.StatusBadRequest, "%w", err)
	}
	err := a.changeKey(func(z *zone) (store.Change, error) {
		return store.Change{Ban: z.bansFor(nil), BanFor: time.Duration(duration).Microseconds()}, nil
	})
	if i := slices.IndexFunc(a.zones, func(z *zone) bool { return !z.metrics.disabled }); i >= 0 && err == nil {
		a.zones[i].metrics.countBan(a.zones[i].shortKey(a.key), time.Duration(duration))
	}
	return nil, err
}

// unbanKey ends the ban of a key, and forgets its earlier bans.
func (a *adminRequest) unbanKey() (any, error) {
	if err := a.requireBan(); err != nil {
		return nil, err
	}
	err := a.changeKey(func(z *zone) (c store.Change, _ error) {
		for _, b := range z.bansFor(nil) {
			c.Forget = append(c.Forget, b.ID)
		}
		return c, nil
	})
	if err == nil {
		endBan(a.zones[0].name, a.zones[0].shortKey(a.key))
	}
	return nil, err
}

// requireBan rejects zones without the option ban.
func (a *adminRequest) requireBan() error {
	if z := a.zones[0]; z.config.Ban == nil {
		return adminError(http.StatusConflict, "zone %q bans nobody: write for example ban 1h in it", z.name)
	}
	return nil
}

// changeKey makes a change to the key in each store that keeps it. newChange returns the change
// for a zone.
func (a *adminRequest) changeKey(newChange func(*zone) (store.Change, error)) error {
	type place struct {
		identity zoneIdentity
		store    store.Store
	}
	changed, changedIdentity := make(map[place]bool), make(map[zoneIdentity]bool)
	for _, z := range a.zones {
		at := place{z.identity, z.handler.authoritativeStore()}
		if changed[at] {
			continue
		}
		c, err := newChange(z)
		if err == nil {
			c.Zone, c.Key = z.name, z.shortKey(a.key)
			if changedIdentity[z.identity] { // the same Redis over other connections, with a cache of denials of its own
				c.Ban = nil
			}
			err = at.store.Change(a.ctx, c)
		}
		if err != nil {
			return changeError(z, len(changed) > 0, err)
		}
		changed[at], changedIdentity[z.identity] = true, true
	}
	return nil
}

// changeError returns the error for a failed change of a key; others reports whether other
// zones were changed before. A single Redis that already failed isn't asked, so nothing has
// changed there.
func changeError(z *zone, others bool, err error) error {
	consequence := "the change can be missing, or be made in part"
	if b := z.handler.backend; !others && b != nil && !b.isCluster() && errors.Is(err, store.ErrOpen) {
		consequence = "nothing has changed"
	}
	return adminError(http.StatusServiceUnavailable,
		"the store of zone %q fails (%w): %s; make the change again when the store works", z.name, err, consequence)
}

// authoritativeStore returns the store that decides while it works, without local budgets for
// outages.
func (h *Handler) authoritativeStore() store.Store {
	if h.backend != nil {
		return h.backend
	}
	return h.store
}

// Interface guards
var (
	_ caddy.AdminRouter  = (*AdminAPI)(nil)
	_ caddy.AdminHandler = (*AdminAPI)(nil)
)
