// Package store keeps the budgets of rate limits. It works in any Go program, and never knows Caddy or HTTP.
//
// [Store] is the interface of all stores. [Store.Take] decides and charges requests, and
// [Store.Correct] gives charges back. [Memory] is a store in this process; the package example limits
// an HTTP handler with it. Store and Cluster of package redisstore keep budgets in Redis, for many
// processes. Package algorithms has the limits, and their arithmetic without a store.
//
// Stores are safe for concurrent use, and exact under concurrency. Memory drops expired budgets only
// when [SharedMemory.Sweep] is called, or when it needs room. A long-lived program calls Sweep about
// once a minute.
//
// The other types wrap a Store. In Caddy, requests to Redis go through them from top to bottom.
// Failover is there with on_store_error local, and a cluster has a Breaker for each node:
//
//	Failover    decides by budgets of this process if the stores below fail
//	DenyCache   repeats a denial that certainly still stands
//	Breaker     fails at once while Redis doesn't work
//	redisstore  asks Redis
//
// Budgets in memory need no wrapper.
//
// Instants and durations are in microseconds ([algorithms.Micros]). Instants count from the Unix
// epoch.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Limit is a limit of a zone, together with the ID of its budgets. It is immutable.
type Limit struct {
	*algorithms.Limit
	// ID is "<zone>:<format version and hash>", made by [NewLimit]. Limits that must not share
	// budgets have different IDs.
	ID string
	// Share is the part of the limit that this instance allows while the store fails. For example,
	// each of 4 instances may allow 25 of 100 events. If Share is nil, the instance allows all of
	// the limit. See [Failover].
	Share *algorithms.Limit
}

// Slots bounds how many requests of a key are in flight in a zone. It is immutable.
type Slots struct {
	// ID names the zone. [SlotsID] makes it. The ID doesn't depend on Limit, because a changed
	// Limit frees no slot.
	ID string
	// Limit is the largest number of requests in flight. It is above 0.
	Limit int64
	// Share is the number of slots that this instance grants while the store fails, at most
	// Limit. 0 stands for Limit. See [Failover].
	Share int64
}

// Tenant is a user of the slots of a key, which shares them with others. While requests wait for slots, each free slot goes to the
// waiting tenant that holds the least for its weight. Requests with the zero Tenant count as those of one tenant.
type Tenant struct {
	// ID is a hash of the tenant, below 2^56. 0 means that the request has no tenant.
	ID uint64
	// Weight is from 1 to MaxWeight. All requests of a tenant should have the same.
	Weight int64
}

// MaxWeight is the largest Weight of a [Tenant].
const MaxWeight = 1000

// OtherTenants is the ID of tenants that count as one, because too many tenants use the slots of a key at once.
const OtherTenants uint64 = 1

// SlotLine says where a request stands among the requests of a key and tenant that wait for slots, or for reserved events. A
// shared store serves them in the order in which they came, over all its instances. A request gets a slot only if more are free
// than other requests wait whose turn comes before. The zero SlotLine stands for a request that has just come.
type SlotLine struct {
	// Waited is how long the request has waited.
	Waited algorithms.Micros
	// Waiting is the number of requests of this process and tenant that wait in its line, the request included, at most
	// MaxWaiting. The request is the first of them. 0 means that it stands in no line.
	Waiting int64
	// Marks tells how long four of the requests behind the first one have waited. For example, of 8 requests behind it,
	// these are number 1, 3, 5 and 7: see [MarkedAt]. So the store knows to a quarter how many came before another
	// request. It rounds up. Without requests behind the first one, Marks are 0.
	Marks [4]algorithms.Micros
}

// MaxWaiting is the largest Waiting of a [SlotLine]. A longer line describes only its beginning.
const MaxWaiting = 1024

// MarkedAt returns how many of the n requests behind the first one stand in front of the one with a mark, 0 to 3.
func MarkedAt(mark int, n int64) int64 { return n * int64(mark) / 4 }

// Equal reports whether two limits have the same budget, and judge by the same events and burst.
func (l Limit) Equal(other Limit) bool {
	return l.ID == other.ID && l.Events == other.Events && l.Burst == other.Burst
}

// Ban is the ban of a zone. It is immutable.
type Ban struct {
	*algorithms.Ban
	// ID names the zone. [BanID] makes it. The ID doesn't depend on the rest of the ban, because
	// changing a ban frees no key.
	ID string
}

// Override is the run-time override from which the Limits, Slots and Ban of a [ZoneRequest] were
// made. See [Change].
type Override struct {
	// Text is the text of the override. It is empty if the request was made without one.
	Text string
}

// formatVersion is part of the IDs of limits, slots and bans. Change it when stored values change their
// meaning, so that old and new instances never read each other's state.
const formatVersion = "5"

// NewLimits returns the limits of a zone, with their IDs. The ID of a limit depends on its fingerprint, and on its place among
// the limits with this fingerprint. So limits with other events or another burst keep the budgets. Limits of one zone
// that differ in variant, which may be empty, have separate budgets.
func NewLimits(zone, variant string, limits []*algorithms.Limit) []Limit {
	named := make([]Limit, len(limits))
	for i, l := range limits {
		hash, place := l.Fingerprint(), 0
		for _, before := range limits[:i] {
			if before.Fingerprint() == hash {
				place++
			}
		}
		if variant != "" || place > 0 { // a part of the hash, so that IDs don't grow
			sum := sha256.Sum256(fmt.Append(nil, hash, " ", place, " ", variant))
			hash = base64.RawURLEncoding.EncodeToString(sum[:8])
		}
		named[i] = Limit{Limit: l, ID: idOf(zone, formatVersion+hash, "")}
	}
	return named
}

// NewLimit returns the only limit of a zone, with its ID: see [NewLimits].
func NewLimit(zone, variant string, l *algorithms.Limit) Limit {
	return NewLimits(zone, variant, []*algorithms.Limit{l})[0]
}

// SlotsID returns the ID of the slots of a zone. Each variant has separate slots. A variant can be
// empty.
func SlotsID(zone, variant string) string { return idOf(zone, formatVersion+"c", variant) }

// ReservedID returns the ID of the reserved events of a zone. Each variant has separate ones. A variant can be empty.
func ReservedID(zone, variant string) string { return idOf(zone, formatVersion+"r", variant) }

// BanID returns the ID of the ban of a zone. Each variant has a separate ban. A variant can be
// empty.
func BanID(zone, variant string) string { return idOf(zone, formatVersion+"b", variant) }

// OverrideID returns the ID of the run-time overrides of a zone.
func OverrideID(zone string) string { return idOf(zone, "o", "") }

func idOf(zone, suffix, variant string) string {
	id := zone + ":" + suffix
	if variant != "" {
		id += ":" + variant
	}
	return id
}

// ZoneRequest is one HTTP request, as one zone evaluates it. The fields up to Shadow belong to the
// caller, and a store only reads them. A ZoneRequest must not be used by two calls at once.
type ZoneRequest struct {
	// Zone is the zone's name.
	Zone string
	// Key is the key of the budgets. The empty string is a key as any other.
	Key string
	// Limits are the zone's rate limits. Two of them have one ID only if the request is a Peek: then each one judges the
	// shared budget. Limits is empty if the request is only about Slots, a Ban or an Override.
	Limits []Limit
	// Slots bounds how many requests of the key can be in flight. If Slots is nil, the number has
	// no bound.
	Slots *Slots
	// Tenant is for whom the request takes one of the Slots. Memory doesn't read it: package lines has the turns of its requests.
	Tenant Tenant
	// ReservedID, if not empty, names the count of reserved events of the zone: [ReservedID] makes it. The charge of
	// the request is reserved until a Correction is Settled. Mode must be Binary, or [algorithms.Settle].
	ReservedID string
	// Ban bans the key after repeated denials. If Ban is nil, the zone never bans.
	Ban *Ban
	// Override, if not nil, makes Take look up the key's run-time override. If another
	// override is in force, Take decides nothing, charges nothing, and returns an
	// [OverriddenError].
	Override *Override
	// Mode decides requests that cost more than remains.
	Mode algorithms.Mode
	// Cost is the number of events that the request costs, 0 to 2^31-1. A request of cost 0
	// charges nothing. A request takes one slot at any cost.
	Cost int64
	// Peek makes Take decide as always, but change nothing: Take charges no limit, takes no
	// slot, and counts no denial for the ban. The Decisions show the budgets without this
	// request, and InFlight doesn't count it. Began reports whether the denial would begin a
	// ban. In mode [algorithms.Uniform] RetryAfter ignores that a denied request is charged.
	Peek bool
	// MaxWait is the longest delay of the request; see [algorithms.ZoneRequest].
	MaxWait algorithms.Micros
	// Shadow keeps the zone from denying anything; see [algorithms.ZoneRequest].
	Shadow bool
	// Line says where the request stands among those that wait for Slots, or with WaitsForReserved for reserved events.
	// Memory doesn't read it.
	Line             SlotLine
	WaitsForReserved bool
	// Outcome is filled in by Take.
	Outcome Outcome
}

// Outcome is the decision of a zone about a request.
type Outcome struct {
	// Verdict is the zone's own verdict. A zone in shadow mode denies nothing, even if its
	// verdict is Denied. A zone whose verdict is Allowed charges nothing if another zone
	// denies the request.
	Verdict Verdict
	// Cached reports whether the verdict is Denied or Banned and comes from a [DenyCache].
	// If so, only the Decisions or the Ban that deny the request have a meaning.
	Cached bool
	// Local reports whether budgets of this process decided, because the store failed. See
	// [Failover].
	Local bool
	// At is the instant of the decision, by the clock of the store that decided. If Cached is true,
	// it is about when the DenyCache answered, by the clock of the store behind it.
	At algorithms.Micros
	// Decisions has one decision per limit, in the order of Limits. Take appends them to
	// Decisions[:0], so the memory is reused.
	Decisions []algorithms.Decision
	Slots     SlotsOutcome
	Reserved  ReservedOutcome
	Ban       BanOutcome
}

// SetVerdict sets Verdict to the verdict that follows from Decisions, Slots and Ban.
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

// Verdict is the verdict of one zone about a request.
type Verdict uint8

// The verdicts. NotAsked is the zero Verdict.
const (
	// NotAsked means that another zone certainly denies the request, so this zone decided
	// nothing.
	NotAsked Verdict = iota
	// Allowed means that the zone has room. A request that must be delayed first is allowed, too.
	Allowed
	// Denied means that a limit has no room, or none besides what is reserved, or that no slot is free.
	Denied
	// Banned means that the key is banned. The limits and slots then charge nothing.
	Banned
)

// SlotsOutcome is the outcome of [Slots].
type SlotsOutcome struct {
	// Free reports whether a slot was free. Free is true for requests without Slots.
	Free bool
	// Taken reports whether the request took a slot. [Store.Correct] gives the slot back.
	Taken bool
	// InFlight is the number of requests of the key that hold a slot. It counts this request
	// if Taken is true.
	InFlight int64
	// Overflow reports whether the slot belongs to all keys for which a store had no room. Only
	// stores read Overflow.
	Overflow bool
}

// ReservedOutcome is about the reserved events of a key in a zone: the charges of requests that have not settled.
type ReservedOutcome struct {
	// Events is their number, those of this request included. Added is how many this request has reserved.
	Events, Added int64
	// Overflow reports whether they are of all keys for which a store had no room. Only stores read Overflow.
	Overflow bool
}

// BanOutcome is the outcome of a [Ban].
type BanOutcome struct {
	// Stands reports whether the key was banned before the request.
	Stands bool
	// Began reports whether the denial of this request began a ban.
	Began bool
	// EndsAfter is how long until the ban ends. It is 0 if there is no ban.
	EndsAfter algorithms.Micros
}

// Correction changes the charge of a request that Take has decided: it gives events or a slot back,
// or charges more events. A Correction with only a Request does nothing.
type Correction struct {
	// Request is the request as Take left it, because its Outcome holds the receipts. The store
	// doesn't read Request after Correct has returned.
	Request *ZoneRequest
	// Refund is the number of events to give back to each limit, at most as many as the limit
	// was charged; see [algorithms.Refund].
	Refund int64
	// Charge is the number of events to charge to each limit in addition, in mode [algorithms.Settle]. This charge can't be
	// given back.
	Charge int64
	// Charged, if not nil, makes Charge a request also if it is 0. It is called with
	// the decisions, one for each limit, when the correction is made.
	Charged func([]algorithms.Decision)
	// Leave gives back the slot that the request took, if any, because the request has ended.
	Leave bool
	// Settled says that the charge of the request, with this correction, is final. So nothing is reserved for it any more.
	Settled bool
}

// Charges reports whether the correction charges anything, or wants the decisions.
func (c *Correction) Charges() bool { return c.Charge > 0 || c.Charged != nil }

// Corrects reports whether the correction does anything.
func (c *Correction) Corrects() bool { return c.Leave || c.Refund > 0 || c.Charges() || c.Releases() }

// ChargeRequest returns the request that makes the Charge. It looks at what is reserved only for calendars, which claim
// what is used.
func (c *Correction) ChargeRequest() ZoneRequest {
	r := ZoneRequest{Zone: c.Request.Zone, Key: c.Request.Key, Limits: c.Request.Limits, Mode: algorithms.Settle, Cost: c.Charge}
	if slices.ContainsFunc(r.Limits, func(l Limit) bool { return l.Algorithm().Calendar }) {
		r.ReservedID = c.Request.ReservedID
	}
	return r
}

// Releases reports whether the correction ends a reservation.
func (c *Correction) Releases() bool { return c.Settled && c.Request.Outcome.Reserved.Added > 0 }

// FullRefunds returns corrections that give back all charges and slots of requests.
func FullRefunds(requests []ZoneRequest) []Correction {
	corrections := make([]Correction, len(requests))
	for i := range requests {
		corrections[i] = Correction{Request: &requests[i], Refund: algorithms.Forever, Leave: true, Settled: true}
	}
	return corrections
}

// Store keeps budgets, slots, bans and run-time overrides. All methods are safe for concurrent use.
type Store interface {
	// Take decides one HTTP request, of which each element of requests is the part of one zone. It
	// decides every limit, slot and ban of all of them at one instant, by the clock of the store. It
	// fills in the Outcomes, and reports whether all zones except shadows have
	// room. If so, Take charges all limits and takes all slots. Otherwise Take charges and
	// takes nothing, except in mode [algorithms.Uniform].
	//
	// No two of the requests may have a limit, slots or a ban of the same key in common.
	//
	// A budget that was never charged, or whose ResetAfter has passed, decides like an
	// untouched one.
	//
	// After an error the Outcomes have no meaning. Unless the error says otherwise, it is
	// unknown whether Take has charged anything, so the call must not be repeated.
	Take(ctx context.Context, requests []ZoneRequest) (allowed bool, err error)

	// Correct makes each correction at most once. A later Take of the same key through the
	// same store finds the correction made. Correct doesn't wait for a remote store.
	//
	// Correct calls failed, if not nil, for every failure after which corrections may be lost.
	// Lost corrections must not be repeated.
	Correct(corrections []Correction, failed func(error))

	// CountSlots counts slots that another store has granted to requests, without regard to the limit. A remote
	// store notes them for its next message.
	CountSlots(requests []ZoneRequest)

	// Change makes an operator's change. After an error it is unknown how much of the change
	// is made. Change may be called again with the same change.
	Change(ctx context.Context, c Change) error

	// List returns a page of the bans or overrides in force. It does a bounded amount of work.
	// Requests don't wait for it.
	List(ctx context.Context, l Listing) (Page, error)
}

// Error is an error of a store that could not decide.
type Error struct {
	// Reason is one of the Reason constants. It is a short word, which fits into a metric.
	Reason string
	Err    error
}

// Reasons of an [Error].
const (
	// ReasonTimeout means that there was no answer in time. The request may have been charged.
	ReasonTimeout = "timeout"
	// ReasonSilent means that the store answered no request in time, while this request waited to
	// be sent. Nothing was charged.
	ReasonSilent = "silent"
	// ReasonBusy means that the store answers, but that this request waited too long to be
	// sent. Nothing was charged. This is no failure of the store.
	ReasonBusy = "busy"
	// ReasonConnection means that there was no connection to the store, or that the connection
	// broke.
	ReasonConnection = "connection"
	// ReasonPermission means that the store's user lacks a permission. The request may have
	// been charged in part.
	ReasonPermission = "permission"
	// ReasonReply means that the store answered with an error or with something unexpected.
	ReasonReply = "reply"
	// ReasonKey means that the stored value of a key is not a budget, or that a request has too many
	// zones or limits for one call. Other requests work.
	ReasonKey = "key"
	// ReasonOpen means that the store has failed before and was not asked; see [Breaker].
	ReasonOpen = "open"
)

func (e *Error) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }
