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
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func init() {
	caddy.RegisterModule(AdminAPI{})
}

// AdminAPI looks at zones and keys, and changes what is kept of keys, at Caddy's admin
// endpoint:
//
//	GET           /rate_limit/zones                             all zones
//	GET           /rate_limit/zones/<zone>/top                  the keys refused most lately
//	GET, DELETE   /rate_limit/zones/<zone>/keys/<key>           look at a key, or reset it
//	PUT, DELETE   /rate_limit/zones/<zone>/keys/<key>/override  limits at run time
//	PUT, DELETE   /rate_limit/zones/<zone>/keys/<key>/ban       refuse everything
//
// Zones and keys are percent-encoded. The empty key is at keys/, its override and ban at
// /rate_limit/zones/<zone>/override and ban.
//
// It keeps nothing: Caddy makes the admin endpoint of a configuration before it is known
// whether that will be in force, so each request asks for the one that is.
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

// adminActions are what can be done, by what is at the end of a path and by method. What
// they return is the body of the response.
var adminActions = map[string]map[string]func(*adminRequest) (any, error){
	"zones":    {http.MethodGet: (*adminRequest).listZones},
	"top":      {http.MethodGet: (*adminRequest).listTop},
	"key":      {http.MethodGet: (*adminRequest).inspectKey, http.MethodDelete: (*adminRequest).resetKey},
	"override": {http.MethodPut: (*adminRequest).setOverride, http.MethodDelete: (*adminRequest).removeOverride},
	"ban":      {http.MethodPut: (*adminRequest).banKey, http.MethodDelete: (*adminRequest).unbanKey},
}

// ServeHTTP implements [caddy.AdminHandler].
func (*AdminAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	what, zone, key, err := readAdminPath(r.URL)
	if err != nil {
		return err
	}
	action := adminActions[what][r.Method]
	if action == nil {
		methods := strings.Join(slices.Sorted(maps.Keys(adminActions[what])), ", ")
		w.Header().Set("Allow", methods)
		return adminError(http.StatusMethodNotAllowed, "there is no %s here: use one of %s", r.Method, methods)
	}
	a := &adminRequest{ctx: r.Context(), key: key}
	if a.app, err = activeApp(); err != nil {
		return err
	}
	if what != "zones" {
		if a.zones = a.app.zonesByName[zone]; len(a.zones) == 0 {
			return adminError(http.StatusNotFound, "there is no zone %q: GET %szones lists all", zone, adminPath)
		}
	}
	if what != "zones" && what != "top" {
		if err := a.checkKey(what == "override" && r.Method == http.MethodPut); err != nil {
			return adminError(http.StatusBadRequest, "key %w (in a path percent-encoded)", err)
		}
	}
	if r.Method == http.MethodPut {
		if a.body, err = readAdminBody(w, r); err != nil {
			return err
		}
	}
	answer, err := action(a)
	if err != nil {
		return err
	}
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	body, err := readableJSON(answer)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // who has left needs no body
	return nil
}

// readableJSON returns JSON in which < > and & are not escaped.
func readableJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func adminError(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// activeApp is the app of the configuration in force.
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

// readAdminPath tells what is at a path, and takes zone and key out of it.
func readAdminPath(u *url.URL) (what, zone, key string, err error) {
	if u.RawPath != "" && u.EscapedPath() != u.RawPath { // then it is another path that EscapedPath gives
		return "", "", "", adminError(http.StatusBadRequest, "the path is not percent-encoded as a whole: write all of zone and key so but letters, digits and -_.~")
	}
	parts := strings.Split(strings.TrimPrefix(u.EscapedPath(), adminPath), "/")
	if len(parts) == 1 && parts[0] == "zones" {
		return "zones", "", "", nil
	}
	if len(parts) >= 3 && parts[0] == "zones" {
		zone, err = url.PathUnescape(parts[1])
		switch rest := parts[2:]; {
		case len(rest) == 1 && (rest[0] == "top" || rest[0] == "override" || rest[0] == "ban"):
			what = rest[0]
		case len(rest) == 2 && rest[0] == "keys":
			what = "key"
		case len(rest) == 3 && rest[0] == "keys" && (rest[2] == "override" || rest[2] == "ban"):
			what = rest[2]
		}
		if len(parts) > 3 && err == nil {
			key, err = url.PathUnescape(parts[3])
		}
	}
	switch {
	case err != nil:
		return "", "", "", adminError(http.StatusBadRequest, "the path: %w", err)
	case what == "":
		return "", "", "", adminError(http.StatusNotFound, "there is nothing here: there are %[1]szones, and in %[1]szones/{zone}/ top, keys/{key}, keys/{key}/override, keys/{key}/ban, "+
			"and override and ban of the empty key; zone and key are percent-encoded, / too", adminPath)
	}
	return what, zone, key, nil
}

// maxAdminBody is how many bytes a body may have.
const maxAdminBody = 64 << 10

func readAdminBody(w http.ResponseWriter, r *http.Request) (string, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return "", adminError(http.StatusRequestEntityTooLarge, "the body is too long: write at most %d bytes", maxAdminBody)
	}
	if err != nil {
		return "", adminError(http.StatusBadRequest, "the body: %w", err)
	}
	return string(bytes.TrimSpace(body)), nil
}

// adminRequest is what an operator asks.
type adminRequest struct {
	ctx   context.Context
	app   *App
	zones []*zone // of the name in the path, at least one
	key   string
	body  string
}

// checkKey denies a key that no request has. With override it also denies a key that no
// request looks up an override for.
func (a *adminRequest) checkKey(override bool) (err error) {
	for _, z := range a.zones {
		if err = z.checkKey(a.key, override); err == nil {
			return nil
		}
	}
	return err
}

// checkKey denies a key that is an address in another form than the zone's.
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

// resetKey makes the budgets of a key as if it had never been charged, and ends its ban.
func (a *adminRequest) resetKey() (any, error) {
	return nil, a.change(func(z *zone) (c store.Change, err error) {
		text, err := z.storedOverride(a.ctx, a.key)
		network, _ := parseNetwork(a.key)
		all := append(z.limitSetsWithoutOverride(), namedLimitSet{limitSet: z.overrides.lookup(a.key, network)})
		if text != "" {
			t, _ := z.readOverride(text) // one that can't be read has no effect
			all = append(all, namedLimitSet{limitSet: t})
		}
		for i := range z.keys {
			for _, l := range limitsOf(all, i) {
				c.Forget = append(c.Forget, l.ID)
			}
		}
		for _, b := range z.bansOf(nil) {
			c.Forget = append(c.Forget, b.ID)
		}
		return c, err
	})
}

// setOverride gives a key terms of its own.
func (a *adminRequest) setOverride() (any, error) {
	var body struct {
		LimitSet
		TTL *caddy.Duration `json:"ttl"`
	}
	if err := decodeStrictly([]byte(a.body), &body); err != nil {
		return nil, adminError(http.StatusBadRequest, `the body: %w; write for example {"unlimited":true,"ttl":"1h"}, or limits as in the configuration`, err)
	}
	o, span := storedOverride{LimitSet: body.LimitSet}, time.Duration(0)
	if body.TTL != nil {
		if span = time.Duration(*body.TTL); span < time.Millisecond {
			return nil, adminError(http.StatusBadRequest, `ttl must be at least 1ms, not %v: write for example "1h" (a number is nanoseconds), or leave it out for good`, span)
		}
		o.Until = time.Now().Add(span).UTC().Truncate(time.Millisecond)
	}
	text, err := o.text()
	if err != nil {
		return nil, err
	}
	return nil, a.changeOverride(text, span)
}

func (a *adminRequest) removeOverride() (any, error) { return nil, a.changeOverride("", 0) }

// changeOverride sets the override of a key; an empty text is none.
func (a *adminRequest) changeOverride(text string, span time.Duration) error {
	for _, z := range a.zones {
		if !z.overridable {
			return adminError(http.StatusConflict, "zone %q does not look for overrides at run time: write runtime_overrides in it", z.name)
		}
		if text == "" {
			continue
		}
		if _, err := z.readOverride(text); err != nil {
			return adminError(http.StatusBadRequest, "override: %w", err)
		}
	}
	return a.change(func(*zone) (store.Change, error) {
		return store.Change{Override: &text, OverrideFor: span.Microseconds()}, nil
	})
}

// banKey makes a ban stand from now on, whatever there was.
func (a *adminRequest) banKey() (any, error) {
	if err := a.needBan(); err != nil {
		return nil, err
	}
	var body struct {
		Duration *caddy.Duration `json:"duration"`
	}
	if a.body != "" {
		if err := decodeStrictly([]byte(a.body), &body); err != nil {
			return nil, adminError(http.StatusBadRequest, `the body: %w; write for example {"duration":"1h"}, or no body for the duration of the zone's bans`, err)
		}
	}
	span := a.zones[0].config.Ban.Duration
	if body.Duration != nil {
		span = *body.Duration
	}
	if _, err := (&Ban{Duration: span}).compile(anyLimits); err != nil {
		return nil, adminError(http.StatusBadRequest, "%w", err)
	}
	return nil, a.change(func(z *zone) (store.Change, error) {
		return store.Change{Ban: z.bansOf(nil), BanFor: time.Duration(span).Microseconds()}, nil
	})
}

// unbanKey ends a ban, and forgets those before it.
func (a *adminRequest) unbanKey() (any, error) {
	if err := a.needBan(); err != nil {
		return nil, err
	}
	return nil, a.change(func(z *zone) (c store.Change, _ error) {
		for _, b := range z.bansOf(nil) {
			c.Forget = append(c.Forget, b.ID)
		}
		return c, nil
	})
}

func (a *adminRequest) needBan() error {
	if z := a.zones[0]; z.config.Ban == nil {
		return adminError(http.StatusConflict, "zone %q bans nobody: write for example ban 1h in it", z.name)
	}
	return nil
}

// change makes a change to the key in all stores where it is kept.
func (a *adminRequest) change(made func(*zone) (store.Change, error)) error {
	type place struct {
		budgets identity
		store   store.Store
	}
	done, known := make(map[place]bool), make(map[identity]bool)
	for _, z := range a.zones {
		at := place{z.identity, z.handler.authoritativeStore()}
		if done[at] {
			continue
		}
		c, err := made(z)
		if err == nil {
			c.Zone, c.Key = z.name, a.key
			if known[z.identity] { // it is the same Redis over other connections, which remember refusals of their own
				c.Ban = nil
			}
			err = at.store.Change(a.ctx, c)
		}
		if err != nil {
			return changeFailed(z, len(done) > 0, err)
		}
		done[at], known[z.identity] = true, true
	}
	return nil
}

// changeFailed returns the error for a failed change of a key; others reports whether other
// zones were changed before. A single Redis that already fails isn't asked, so nothing has
// changed there.
func changeFailed(z *zone, others bool, err error) error {
	done := "the change may be missing, or made in part"
	if b := z.handler.backend; !others && b != nil && !b.isCluster() && errors.Is(err, store.ErrOpen) {
		done = "nothing has changed"
	}
	return adminError(http.StatusServiceUnavailable,
		"the store of zone %q fails (%w): %s; make the change again when the store works", z.name, err, done)
}

// authoritativeStore is the store itself, without what stands in for it.
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
