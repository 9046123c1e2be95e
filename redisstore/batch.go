package redisstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// batch holds the calls that are sent together, in one message. In a cluster there is one message
// for each slot, because a script can reach only one. Scripts that don't name their keys can
// reach all slots of a node, but were seen to lose a charge while slots move.
//
// Keys do not share hash tags either. With 16 tags in a cluster of three masters, a message held
// 1.3 checks, and a check cost Redis a tenth less. But a slot that moves would hold a sixteenth of
// all keys. Until it has moved, requests with several limits whose budgets begin would fail.
type batch struct {
	calls       []*pendingCall
	sets        []slotsOp      // of all keys
	setAt       map[string]int // the position in sets of each name
	scriptCalls []*scriptCall
}

// scriptCall is a message, and the calls and sets in it.
type scriptCall struct {
	wire.Message
	calls []*pendingCall
	sets  []*slotsOp

	keys    []string
	args    []any
	payload payload
	command noRetryCmd
	reply   wire.Reply
	err     error // why there is no valid reply
	found   []int64
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (b *batch) alone() bool { return len(b.calls) > 0 && b.calls[0].alone }

func (b *batch) release() {
	b.reset()
	batches.Put(b)
}

func (b *batch) reset() {
	clear(b.calls)
	clear(b.sets)
	clear(b.setAt)
	b.calls, b.sets = b.calls[:0], b.sets[:0]
	for _, p := range b.scriptCalls {
		clear(p.calls)
		clear(p.sets)
		p.payload = payload{}
		p.calls, p.sets = p.calls[:0], p.sets[:0]
	}
}

// scriptCall returns the n-th part. It makes the part if there are only n.
func (b *batch) scriptCall(n int) *scriptCall {
	if n == len(b.scriptCalls) {
		b.scriptCalls = append(b.scriptCalls, new(scriptCall))
	}
	return b.scriptCalls[n]
}

// divide divides the batch into its parts, and returns the number of parts.
func (b *batch) divide(names wire.Names, bySlot bool) int {
	if !bySlot {
		p := b.scriptCall(0)
		p.calls = append(p.calls, b.calls...)
		for i := range b.sets {
			p.sets = append(p.sets, &b.sets[i])
		}
		return 1
	}
	places := make(map[int]int, len(b.calls))
	place := func(slot int) *scriptCall {
		n, known := places[slot]
		if !known {
			n = len(places)
			places[slot] = n
		}
		return b.scriptCall(n)
	}
	for _, c := range b.calls {
		if c.setName == "" {
			p := place(names.Slot(c.key))
			p.calls = append(p.calls, c)
		} else if b.op(c.setName) != nil {
			p := place(wire.SlotOfName(c.setName))
			p.calls = append(p.calls, c)
		}
	}
	for i := range b.sets {
		p := place(wire.SlotOfName(b.sets[i].name))
		p.sets = append(p.sets, &b.sets[i])
	}
	return len(places)
}

// write writes the message of the part.
func (p *scriptCall) write(names wire.Names, h wire.Head) (set algorithms.Set) {
	p.Reset(names, h)
	p.arrange()
	for _, op := range p.sets {
		set = set.WithSlots()
		if op.Set {
			p.Set(op.name, op.Count)
		}
	}
	for _, c := range p.calls {
		if c.requests != nil {
			p.Take(c.requests)
			set |= setOf(c.requests)
		}
		for _, one := range c.corrections {
			for _, l := range one.Request.Limits {
				set = set.With(l.Algorithm())
			}
			if one.Refund > 0 {
				p.Refund(one.Request, one.Refund)
			}
			if one.Charge > 0 {
				p.Charge(one.Request, one.Charge)
			}
		}
	}
	return set
}

// arrange puts takes with the same limits side by side, because the script reads a limit only if
// it isn't that of the take before. Corrections come first: a take that was asked for after them
// must find them made.
func (p *scriptCall) arrange() {
	slices.SortStableFunc(p.calls, func(a, b *pendingCall) int { return strings.Compare(a.limits(), b.limits()) })
}

// limits returns the ID of the first limit of a take. It is empty for other calls.
func (c *pendingCall) limits() string {
	if len(c.requests) == 0 || len(c.requests[0].Limits) == 0 {
		return ""
	}
	return c.requests[0].Limits[0].ID
}

// setOf returns the set that a script needs to decide requests.
func setOf(requests []store.Request) (set algorithms.Set) {
	for i := range requests {
		r := &requests[i]
		for j := range r.Limits {
			set = set.With(r.Limits[j].Algorithm())
		}
		if r.Ban != nil {
			set = set.WithBan()
		}
		if r.Slots != nil {
			set = set.WithSlots()
		}
	}
	return set
}

// read reads the reply to the message of a part. The calls receive the errors that are theirs alone.
func (b *batch) read(p *scriptCall, text string) error {
	r := &p.reply
	if err := r.Read(text); err != nil || r.Late {
		return cmp.Or(err, errLate)
	}
	for _, op := range p.sets {
		if op.Set {
			op.had, op.err = r.Set()
			op.seen = true
		}
	}
	for _, c := range p.calls {
		c.err = nil
		if c.requests != nil {
			p.found = p.found[:0]
			c.allowed, p.found, c.err = r.Take(c.requests, p.found)
			if c.err == nil {
				b.note(c, p.found)
			}
		}
		for _, one := range c.corrections {
			if one.Refund > 0 && slices.ContainsFunc(one.Request.Outcome.Decisions, isCharged) {
				c.err = cmp.Or(c.err, r.Done())
			}
			if one.Charge > 0 {
				limits := store.Request{Limits: one.Request.Limits}
				_, _, err := r.Take([]store.Request{limits}, nil)
				c.err = cmp.Or(c.err, err)
			}
		}
	}
	return r.End()
}

func isCharged(d algorithms.Decision) bool { return d.Charged > 0 }

// note notes how many slots a take found and took.
func (b *batch) note(c *pendingCall, found []int64) {
	n := 0
	for i := range c.requests {
		r := &c.requests[i]
		if r.Slots == nil {
			continue
		}
		if !r.Peek {
			op := b.op(c.slotNames[n])
			if !op.seen {
				op.had, op.seen = found[n], true
			}
			if r.Outcome.Slots.Taken {
				op.taken++
			}
		}
		n++
	}
}

// op returns the operation of the batch on the slots of a name, or nil if the batch only looks at
// them.
func (b *batch) op(name string) *slotsOp {
	if n, known := b.setAt[name]; known {
		return &b.sets[n]
	}
	return nil
}

// payload is the argument of the script. sent reports whether the client has asked for its bytes.
// Before the client does, nothing is sent.
type payload struct {
	bytes []byte
	sent  bool
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (p *payload) MarshalBinary() ([]byte, error) {
	p.sent = true
	return p.bytes, nil
}

// prepareCommand makes the script call of the part.
func (p *scriptCall) prepareCommand(ctx context.Context, script *redis.Script) {
	p.keys = p.AppendKeys(p.keys[:0])
	p.payload = payload{bytes: p.Argument()}
	p.args = append(p.args[:0], "evalsha", script.Hash(), len(p.keys))
	for i := range p.keys {
		p.args = append(p.args, &p.keys[i])
	}
	p.args = append(p.args, &p.payload)
	p.command = noRetryCmd{redis.NewStringCmd(ctx, p.args...)}
}

// noRetryCmd is a command that must run at most once. The client never sends it again, whatever happens,
// noRetryCmd it may have been written. MaxRetries alone doesn't ensure that everywhere.
type noRetryCmd struct{ *redis.StringCmd }

// NoRetry implements [redis.Cmder].
func (noRetryCmd) NoRetry() bool { return true }
