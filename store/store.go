// Package store says what a store of budgets is, and holds every store that
// needs no network.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/base64"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Limit is a limit of a zone: the arithmetic, and the name its budgets are kept
// under. It is immutable.
type Limit struct {
	*algorithms.Limit
	// ID names the zone and the limit, and differs where two limits must not
	// share budgets: "<zone>:<format version and a hash>". [NewLimit] makes it.
	ID string
	// Part is what of the limit an instance grants that is on its own; nil stands
	// for all of it. See [Failover].
	Part *algorithms.Limit
}

// formatVersion is part of every ID. Change it when what is stored changes its
// meaning, so that old and new instances never read each other's state.
const formatVersion = "2"

// NewLimit names a limit of a zone. Two limits of one zone that differ in
// variant (may be empty) keep separate budgets.
func NewLimit(zone, variant string, l *algorithms.Limit) Limit {
	hash := l.Fingerprint()
	if variant != "" { // hashed in, so that the names of budgets don't grow
		sum := sha256.Sum256([]byte(hash + " " + variant))
		hash = base64.RawURLEncoding.EncodeToString(sum[:8])
	}
	return named(zone, formatVersion+hash, "", l)
}

// NewSlots names a limit of how many requests of a zone are under way at the same time.
// Its budgets are the same ones when the limit changes: the requests still are under way.
func NewSlots(zone, variant string, l *algorithms.Limit) Limit { return named(zone, "c", variant, l) }

// NewBan names the ban of a zone. The name says nothing of limits, so that nobody is free
// because they have changed.
func NewBan(zone, variant string, l *algorithms.Limit) Limit { return named(zone, "b", variant, l) }

func named(zone, what, variant string, l *algorithms.Limit) Limit {
	id := zone + ":" + what
	if variant != "" {
		id += ":" + variant
	}
	return Limit{Limit: l, ID: id}
}

// Request asks one zone about one HTTP request.
type Request struct {
	// Zone is the zone's name.
	Zone string
	// Key is whose budget it is. Every string is a key of its own, the empty one too.
	Key string
	// Limits are the zone's limits, no two with the same ID; at least one, unless there is
	// an Override. Its ban, if it has one, is the last and not the only one.
	Limits []Limit
	// Overridable tells that an operator may give the key other limits than its zone's at
	// run time; see [Change]. Override is what the Limits were made from, empty for the
	// zone's own. If another one is in force, Take decides nothing, charges nothing, and
	// fails with an [OverriddenError].
	Overridable bool
	Override    string
	// Mode is what the zone grants at the edge of its limits.
	Mode algorithms.Mode
	// Cost is how many events the request is worth, 0 to 2^31-1. 0 only looks.
	Cost int64
	// MaxWait is how long the request may be held if it doesn't fit now; see
	// [algorithms.Request].
	MaxWait algorithms.Micros
	// Shadow zones only watch; see [algorithms.Request].
	Shadow bool
	// Fleeting tells that a refusal can end at any moment, so that it is of no use to
	// remember it.
	Fleeting bool
	// Local reports whether the request adds to one that local budgets were charged for.
	// A [Failover] then charges these again. No other store reads it.
	Local bool
	// Decisions receives an answer per limit, in their order. Take appends to
	// Decisions[:0], so its memory is used again.
	Decisions []algorithms.Decision
}

// Store keeps budgets. All methods are safe for concurrent use.
type Store interface {
	// Take decides every limit of every request on one instant, charges all of
	// them or, if one has no room, none (but see [algorithms.Mode]), and fills
	// in the Decisions. It reports whether all had room, shadows apart.
	//
	// No two requests of one call may have budgets in common.
	//
	// A budget never charged, or whose reset-after has passed, decides like an
	// untouched one. The clock is the store's own.
	//
	// After an error the Decisions mean nothing and, unless the error says
	// otherwise, it is not known whether anything was charged: don't repeat
	// the call. The store may still be reading the requests, except their
	// Decisions: don't change them any more.
	Take(ctx context.Context, requests []Request) (allowed bool, err error)

	// Refund gives back n events, or as many as were charged, to every limit of
	// every request, which are as Take left them: their Decisions are the
	// receipt. [algorithms.Refund] says how much that changes. Call it once at most
	// for what one Take has charged.
	//
	// After an error it is not known whether anything was given back: don't
	// repeat the call.
	Refund(ctx context.Context, requests []Request, n int64) error

	// Renew gives back what every limit of every request was charged, and charges it
	// anew as of now, both in one step: as far as there is room, as in mode
	// [algorithms.Force]. The requests are as Take or Renew left them, and any number of
	// them may be of the same budget. What was charged now, and the receipt for it, is
	// noted in their Decisions; the rest of these stays as it was.
	//
	// After an error, too, requests with a new receipt are renewed. Of the others it is
	// not known whether they are.
	Renew(ctx context.Context, requests []Request) error

	// Change makes a change at an operator's wish. After an error it is not known how much
	// of it is made; it may be asked for again.
	Change(ctx context.Context, c Change) error
}

// Error is a failure of a store to decide.
type Error struct {
	// Reason is one of the Reason constants: a short word, fit for a metric.
	Reason string
	Err    error
}

// Reasons of an [Error].
const (
	// ReasonTimeout: no answer in time. Whether something was charged is not known.
	ReasonTimeout = "timeout"
	// ReasonConnection: the store could not be reached, or the connection broke.
	ReasonConnection = "connection"
	// ReasonPermission: the store refuses what it needs to be asked, to this user. What
	// it did before it came to that may have been charged.
	ReasonPermission = "permission"
	// ReasonReply: the store answered with an error, or with something unexpected.
	ReasonReply = "reply"
	// ReasonKey: what is stored under a key is no budget; other keys are well.
	ReasonKey = "key"
	// ReasonOpen: the store has failed before and wasn't asked; see [Breaker].
	ReasonOpen = "open"
)

func (e *Error) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }
