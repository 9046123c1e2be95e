// Package store says what a store of budgets is, and holds every store that
// needs no network.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Limit is a limit of a zone: the arithmetic, and the name its budgets are kept
// under. It is immutable.
type Limit struct {
	*algorithms.Limit
	// ID names the zone and the limit, and differs where two limits must not
	// share budgets: "<zone>:<format version and a hash>". [NewLimit] makes it.
	ID string
	// Share is the share of the limit that an instance grants while the store fails. If Part is
	// nil, the instance grants all of the limit. See [Failover].
	Share *algorithms.Limit
}

// Slots bounds how many requests of a key are in flight in a zone. It is immutable.
type Slots struct {
	// ID names the zone. It is the same for every Limit, because a changed limit frees no
	// slot. [SlotsID] makes it.
	ID string
	// Limit is how many requests may be in flight; above 0.
	Limit int64
	// Share is how many slots an instance grants while the store fails, at most Limit; 0 stands
	// for all. See [Failover].
	Share int64
}

// Ban is the ban of a zone. It is immutable.
type Ban struct {
	*algorithms.Ban
	// ID names the zone. It is the same for every ban, because a changed ban frees no key.
	// [BanID] makes it.
	ID string
}

// Override names the run-time override that the Limits, Slots and Ban of a [Request] were made
// from. See [Change].
type Override struct {
	// Text is the text of the override, or empty if none is in force.
	Text string
}

// formatVersion is part of every ID. Change it when what is stored changes its
// meaning, so that old and new instances never read each other's state.
const formatVersion = "3"

// NewLimit names a limit of a zone. Two limits of one zone that differ in
// variant (may be empty) keep separate budgets.
func NewLimit(zone, variant string, l *algorithms.Limit) Limit {
	hash := l.Fingerprint()
	if variant != "" { // hashed in, so that the names of budgets don't grow
		sum := sha256.Sum256([]byte(hash + " " + variant))
		hash = base64.RawURLEncoding.EncodeToString(sum[:8])
	}
	return Limit{Limit: l, ID: named(zone, formatVersion+hash, "")}
}

// SlotsID returns the ID of the slots of a zone. Keys of different variants (may be empty)
// have slots of their own.
func SlotsID(zone, variant string) string { return named(zone, formatVersion+"c", variant) }

// BanID returns the ID of the ban of a zone. Keys of different variants (may be empty) are
// banned separately.
func BanID(zone, variant string) string { return named(zone, "b", variant) }

// OverrideID returns the ID of the run-time overrides of a zone.
func OverrideID(zone string) string { return named(zone, "o", "") }

func named(zone, what, variant string) string {
	id := zone + ":" + what
	if variant != "" {
		id += ":" + variant
	}
	return id
}

// Request asks one zone about one HTTP request.
type Request struct {
	// Zone is the zone's name.
	Zone string
	// Key is the key of the budgets. Every string is a key of its own, also the empty string.
	Key string
	// Limits are the zone's rate limits. No two have the same ID. Limits is empty if the
	// request is only about Slots, a Ban or an Override.
	Limits []Limit
	// Slots bounds how many requests of the key may be in flight; nil is no bound.
	Slots *Slots
	// Ban bans the key after repeated denials. If it is nil, the zone never bans.
	Ban *Ban
	// Override, if not nil, makes Take look up the key's run-time override. If another
	// override is in force, Take decides nothing, charges nothing, and returns an
	// [OverriddenError].
	Override *Override
	// Mode says what the zone grants at the edge of its limits.
	Mode algorithms.Mode
	// Cost is how many events the request is worth, 0 to 2^31-1. With 0 the request charges
	// nothing. It takes a slot at any cost.
	Cost int64
	// Peek makes Take decide as always, but change nothing: it charges no limit, takes no slot
	// and counts no denial for the ban. It goes with Cost 0. The Outcome shows the state as it
	// is; InFlight doesn't count this request.
	Peek bool
	// MaxWait is how long the request may be held, in microseconds; see [algorithms.Request].
	MaxWait algorithms.Micros
	// Shadow makes the zone deny nothing; see [algorithms.Request].
	Shadow bool
	// Outcome is filled in by Take.
	Outcome Outcome
}

// Outcome is the decision of a zone about a request.
type Outcome struct {
	// Verdict is the zone's own verdict. A shadow with Denied denies nothing. A zone with
	// Allowed is not charged if another zone denies the request.
	Verdict Verdict
	// Cached reports whether the verdict is Denied or Banned and comes from a [DenyCache].
	// If so, only the Decisions and the Ban that deny the request have a meaning.
	Cached bool
	// Local reports whether the store failed, and local budgets decided. See [Failover].
	Local bool
	// Decisions has one decision per limit, in the order of Limits. Take appends to
	// Decisions[:0], so its memory is reused.
	Decisions []algorithms.Decision
	Slots     SlotsOutcome
	Ban       BanOutcome
}

// SetVerdict computes the Verdict from the Decisions, the Slots and the Ban.
func (o *Outcome) SetVerdict() {
	switch {
	case o.Ban.Stands:
		o.Verdict = Banned
	case !o.Slots.Free || slices.ContainsFunc(o.Decisions, func(d algorithms.Decision) bool { return !d.Allowed }):
		o.Verdict = Denied
	default:
		o.Verdict = Allowed
	}
}

// Verdict is the opinion of one zone about a request.
type Verdict uint8

// The verdicts. NotAsked is the zero Verdict.
const (
	// NotAsked: another zone was known to deny the request, so this one was not asked.
	NotAsked Verdict = iota
	// Allowed: the zone has room. A request that must be held first is allowed, too.
	Allowed
	// Denied: a limit has no room, or no slot is free.
	Denied
	// Banned: the key is banned, and nothing else was asked.
	Banned
)

// SlotsOutcome is the outcome of [Slots].
type SlotsOutcome struct {
	// Free reports whether a slot was free. Without Slots it is true.
	Free bool
	// Taken reports whether the request holds a slot. Give it back with [Store.Correct].
	Taken bool
	// InFlight is how many requests of the key hold a slot, with this one if Taken.
	InFlight int64
	// Shared reports whether the slots are shared by all keys that a store has no room for.
	// Only stores read it.
	Shared bool
}

// BanOutcome is the outcome of a [Ban].
type BanOutcome struct {
	// Stands reports whether the key was banned before the request.
	Stands bool
	// Began reports whether the denial of the request began a ban.
	Began bool
	// EndsAfter is how long until the ban ends; 0 if none stands or began.
	EndsAfter algorithms.Micros
}

// Correction gives back what a request that Take allowed was charged, or charges the request in
// addition, for example because of its response. The zero Correction does nothing.
type Correction struct {
	// Request is as Take left it: its Outcome holds the receipts. The store doesn't read it
	// after Correct has returned.
	Request *Request
	// Refund is how many events each limit is given back, but at most as many as it was
	// charged.
	// [algorithms.Refund] says how much that changes.
	Refund int64
	// Charge is how many events each limit is charged in addition, as far as there is room,
	// as in mode [algorithms.Force]. This charge can't be given back.
	Charge int64
	// Leave gives back the slot, if the request took one, because the request has ended.
	Leave bool
}

// Store keeps budgets. All methods are safe for concurrent use.
type Store interface {
	// Take decides every limit, slot and ban of every request on one instant. If all zones
	// except shadows have room, it charges all limits and takes all slots. Otherwise it charges
	// and takes nothing, except in mode [algorithms.Uniform]. It fills in the Outcomes, and
	// reports whether all zones except shadows had room.
	//
	// No two requests of one call may have budgets in common.
	//
	// A budget never charged, or whose reset-after has passed, decides like an
	// untouched one. The clock is the store's own.
	//
	// After an error the Outcomes mean nothing and, unless the error says
	// otherwise, it is not known whether anything was charged: don't repeat
	// the call.
	Take(ctx context.Context, requests []Request) (allowed bool, err error)

	// Correct makes corrections, each at most once, to the budgets that Take charged. A
	// later Take of the same key through the same store finds them made. Correct doesn't wait
	// for a remote store. failed, if not nil, is called for every failure after which
	// corrections may be lost. Lost corrections must not be repeated.
	Correct(corrections []Correction, failed func(error))

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
	// ReasonSilent: no reply to any request came in time, while this request waited to be
	// sent. Nothing was charged.
	ReasonSilent = "silent"
	// ReasonBusy: the store answers, but the request has waited too long to be sent. Nothing
	// was charged. This is no failure of the store.
	ReasonBusy = "busy"
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
