// Package wiretest reads the messages and the replies of package wire, for tests and for the audit of all script calls.
// It never writes one.
package wiretest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The kinds of operations; see operations.lua.
const (
	kindTake   = 1
	kindRefund = 2
	kindSet    = 3
)

// Operation is an operation of a message that was read: a take, a set, or a refund, which can have a release.
type Operation struct {
	Take    *Take
	Refund  []Refund // one per budget
	Release *Release
	Set     *Set
}

// Take is a take, or a charge: a take in mode [algorithms.Force] or [algorithms.Settle].
type Take struct {
	// Overrides are the expected overrides. The message does not name their zones.
	Overrides []Override
	Zones     []Zone
}

// Override is an expected override. Name is the name of its key.
type Override struct{ Name, Text string }

// Zone is one zone of a take.
type Zone struct {
	Mode    algorithms.Mode
	Shadow  bool
	Peek    bool
	Cost    int64
	MaxWait algorithms.Micros
	Budgets []Budget
	// Slots is the name of the slots, or empty if the zone has none. SlotsLimit is their limit.
	Slots      string
	SlotsLimit int64
	Tenant     store.Tenant
	Line       store.SlotLine
	// Reserved is the name of the reserved events, or empty if the zone has none.
	Reserved     string
	ReservedLine store.SlotLine
	// BanName is the name of the ban, or empty if the zone has none.
	BanName string
	Ban     algorithms.Ban
}

// Budget is the name of a budget, and its limit and burst as [algorithms.Limit.Message] has them.
type Budget struct {
	Name, Limit string
	Burst       int64
	Log         bool // see [algorithms.Algorithm.IsLog]
}

// Refund gives events back to a budget.
type Refund struct {
	Budget
	Receipt algorithms.Receipt
	Events  int64
}

// Release subtracts events from this instance's count of reserved events.
type Release struct {
	Name   string
	Events int64
}

// Set sets this instance's count in the slots of a name.
type Set struct {
	Name     string
	Tenant   uint64
	Count    int64
	EndsLine bool
}

// Requests returns requests into which [wire.Reply.Take] can read the reply to the take. limitOf returns the limits
// of budgets. The first requests have the Overrides, in order.
func (t *Take) Requests(limitOf func(Budget) *algorithms.Limit) []store.ZoneRequest {
	requests := make([]store.ZoneRequest, len(t.Zones))
	for i, z := range t.Zones {
		r := &requests[i]
		r.Mode, r.Shadow, r.Cost, r.MaxWait, r.Peek = z.Mode, z.Shadow, z.Cost, z.MaxWait, z.Peek
		for _, b := range z.Budgets {
			r.Limits = append(r.Limits, store.Limit{Limit: limitOf(b)})
		}
		if z.Slots != "" {
			r.Slots, r.Tenant, r.Line = &store.Slots{Limit: z.SlotsLimit}, z.Tenant, z.Line
		}
		if r.ReservedID = z.Reserved; z.Reserved != "" && (z.Slots == "" || z.ReservedLine.Waiting > 0) {
			r.Line, r.WaitsForReserved = z.ReservedLine, true
		}
		if z.BanName != "" {
			r.Ban = &store.Ban{Ban: &z.Ban}
		}
		if i < len(t.Overrides) {
			r.Override = &store.Override{Text: t.Overrides[i].Text}
		}
	}
	return requests
}

// Names returns the names of all keys of an operation.
func (o *Operation) Names() (names []string) {
	if o.Set != nil {
		return []string{o.Set.Name}
	}
	for _, r := range o.Refund {
		names = append(names, r.Name)
	}
	if o.Release != nil {
		names = append(names, o.Release.Name)
	}
	if o.Take == nil {
		return names
	}
	for _, override := range o.Take.Overrides {
		names = append(names, override.Name)
	}
	for _, z := range o.Take.Zones {
		for _, b := range z.Budgets {
			names = append(names, b.Name)
		}
		names = append(names, z.Slots, z.Reserved, z.BanName)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// limitKind describes the limits of an algorithm in messages.
type limitKind struct {
	size       int // of a limit
	warmUpSize int // of a limit that has a warm-up
	log        bool
}

// warmUpAt is the position of the warm-up in a limit whose algorithm has one.
const warmUpAt = 1 + 7*8

// limitKinds returns the kinds of limits by the numbers of their algorithms.
var limitKinds = sync.OnceValue(func() map[byte]limitKind {
	kinds := make(map[byte]limitKind)
	message := func(name string, warmUp algorithms.Micros) string {
		q := algorithms.Quota{Algorithm: name, Events: 1, Window: 1_000_000, WarmUp: warmUp}
		if a, _ := algorithms.Lookup(name); a.Calendar {
			q.Window, q.Period = 0, "day"
		}
		l, err := algorithms.NewLimit(q)
		if err != nil {
			panic(err)
		}
		text, _ := l.Message(0)
		return text
	}
	for _, a := range algorithms.All() {
		m := message(a.Name, 0)
		kind := limitKind{size: len(m), log: a.IsLog()}
		if a.Takes("warm_up") {
			kind.warmUpSize = len(message(a.Name, 1_000_000))
		}
		kinds[m[0]] = kind
	}
	return kinds
})

// ReadMessage reads a message: the keys and the argument of a script call. It returns an error for
// anything that a [wire.Message] never writes.
func ReadMessage(keys []string, argument string) (wire.Head, []Operation, error) {
	r := &reader{rest: argument}
	h := wire.Head{Now: r.number(), NotBefore: r.number(), NotAfter: r.number()}
	copy(h.Instance[:], r.next(len(h.Instance)))
	h.SlotsExpiry = r.number()
	logs := int(r.uint(2))
	if logs > len(keys) {
		r.fail("has %d keys of logs among %d keys", logs, len(keys))
		logs = len(keys)
	}
	r.strings, r.logs = keys[:len(keys)-logs], keys[len(keys)-logs:]
	size := r.uint(4)
	if uint64(size) > uint64(len(r.rest)) {
		r.fail("has operations of %d bytes, but ends before", size)
		size = 0
	}
	var operations []Operation
	body := &reader{rest: r.rest[:size], strings: r.strings, logs: r.logs, err: r.err}
	body.readLimits(r.rest[size:])
	for r = body; r.err == nil && len(r.rest) > 0; {
		operations = append(operations, r.operation())
	}
	if len(r.strings)+len(r.logs) > 0 {
		r.fail("has %d keys too many", len(r.strings)+len(r.logs))
	}
	if r.err != nil {
		return wire.Head{}, nil, r.err
	}
	return h, operations, nil
}

// ReadReply reads the head of a reply.
func ReadReply(text string) (*wire.Reply, error) {
	r := new(wire.Reply)
	return r, r.Read(text)
}

// reader reads a message. After an error it reads zeros.
type reader struct {
	rest          string
	strings, logs []string          // keys
	limits        map[uint32]Budget // without names and bursts, by position
	err           error
}

// readLimits reads the limits that follow the operations.
func (r *reader) readLimits(text string) {
	following := &reader{rest: text, err: r.err}
	r.limits = make(map[uint32]Budget)
	for following.err == nil && len(following.rest) > 0 {
		at := uint32(len(text) - len(following.rest))
		r.limits[at] = following.limit()
	}
	r.err = following.err
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("redisstore: message "+format, args...)
	}
}

func (r *reader) next(n int) string {
	if n > len(r.rest) {
		r.fail("ends early")
		r.rest = ""
		return strings.Repeat("\x00", min(n, 16))
	}
	text := r.rest[:n]
	r.rest = r.rest[n:]
	return text
}

// uint reads an integer of 1 to 4 bytes.
func (r *reader) uint(size int) (n uint32) {
	var b [4]byte
	copy(b[:], r.next(size))
	return binary.LittleEndian.Uint32(b[:])
}

// byteUpTo reads a byte from 0 to limit.
func (r *reader) byteUpTo(limit uint32) uint32 {
	n := r.uint(1)
	if n > limit {
		r.fail("has %d instead of a number from 0 to %d", n, limit)
		return 0
	}
	return n
}

func (r *reader) number() int64 {
	n := math.Float64frombits(binary.LittleEndian.Uint64([]byte(r.next(8))))
	if n >= 0 && n <= float64(algorithms.Forever) && n == math.Trunc(n) {
		return int64(n)
	}
	r.fail("has %v instead of a whole number", n)
	return 0
}

func (r *reader) text() string {
	size := r.uint(4)
	if uint64(size) > uint64(len(r.rest)) {
		r.fail("ends early")
		return ""
	}
	return r.next(int(size))
}

// key takes the next key of strings or of logs.
func (r *reader) key(keys *[]string) string {
	if len(*keys) == 0 {
		r.fail("has too few keys")
		return ""
	}
	name := (*keys)[0]
	*keys = (*keys)[1:]
	return name
}

// operation reads an operation. Its length must be that in its head.
func (r *reader) operation() (o Operation) {
	kind, first, second, size := r.uint(1), r.uint(2), r.uint(2), r.uint(4)
	strings, logs := int(r.uint(2)), int(r.uint(2))
	if uint64(size) > uint64(len(r.rest)) || strings > len(r.strings) || logs > len(r.logs) {
		r.fail("has an operation of %d bytes with %d and %d keys, but ends before", size, strings, logs)
		return o
	}
	body := &reader{rest: r.next(int(size)), strings: r.strings[:strings], logs: r.logs[:logs], limits: r.limits}
	r.strings, r.logs = r.strings[strings:], r.logs[logs:]
	switch kind {
	case kindTake:
		o.Take = body.take(int(first), int(second))
	case kindRefund:
		o.Refund, o.Release = body.refund(int(first), int(second))
	case kindSet:
		o.Set = &Set{
			Count: body.number(), EndsLine: body.byteUpTo(1) == 1, Tenant: readTenant(body.next(7)), Name: body.key(&body.strings),
		}
	default:
		body.fail("has an operation of the unknown kind %d", kind)
	}
	if n := len(body.rest); n > 0 {
		body.fail("has an operation that is %d bytes too long", n)
	}
	if n := len(body.strings) + len(body.logs); n > 0 {
		body.fail("has an operation with %d keys too many", n)
	}
	r.err = body.err
	return o
}

func (r *reader) take(overrides, zones int) *Take {
	t := &Take{Overrides: make([]Override, overrides), Zones: make([]Zone, zones)}
	if len(t.Overrides) > len(t.Zones) {
		r.fail("has a take with %d overrides of %d zones", len(t.Overrides), len(t.Zones))
	}
	for i := range t.Overrides {
		t.Overrides[i] = Override{Text: r.text(), Name: r.key(&r.strings)}
	}
	for i := range t.Zones {
		z := &t.Zones[i]
		z.Mode = algorithms.Mode(r.byteUpTo(uint32(algorithms.Settle)))
		kind := r.byteUpTo(3)
		z.Shadow, z.Peek = kind&1 > 0, kind&2 > 0
		z.Budgets = make([]Budget, r.uint(2))
		counts, ban := r.byteUpTo(3), r.byteUpTo(1)
		z.Cost, z.MaxWait = r.number(), r.number()
		for j := range z.Budgets {
			z.Budgets[j] = r.budget()
		}
		if counts&1 > 0 {
			z.SlotsLimit = r.number()
			z.Tenant, z.Line = r.line(3)
			z.Slots = r.key(&r.strings)
		}
		if counts&2 > 0 {
			_, z.ReservedLine = r.line(1)
			z.Reserved = r.key(&r.strings)
		}
		if ban == 1 {
			z.Ban = algorithms.Ban{After: r.number(), Window: r.number(), Duration: r.number(), Max: r.number()}
			z.BanName = r.key(&r.strings)
		}
	}
	return t
}

// line reads a line. With a limit of 3 it may be that of a tenant.
func (r *reader) line(limit uint32) (t store.Tenant, l store.SlotLine) {
	has := r.byteUpTo(limit)
	if has > 1 {
		t = store.Tenant{ID: readTenant(r.next(7)), Weight: int64(r.uint(2))}
	}
	if has%2 == 1 {
		l.Waited, l.Waiting = r.number(), r.number()
		for n := range l.Marks {
			l.Marks[n] = r.number()
		}
	}
	return t, l
}

func (r *reader) refund(budgets, reservations int) (refunds []Refund, release *Release) {
	refunds = make([]Refund, budgets)
	if budgets+reservations == 0 || reservations > 1 {
		r.fail("has a refund of %d budgets and %d reservations", budgets, reservations)
	}
	for i := range refunds {
		refunds[i] = Refund{
			Budget:  r.budget(),
			Receipt: algorithms.Receipt{A: r.number(), B: r.number(), At: r.number()},
			Events:  r.number(),
		}
	}
	if reservations == 1 {
		release = &Release{Events: r.number(), Name: r.key(&r.strings)}
	}
	return refunds, release
}

func (r *reader) budget() Budget {
	at := r.uint(4)
	b, known := r.limits[at]
	b.Burst = r.number()
	switch {
	case !known:
		r.fail("refers to a limit at %d, but has none there", at)
	case b.Log:
		b.Name = r.key(&r.logs)
	default:
		b.Name = r.key(&r.strings)
	}
	return b
}

func (r *reader) limit() Budget {
	kind, known := limitKinds()[r.rest[0]]
	if !known {
		r.fail("has a limit of the unknown algorithm %d", r.rest[0])
		return Budget{}
	}
	size := kind.size
	if kind.warmUpSize > 0 && len(r.rest) >= warmUpAt+8 {
		if ahead := (reader{rest: r.rest[warmUpAt:]}); ahead.number() > 0 {
			size = kind.warmUpSize
		}
	}
	return Budget{Limit: r.next(size), Log: kind.log}
}
