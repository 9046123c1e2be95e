package limiter

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Zone is a zone of a limiter, compiled from the Zone of a configuration. Requests only read it, except for fields that
// have a lock or are atomic.
type Zone struct {
	Name     string
	Identity Identity // on which zones of this name must agree
	Logger   *zap.Logger

	// The requests of the zone, and their keys.
	Matchers caddyhttp.MatcherSets // of requests that belong to the zone; none: all do
	Exempt   caddyhttp.MatcherSets // of requests that pass the zone unlimited
	Keys     []keys.Template       // the alternatives, at least one
	Enforce  float64               // the share of keys whose requests can be denied, in percent

	// The limits of a key.
	*LimitSets                      // of the configuration
	RuntimeOverrides bool           // the store can have overrides, too
	KnownOverrides   KnownOverrides // the ones that this instance has found there
	// CompileOverride compiles a run-time override from the form that a store keeps. until is when the override ends,
	// also if it can't be compiled; zero means never.
	CompileOverride func(text string) (set *LimitSet, until time.Time, err error)
	Ban             *algorithms.Ban // without the window of limits; nil: no key is banned
	Hold            *HoldPolicy     // nil: no response bans a key
	BanLookup       *LimitSet       // the ban alone, for requests of other zones; nil: none is looked up
	Concurrency     int64           // as configured for the zone; 0: any number of requests may be in flight
	Share           *SharePolicy    // with Concurrency and Delay; nil: requests have no tenants

	// The charge of a request.
	Mode      algorithms.Mode
	Cost      *cost.Sum          // nil if it doesn't vary
	FixedCost int64              // in events, of every request, if Cost is nil
	Factor    string             // 0, or text with placeholders; otherwise empty, because the limit sets have the factor
	Delay     *lines.DelayPolicy // nil: no request is delayed
	Settle    *SettlePolicy      // nil: charges stay

	// The bodies of requests.
	BodyNeeds  BodyNeeds
	BodyPolicy bodies.Policy

	// For operators and clients.
	Notify     []int64 // the shares of calendars that are reported, in percent
	Status     int     // of responses to denied requests
	Hidden     bool    // clients don't see the budgets in header fields and problem documents
	Metrics    telemetry.ZoneMetrics
	DeniedKeys *denials.TopKeys // of all zones with this name
	HashSecret string           // as in the limiter
	*KeyWarnings
}

// SharePolicy is the compiled option share.
type SharePolicy struct {
	By     keys.Template
	Weight *cost.Sum
}

// TenantOf returns the tenant of a request, and its name.
func (p *SharePolicy) TenantOf(repl *caddy.Replacer, secret string) (t store.Tenant, name string) {
	name, _ = p.By.Expand(repl)
	name, _ = p.By.Normalize(name)
	weight, _ := p.Weight.Of(func(placeholder string) string { return repl.ReplaceAll(placeholder, "") })
	return wire.NewTenant(secret, name, weight), name
}

// Identity holds the settings and the store on which zones of one name must agree, as text.
type Identity struct{ Settings, Store string }

// exempts reports whether a request passes the zone unlimited.
func (z *Zone) exempts(r *http.Request) (bool, error) {
	if len(z.Exempt) == 0 {
		return false, nil
	}
	return z.Exempt.AnyMatchWithError(r)
}

// Enforces reports whether the zone can deny requests of a key. The answer is the same in all
// instances and after restarts. A larger share adds keys and drops none.
func (z *Zone) Enforces(key string) bool {
	switch z.Enforce {
	case 0:
		return false
	case 100:
		return true
	}
	sum := sha256.Sum256([]byte(z.Name + "\x00" + key))
	const steps = 1 << 53 // a float64 holds integers up to this one exactly
	return float64(binary.BigEndian.Uint64(sum[:])%steps)/steps*100 < z.Enforce
}

// StoreErrorPolicy is the compiled option on_store_error.
type StoreErrorPolicy struct {
	Mode     string // local, allow or deny
	Num, Den int64  // the share of local budgets is Num/Den
}

// SlotShare returns how many of n slots the local budgets grant: the share, but at least 1.
func (p StoreErrorPolicy) SlotShare(n int64) int64 { return max(n*p.Num/p.Den, 1) }
