// Package admin serves the admin API: it shows zones, keys, bans and overrides, changes the state of keys, and
// explains how a described request would be decided. It never decides a request of a client, and never reads
// configuration: a [Configuration] has all that it needs of the one in force.
package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Path is the path of the admin API.
const Path = "/rate_limit/"

// Configuration is a configuration as the admin API needs it.
type Configuration struct {
	Zones  map[string][]*Zone      // by name
	Redis  func() []adminapi.Redis // the state of each Redis
	Memory func() *adminapi.Memory // the state of the memory; nil if no zone has budgets there
	Local  func() *adminapi.Memory // the state of the local budgets of an outage; nil if there can't be any
	// ParseOverride reads the body of a request that sets an override. It returns the override in the form that a store
	// keeps, and how long the override lasts; 0 means without an end.
	ParseOverride func(body []byte) (text string, lasts time.Duration, err error)
	CheckBan      func(lasts caddy.Duration) error
}

// Zone is a zone with the limiter of its handler.
type Zone struct {
	*limiter.Zone
	Limiter *limiter.Limiter
	Source  any // comparable: zones with one source have the same configuration
	// Settings returns what operators see of the zone's configuration.
	Settings func() options.Object
}

// Serve serves a request of the admin API. inForce returns the configuration in force.
func Serve(w http.ResponseWriter, r *http.Request, inForce func() (*Configuration, error)) error {
	resource, a, err := readURL(r.URL)
	if err != nil {
		return err
	}
	action := resource.Actions[r.Method]
	if action == nil {
		methods := strings.Join(slices.Sorted(maps.Keys(resource.Actions)), ", ")
		w.Header().Set("Allow", methods)
		return Error(http.StatusMethodNotAllowed, "%s doesn't work on %s: use one of %s", r.Method, Path+resource.Form, methods)
	}
	a.Ctx = r.Context()
	if a.Configuration, err = inForce(); err != nil {
		return err
	}
	if a.zone != "" {
		if a.zones = a.Configuration.Zones[a.zone]; len(a.zones) == 0 {
			return a.Configuration.UnknownZone(a.zone)
		}
	}
	if a.hasKey {
		a.key = a.zones[0].Keys[0].Fold(a.key) // zones of one name agree about key_case
		if err := a.checkKey(ForRequests); err != nil {
			return Error(http.StatusBadRequest, "key %w", err)
		}
	}
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		if a.Body, err = readBody(w, r); err != nil {
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
	return WriteJSON(w, http.StatusOK, result)
}

// maxNamed is how many zones an error names.
const maxNamed = 20

// UnknownZone returns an error that names the zones that exist.
func (c *Configuration) UnknownZone(name string) error {
	names, meant, more := slices.Sorted(maps.Keys(c.Zones)), "", ""
	if len(names) == 0 {
		return Error(http.StatusNotFound, "there is no zone %q, and no other zone", name)
	}
	if near := options.Suggest(name, names); near != "" {
		meant = fmt.Sprintf(" (did you mean %q?)", near)
	}
	if len(names) > maxNamed {
		names, more = names[:maxNamed], "; GET "+Path+"zones lists all"
	}
	return Error(http.StatusNotFound, "there is no zone %q%s: write one of %q%s", name, meant, names, more)
}

// Error returns an error that Caddy's admin endpoint sends with the status.
func Error(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// MaxBody is the maximum length of a body in bytes.
const MaxBody = 64 << 10

func readBody(w http.ResponseWriter, r *http.Request) (string, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return "", Error(http.StatusRequestEntityTooLarge, "the body is too long: write at most %d bytes", MaxBody)
	}
	if err != nil {
		return "", Error(http.StatusBadRequest, "the body: %w", err)
	}
	return string(bytes.TrimSpace(body)), nil
}

// OperatorRequest is a request of an operator.
type OperatorRequest struct {
	Ctx           context.Context
	Configuration *Configuration
	zone          string  // the name in the path
	zones         []*Zone // with this name, at least one
	key           string
	hasKey        bool
	limit         int    // of a list
	cursor        string // of a list
	Body          string
}

// KeyUse is the purpose of a key from an operator.
type KeyUse int

const (
	ForRequests  KeyUse = iota // a request can have the key
	ForOverrides               // a request can look up an override for the key
)

// checkKey rejects a key that no request can have, or look up, in any of the zones.
func (a *OperatorRequest) checkKey(use KeyUse) (err error) {
	for _, z := range a.zones {
		if err = z.CheckKey(a.key, use); err == nil {
			return nil
		}
	}
	return err
}

// CheckKey does the same for one zone. A key that is an address must be in the form in which the
// zone writes its keys.
func (z *Zone) CheckKey(key string, use KeyUse) error {
	network, ok := keys.ParseNetwork(key)
	if !ok {
		return nil
	}
	proper := ""
	for i := range z.Keys {
		t := &z.Keys[i]
		var text string
		switch {
		case t.Address:
			text, _ = t.FormatAddress(network.Addr(), key)
		case use == ForRequests:
			text, _ = t.Normalize(key)
		default:
			continue
		}
		if text == key {
			return nil
		}
		proper = cmp.Or(proper, text)
	}
	if proper == "" {
		return fmt.Errorf("%q is for addresses, but no value of the zone's key is just an address placeholder, "+
			"so no request would look such an override up: write {client_ip} as a value of key in the configuration", key)
	}
	if p, _ := keys.ParseNetwork(proper); network.Bits() < p.Bits() {
		return fmt.Errorf("%q is wider than the keys of the zone: write one of them, such as %s; "+
			"overrides in the configuration can be for wider networks", key, proper)
	}
	return fmt.Errorf("%q is not how the zone writes its keys: write %s", key, proper)
}

// resetKey makes the budgets of a key untouched, and ends its ban.
func (a *OperatorRequest) resetKey() (any, error) {
	return nil, a.endBan(func(z *Zone) (c store.Change, err error) {
		text, err := z.lookUpStoredOverride(a.Ctx, a.key)
		network, _ := keys.ParseNetwork(a.key)
		sets := append(z.SetsWithoutOverrides(), limiter.NamedSet{LimitSet: z.Overrides.Lookup(a.key, network)})
		if text != "" {
			set, _, _ := z.CompileOverride(text) // nil for an override that can't be read, which has no effect
			sets = append(sets, limiter.NamedSet{LimitSet: set})
		}
		for i := range z.Keys {
			for _, l := range distinctLimits(sets, i) {
				c.Forget = append(c.Forget, l.ID)
			}
		}
		return c, err
	})
}

// unbanKey ends the ban of a key, and forgets its earlier bans.
func (a *OperatorRequest) unbanKey() (any, error) {
	if err := a.requireBan(); err != nil {
		return nil, err
	}
	return nil, a.endBan(func(*Zone) (c store.Change, err error) { return c, nil })
}

// endBan makes a change to the key that also forgets its bans.
func (a *OperatorRequest) endBan(newChange func(*Zone) (store.Change, error)) error {
	return a.changeKey(func(z *Zone) (store.Change, error) {
		c, err := newChange(z)
		for _, b := range z.bansFor(nil) {
			c.Forget = append(c.Forget, b.ID)
		}
		return c, err
	})
}

// banKey begins a ban of a key. It replaces a ban that is in force.
func (a *OperatorRequest) banKey() (any, error) {
	if err := a.requireBan(); err != nil {
		return nil, err
	}
	var body struct {
		Duration *caddy.Duration `json:"duration"`
	}
	if a.Body != "" {
		if err := options.DecodeStrictly([]byte(a.Body), &body); err != nil {
			return nil, Error(http.StatusBadRequest,
				`the body: %w; write for example {"duration":"1h"}, or no body for the duration of the zone's bans`, err)
		}
	}
	duration := caddy.Duration(time.Duration(a.zones[0].Ban.Duration) * time.Microsecond)
	if body.Duration != nil {
		duration = *body.Duration
	}
	if err := a.Configuration.CheckBan(duration); err != nil {
		return nil, Error(http.StatusBadRequest, "%w", err)
	}
	err := a.changeKey(func(z *Zone) (store.Change, error) {
		return store.Change{Ban: z.bansFor(nil), BanFor: time.Duration(duration).Microseconds()}, nil
	})
	if i := slices.IndexFunc(a.zones, func(z *Zone) bool { return !z.Metrics.Disabled }); i >= 0 && err == nil {
		a.zones[i].Metrics.CountBan()
	}
	return nil, err
}

// requireBan rejects zones without the option ban.
func (a *OperatorRequest) requireBan() error {
	if z := a.zones[0]; z.Ban == nil {
		return Error(http.StatusConflict, "zone %q bans nobody: write for example ban 1h in it", z.Name)
	}
	return nil
}

// changeKey makes a change to the key in each store that keeps it. newChange returns the change
// for a zone.
func (a *OperatorRequest) changeKey(newChange func(*Zone) (store.Change, error)) error {
	type place struct {
		identity limiter.Identity
		store    store.Store
	}
	changed, changedIdentity := make(map[place]bool), make(map[limiter.Identity]bool)
	for _, z := range a.zones {
		at := place{z.Identity, z.Limiter.AuthoritativeStore()}
		if changed[at] {
			continue
		}
		c, err := newChange(z)
		if err == nil {
			c.Zone, c.Key = z.Name, z.ShortKey(a.key)
			if changedIdentity[z.Identity] { // the same Redis over other connections, with a cache of denials of its own
				c.Ban = nil
			}
			err = at.store.Change(a.Ctx, c)
		}
		if err != nil {
			return changeError(z, len(changed) > 0, err)
		}
		changed[at], changedIdentity[z.Identity] = true, true
	}
	return nil
}

// changeError returns the error for a failed change of a key; others reports whether other
// zones were changed before. A single Redis that already failed isn't asked, so nothing has
// changed there.
func changeError(z *Zone, others bool, err error) error {
	consequence := "the change may be missing, or made only in part"
	if b := z.Limiter.Backend; !others && b != nil && !b.IsCluster() && errors.Is(err, store.ErrOpen) {
		consequence = "nothing has changed"
	}
	return Error(http.StatusServiceUnavailable,
		"the store of zone %q fails (%w): %s; make the change again when the store works", z.Name, err, consequence)
}
