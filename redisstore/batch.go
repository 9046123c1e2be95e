package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// batch holds the calls that are sent together, in one round trip. They share one script call. In a cluster, some calls may
// need one for each hash slot; see [sharing].
//
// Keys don't share hash tags. With 16 tags in a cluster of three primaries, a script call held 1.3 checks, and a check cost
// Redis a tenth less. But a hash slot that moves would hold a sixteenth of all keys. Until it has moved, requests with
// several limits whose budgets begin would fail.
type batch struct {
	calls     []*pendingCall
	slotsOps  []slotsOp      // at most one for each name
	slotsOpAt map[string]int // the position in slotsOps of each name
	made      []*message     // those of messages, and others to use again
	splitAt   map[int]int    // the position in made of the message of each hash slot, and of the shared one
	takes     int
	work      int64     // see [algorithms.MaxWork]
	isProbe   bool      // of the distance
	sent      time.Time // or about to be sent

	// The round trip.
	messages []*message
	conns    *connections
	began    time.Time
	deadline time.Time // no message can run any more after that, except at a given instant
	script   *redis.Script
	replied  bool // Redis has replied to one of the messages
}

// message is the input of one script call, with its calls and its operations on slots.
type message struct {
	wire.Message
	calls     []*pendingCall
	retries   []*pendingCall // calls that certainly did not run, and are sent again
	slotsOps  []*slotsOp
	hashSlots int // of the calls

	keys    []string
	args    []any
	payload payload
	command noRetryCmd
	reply   wire.Reply
	err     error // why there is no valid reply: a [store.SharedError]
	loadErr error // why the script, which Redis lacks, can't be loaded
	found   []int64
}

// crosses reports whether the calls have several hash slots.
func (m *message) crosses() bool { return m.hashSlots > 1 }

var batches = sync.Pool{New: func() any { return newBatch() }}

func newBatch() *batch { return &batch{slotsOpAt: make(map[string]int), splitAt: make(map[int]int)} }

func (b *batch) isAlone() bool { return len(b.calls) > 0 && b.calls[0].alone }

// isAsking reports whether the batch follows an ASK redirect of another node of the cluster.
func (b *batch) isAsking() bool { return b.isAlone() && b.calls[0].asking }

// now returns the instant of the calls; 0 stands for the time of Redis.
func (b *batch) now() algorithms.Micros {
	if b.isAlone() {
		return b.calls[0].now
	}
	return 0
}

// add adds a call that is about to be sent.
func (b *batch) add(c *pendingCall) {
	c.sent = true
	b.calls = append(b.calls, c)
	b.work += c.work
	if c.requests != nil {
		b.takes++
	}
}

// release keeps an ended batch for nextBatchLocked.
func (b *batch) release() {
	b.takes, b.work, b.isProbe, b.replied, b.messages, b.conns = 0, 0, false, false, nil, nil
	clear(b.calls)
	clear(b.slotsOps)
	clear(b.slotsOpAt)
	clear(b.splitAt)
	b.calls, b.slotsOps = b.calls[:0], b.slotsOps[:0]
	for _, m := range b.made {
		clear(m.calls)
		clear(m.slotsOps)
		m.payload, m.loadErr = payload{}, nil
		m.calls, m.retries, m.slotsOps = m.calls[:0], nil, m.slotsOps[:0]
	}
	batches.Put(b)
}

// split divides the batch into messages: one for all calls, and in a cluster one for each hash slot that can't share it. All
// calls and counts of a hash slot are in one message, in their order.
func (s *Store) split(b *batch) {
	now := time.Now()
	of := func(hashSlot int, together bool) *message {
		return b.messageOf(hashSlot, func() bool { return together || s.sharing.Shares(hashSlot, now) })
	}
	for _, c := range b.calls {
		if s.sharing != nil && hasSeveralKeys(c.requests) {
			for i := range c.requests {
				of(s.names().HashSlot(c.requests[i].Key), true)
			}
		}
	}
	for _, c := range b.calls {
		m := of(s.hashSlotOf(c.key, c.setName), s.sharing == nil)
		m.calls = append(m.calls, c)
	}
	for i := range b.slotsOps {
		op := &b.slotsOps[i]
		m := of(s.hashSlotOf("", op.name), s.sharing == nil)
		m.slotsOps = append(m.slotsOps, op)
	}
	if s.sharing != nil && len(b.messages) > 1 {
		s.sharing.TryIfDue()
	}
}

// hashSlotOf returns the hash slot of a name of slots, or else of a key. Without a cluster it is always 0.
func (s *Store) hashSlotOf(key, name string) int {
	switch {
	case s.sharing == nil:
		return 0
	case name != "":
		return wire.HashSlotOfName(name)
	default:
		return s.names().HashSlot(key)
	}
}

// sharedMessage stands for the hash slots of the message that calls share.
const sharedMessage = -1

// messageOf returns the message of a hash slot. shares says whether that is the shared one. It is called once per hash
// slot, because its result can change between calls.
func (b *batch) messageOf(hashSlot int, shares func() bool) *message {
	n, found := b.splitAt[hashSlot]
	if found {
		return b.made[n]
	}
	of := hashSlot
	if shares() {
		of = sharedMessage
		n, found = b.splitAt[of]
	}
	if !found {
		n = len(b.messages)
		if n == len(b.made) {
			b.made = append(b.made, new(message))
		}
		b.messages = b.made[:n+1]
		b.splitAt[of], b.made[n].hashSlots = n, 0
	}
	b.splitAt[hashSlot] = n
	b.made[n].hashSlots++
	return b.made[n]
}

// writeMessage writes the message, and returns the features that the script needs.
func (m *message) writeMessage(names wire.Names, h wire.Head) (features algorithms.Features) {
	m.Reset(names, h)
	m.sortCalls()
	for _, op := range m.slotsOps {
		features = features.WithSlots()
		if op.Set {
			m.SetSlots(op.name, op.Count, op.EndsLine)
		}
	}
	for _, c := range m.calls {
		if c.requests != nil {
			m.Take(c.requests)
			features |= featuresFor(c.requests)
		}
		for i, one := range c.corrections {
			features |= featuresFor([]store.ZoneRequest{*one.Request})
			m.Refund(one.Request, one.Refund, c.releases[i].isSent())
			if one.Charges() {
				m.Charge(&one)
			}
		}
	}
	return features
}

// sortCalls puts takes with the same limits side by side, because the script reads a limit only if
// it differs from the limit before. Corrections come first, so that a take sees all corrections
// that were queued before it.
func (m *message) sortCalls() {
	slices.SortStableFunc(m.calls, func(a, b *pendingCall) int { return strings.Compare(a.firstLimitID(), b.firstLimitID()) })
}

// firstLimitID returns the ID of the first limit of a take, or "" for other calls.
func (c *pendingCall) firstLimitID() string {
	if len(c.requests) == 0 || len(c.requests[0].Limits) == 0 {
		return ""
	}
	return c.requests[0].Limits[0].ID
}

// featuresFor returns the features that a script needs to decide requests.
func featuresFor(requests []store.ZoneRequest) (features algorithms.Features) {
	for i := range requests {
		r := &requests[i]
		for j := range r.Limits {
			features = features.With(r.Limits[j].Algorithm())
		}
		if r.Ban != nil {
			features = features.WithBan()
		}
		if r.Slots != nil || r.ReservedID != "" {
			features = features.WithSlots()
		}
	}
	return features
}

// parseReply reads the reply to a message. The error is that of all calls; an error of one call
// is set in the call.
func (b *batch) parseReply(m *message, text string) error {
	r := &m.reply
	if err := r.Read(text); err != nil || r.Late {
		return cmp.Or(err, errLate)
	}
	for _, op := range m.slotsOps {
		if op.Set {
			op.found, op.err = r.SetSlots()
			op.known = true
		}
	}
	for _, c := range m.calls {
		c.err, c.reports = nil, nil
		if c.requests != nil {
			m.found = m.found[:0]
			c.allowed, m.found, c.err = r.Take(c.requests, m.found)
			if c.err == nil {
				b.recordSlots(c.slots, m.found)
			}
		} else if c.setName != "" && errors.Is(b.slotsOp(c.setName).err, wire.ErrElsewhere) {
			c.err = wire.ErrElsewhere
		}
		for i, one := range c.corrections {
			if release := c.releases[i]; release.isSent() || one.Refund > 0 && slices.ContainsFunc(one.Request.Outcome.Decisions, isCharged) {
				found, err := r.Refund(release.isSent())
				c.err = cmp.Or(c.err, err)
				if release.isSent() && err == nil {
					b.slotsOp(release.name).record(found, -release.events)
					release.replied = true
				}
			}
			if one.Charges() {
				charged := []store.ZoneRequest{one.ChargeRequest()}
				_, _, err := r.Take(charged, nil)
				if c.err = cmp.Or(c.err, err); err == nil && one.Charged != nil {
					c.reports = append(c.reports, func() { one.Charged(charged[0].Outcome.Decisions) })
				}
			}
		}
		if errors.Is(c.err, wire.ErrElsewhere) {
			if !m.crosses() {
				return wire.ReplyError("says that one of the KEYS is on another node")
			}
			for _, u := range c.slots {
				if op := b.slotsOp(u.name); op != nil && !op.known { // unless another call is done
					op.err = wire.ErrElsewhere
				}
			}
		}
		c.err = nodes.AsRedirect(c.err)
	}
	return r.End()
}

func isCharged(d algorithms.Decision) bool { return d.Charged > 0 }

// recordSlots records how many slots and reserved events a take found and took.
func (b *batch) recordSlots(uses []slotsUse, found []int64) {
	for i, u := range uses {
		if u.takes() {
			b.slotsOp(u.name).record(found[i], u.taken())
		}
	}
}

// record records that an operation of the message found a count, and added to it.
func (op *slotsOp) record(found, added int64) {
	if !op.known {
		op.found, op.known, op.err = found, true, nil
	}
	op.taken += added
}

// sets reports whether the batch sets the count of the slots of a call.
func (b *batch) sets(u slotsUse) bool {
	op := b.slotsOp(u.name)
	return op != nil && op.Set
}

// slotsOp returns the batch's operation on the slots of a name, or nil if the batch only reads
// their count.
func (b *batch) slotsOp(name string) *slotsOp {
	if n, known := b.slotsOpAt[name]; known {
		return &b.slotsOps[n]
	}
	return nil
}

// payload is the argument of the script. sent is when the client has asked for its bytes. The client
// sends nothing before that. It is zero while the client has not.
type payload struct {
	bytes []byte
	sent  time.Time
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (p *payload) MarshalBinary() ([]byte, error) {
	p.sent = time.Now()
	return p.bytes, nil
}

// makeCommand makes the command of the message.
func (m *message) makeCommand(ctx context.Context, script *redis.Script) {
	m.keys = m.AppendKeys(m.keys[:0])
	m.payload = payload{bytes: m.Argument()}
	declared := len(m.keys)
	if m.crosses() {
		declared = 0
	}
	m.args = append(m.args[:0], "evalsha", script.Hash(), declared)
	for i := range m.keys {
		m.args = append(m.args, &m.keys[i])
	}
	m.args = append(m.args, &m.payload)
	m.command = noRetryCmd{redis.NewStringCmd(ctx, m.args...)}
}

// noRetryCmd is a command that must run at most once. The client never sends it again after it may
// have been written. MaxRetries alone does not ensure that everywhere.
type noRetryCmd struct{ *redis.StringCmd }

// NoRetry implements [redis.Cmder].
func (noRetryCmd) NoRetry() bool { return true }
