package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// ReplyError is the error of a reply that the script can't have sent.
type ReplyError string

func (e ReplyError) Error() string { return "redisstore: reply " + string(e) }

// ScriptError is the text of an error that made one operation fail.
type ScriptError string

func (e ScriptError) Error() string { return fmt.Sprintf("redisstore: %.200s", string(e)) }

// ErrElsewhere is the error of an operation that was not done, because the node of the cluster does not have all its keys.
var ErrElsewhere = errors.New("redisstore: a key is not on this node of the cluster")

// Reply reads a reply. The caller reads operation by operation, in the order of the message.
type Reply struct {
	// Now is the instant of the operations.
	Now algorithms.Micros
	// Late reports whether Redis ran the message before Head.NotBefore or after Head.NotAfter. Then the script did nothing.
	Late bool

	rest string
	err  error // set if the script can't have sent the reply
	// foreignErr is set if a number of the current operation can't come from a budget. The reply
	// itself is valid, but another program has stored a value at the key.
	foreignErr error
}

// Read begins a new reply, and reads its head.
func (r *Reply) Read(text string) error {
	*r = Reply{rest: text}
	r.Now = r.number()
	r.Late = r.byteUpTo(1) == 1
	if r.foreignErr != nil {
		r.fail(fmt.Sprintf("begins with %q instead of an instant", text[:min(len(text), 8)]))
	}
	return r.err
}

// Take reads the reply to [Message.Take] into the Outcomes of the requests. For each request with
// Slots, and for each with a ReservedID, it appends this instance's count before the take to found, which may be nil. An error
// concerns this operation only, unless it is a [ReplyError].
func (r *Reply) Take(requests []store.ZoneRequest, found []int64) (allowed bool, slots []int64, err error) {
	switch others, err := r.beginOperation(3); {
	case err != nil:
		return false, found, err
	case others:
		overrides := make([]string, len(requests))
		for i := range requests {
			if requests[i].Override != nil {
				overrides[i] = r.text()
			}
		}
		if r.err != nil {
			return false, found, r.err
		}
		return false, found, &store.OverriddenError{Overrides: overrides}
	}
	allowed = true
	for i := range requests {
		q := &requests[i]
		found = r.readZone(q, found)
		allowed = allowed && (q.Shadow || q.Outcome.Verdict == store.Allowed)
	}
	if err := r.endOperation(); err != nil {
		return false, found, err
	}
	for i := range requests { // a slot is taken if the request is allowed and its zone has room
		q := &requests[i]
		q.Outcome.Slots.Taken = q.Slots != nil && !q.Peek && allowed && q.Outcome.Verdict == store.Allowed
	}
	return allowed, found, nil
}

// readZone reads the outcome of one zone, and appends this instance's counts before the take to found.
func (r *Reply) readZone(q *store.ZoneRequest, found []int64) (counts []int64) {
	o := &q.Outcome
	*o = store.Outcome{At: r.Now, Decisions: o.Decisions[:0]}
	for i := range q.Limits {
		l := &q.Limits[i]
		answer := r.byteUpTo(3) // 0: denied, 1: allowed, 2: allowed after a delay, 3: reserved
		d := algorithms.Decision{Allowed: answer == 1 || answer == 2, RetryAfter: r.number()}
		switch answer {
		case 2:
			d.Wait, d.RetryAfter = d.RetryAfter, 0
		case 3:
			d.Reserved, d.RetryAfter = true, algorithms.ReservedRetryAfter
		}
		b, size := algorithms.Balance{Charged: r.number(), A: r.number(), B: r.number()}, l.Algorithm().BalanceSize()
		if size > 2 {
			b.C = r.number()
		}
		if size > 3 {
			b.D = r.number()
		}
		l.Describe(&d, b, r.Now)
		r.check(float64(d.Remaining))
		r.check(float64(d.MoreAfter))
		r.check(float64(d.ResetAfter))
		o.Decisions = append(o.Decisions, d)
	}
	o.Slots.Free = true
	if q.Slots != nil {
		o.Slots.Free = r.byteUpTo(1) == 1
		found = append(found, r.number())
		o.Slots.InFlight = r.number()
	}
	if q.ReservedID != "" {
		found = append(found, r.number())
		o.Reserved.Added, o.Reserved.Events = r.number(), r.number()
	}
	if q.Ban != nil {
		o.Ban.Stands = r.byteUpTo(1) == 1
		o.Ban.Began = r.byteUpTo(1) == 1
		o.Ban.EndsAfter = r.number()
	}
	o.SetVerdict()
	return found
}

// Refund reads the reply to [Message.Refund]. With a release, it returns this instance's count of reserved events before.
func (r *Reply) Refund(release bool) (count int64, err error) {
	if _, err := r.beginOperation(2); err != nil {
		return 0, err
	}
	if release {
		count = r.number()
	}
	return count, r.endOperation()
}

// SetSlots reads the reply to [Message.SetSlots], and returns this instance's count before the operation.
func (r *Reply) SetSlots() (count int64, err error) { return r.Refund(true) }

// End returns an error if anything follows the last operation.
func (r *Reply) End() error {
	if r.err == nil && len(r.rest) > 0 {
		r.fail(fmt.Sprintf("has %d bytes too many", len(r.rest)))
	}
	return r.err
}

// beginOperation reads how an operation has ended, a number up to limit. It returns whether other overrides were found, and
// the error of an operation that was not done.
func (r *Reply) beginOperation(limit byte) (others bool, err error) {
	switch status := r.byteUpTo(limit); {
	case r.err != nil:
		return false, r.err
	case status == 0:
		return false, r.scriptError()
	case status == 2:
		return false, ErrElsewhere
	default:
		return status == 3, nil
	}
}

// endOperation returns the error of the operation that has been read.
func (r *Reply) endOperation() error {
	foreign := r.foreignErr
	r.foreignErr = nil
	if r.err != nil {
		return r.err
	}
	return foreign
}

func (r *Reply) fail(text string) {
	if r.err == nil {
		r.err = ReplyError(text)
	}
}

// next returns the next n bytes, or zeros if there are fewer.
func (r *Reply) next(n int) string {
	const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00"
	if len(r.rest) < n {
		r.fail("ends early")
		r.rest = ""
		return zeros[:min(n, len(zeros))]
	}
	text := r.rest[:n]
	r.rest = r.rest[n:]
	return text
}

// byteUpTo reads a byte from 0 to limit.
func (r *Reply) byteUpTo(limit byte) byte {
	b := r.next(1)[0]
	if b > limit {
		r.fail(fmt.Sprintf("has %d instead of a number from 0 to %d", b, limit))
		return 0
	}
	return b
}

// number reads a number computed from the value at a key.
func (r *Reply) number() int64 {
	t := r.next(8)
	bits := uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
	return r.check(math.Float64frombits(bits))
}

// check returns a number that follows from the value at a key, or 0 if no budget gives the number.
func (r *Reply) check(n float64) int64 {
	if n >= 0 && n <= float64(algorithms.Forever) && n == math.Trunc(n) {
		return int64(n)
	}
	if r.foreignErr == nil {
		r.foreignErr = ScriptError(fmt.Sprintf("the value at a key is not a budget: it gives %v", n))
	}
	return 0
}

// text reads a length and a text of that length.
func (r *Reply) text() string {
	size := binary.LittleEndian.Uint32([]byte(r.next(4)))
	if uint64(size) > uint64(len(r.rest)) {
		r.fail("ends early")
		return ""
	}
	return r.next(int(size))
}

func (r *Reply) scriptError() error {
	text := r.text()
	if r.err != nil {
		return r.err
	}
	return ScriptError(text)
}
