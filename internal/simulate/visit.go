// Package simulate replays logged requests through the limits of a configuration, in the time of the
// log, and says who would have been denied. It never asks a running Caddy, and never changes its budgets.
package simulate

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Configuration is the part of a Caddy configuration that limits requests.
type Configuration interface {
	// Zones returns the zones, sorted by name.
	Zones() []Zone

	// Visit leads a request through the routes, as if every rate_limit handler passed it on. It
	// changes no budget. It is safe for concurrent use. The Visit doesn't refer to the memory of r.
	Visit(r *accesslog.Request) (*Visit, error)

	// Notes returns the assumptions of the simulation, and the changes to the log that would make it more
	// exact. It is called after all Visits.
	Notes() []string

	// LeftOut returns the zones that the log says too little about. It is called after all Visits.
	LeftOut() []report.LeftOut

	// ShownKey returns a key of a zone as operators see it: cut, or its HMAC with hash_keys.
	ShownKey(zone int, key string) string

	// MaxKeys returns how many keys the store in memory holds, by the configuration.
	MaxKeys() int64
}

// Zone is a zone of a configuration.
type Zone struct {
	Name   string
	Key    []string // as in a Caddyfile; several keys are alternatives; empty if all requests share one key
	Shadow bool     // the zone never denies
	// Sets are the limits of the zone: those of all keys first, then those of the plans, then those of
	// the overrides.
	Sets        []LimitSet
	Concurrency int64
	// MaxDelay is the longest delay of a request, and Places bounds the requests that are delayed at the
	// same time. MaxDelay is 0 if the zone delays no requests.
	MaxDelay algorithms.Micros
	// MaxReserved is the longest wait of a request for reserved events. 0 if it waits for none.
	MaxReserved algorithms.Micros
	Places      int64
	// SingleKey reports whether all requests of the zone have the same key.
	SingleKey bool
	HasBan    bool
	// RefundsDenied reports whether settle gives back the charge of a request that a later handler denies
	// with status 429.
	RefundsDenied bool
	// VariesBurst reports whether the option factor divides bursts differently for each request.
	VariesBurst bool
}

// LimitSet is the limits of some keys of a zone.
type LimitSet struct {
	Name   string // empty for the limits of all keys, "plan gold" or "override 203.0.113.7"
	Limits []*algorithms.Limit
	Open   bool // limits are to be proposed from nothing
}

// Visit is a logged request, and the rate_limit handlers that it meets.
type Visit struct {
	// Number is the number of the request in the order of decisions. The Visits of a request in two
	// configurations have the same Number; see [Comparer].
	Number     int64
	Start, End algorithms.Micros
	Instant    algorithms.Micros // as [accesslog.Request.Instant]
	Client     string            // the address of the client
	UserAgent  string            // at most 64 bytes of it
	// WasDenied reports whether a rate limit denied the request when it was logged. Then its response
	// says nothing about its true cost or duration.
	WasDenied bool
	Handlers  []HandlerVisit
}

// HandlerVisit is a request in one rate_limit handler. The handler decides the request by one call of
// the store.
type HandlerVisit struct {
	Requests []store.ZoneRequest // one for each zone that limits the request
	Zones    []ZoneVisit         // with the same indexes
}

// ZoneVisit has the facts about a request in a zone that [store.ZoneRequest] lacks.
type ZoneVisit struct {
	Zone    int  // the index in [Configuration.Zones]
	Set     int  // the index of the request's limits in [Zone.Sets]
	BanOnly bool // the request doesn't belong to the zone, but its ban denies the request
	// Settled reports whether the response tells the true cost of the request, which is TrueCost.
	Settled  bool
	TrueCost int64
	Hold     algorithms.Micros // for how long the response bans the key, or 0
}
