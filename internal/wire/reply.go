package wire

import (
	"encoding/binary"
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

// Reply reads a reply operation by operation, in the order of the message.
type Reply struct {
	// Now is the instant of the operations.
	Now algorithms.Micros
	// Late reports whether Redis ran the message after its last instant. Then nothing was done.
	Late bool

	rest string
	err  error // set if the script can't have sent the reply
	// foreign is set if a number of the current operation can't come from a budget. The reply
	// itself is valid, but another program has stored the value at the key.
	foreign error
}

// ReadReply reads the head of a reply.
func ReadReply(text string) (*Reply, error) {
	r := new(Reply)
	return r, r.Read(text)
}

// Read begins a new reply, and reads its head.
func (r *Reply) Read(text string) error {
	*r = Reply{rest: text}
	r.Now = r.number()
	r.Late = r.oneOf(1) == 1
	if r.foreign != nil {
		r.fail(fmt.Sprintf("begins with %q where an instant belongs", text[:min(len(text), 8)]))
	}
	return r.err
}

// Take reads the reply to [Message.Take] into the Outcomes of the requests. For each request with
// Slots, it appends to found, which may be nil, how many slots the instance had. After an error
// only this operation has failed, unless the reply itself is wrong.
func (r *Reply) Take(requests []store.Request, found []int64) (allowed bool, slots []int64, err error) {
	switch status := r.oneOf(2); {
	case r.err != nil:
		return false, found, r.err
	case status == 0:
		return false, found, r.failure()
	case status == 2:
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
		had := r.zone(q)
		if q.Slots != nil {
			found = append(found, had)
		}
		allowed = allowed && (q.Shadow || q.Outcome.Verdict == store.Allowed)
	}
	if err := r.end(); err != nil {
		return false, found, err
	}
	for i := range requests { // a slot is taken if the request is allowed and its zone has room
		q := &requests[i]
		q.Outcome.Slots.Taken = q.Slots != nil && !q.Peek && allowed && q.Outcome.Verdict == store.Allowed
	}
	return allowed, found, nil
}

// zone reads the outcome of one zone. It returns how many slots the instance had.
func (r *Reply) zone(q *store.Request) (had int64) {
	o := &q.Outcome
	*o = store.Outcome{Decisions: o.Decisions[:0]}
	for range q.Limits {
		room := r.oneOf(2)
		d := algorithms.Decision{
			Allowed:    room > 0,
			Charged:    r.number(),
			Receipt:    algorithms.Receipt{A: r.number(), B: r.number()},
			Remaining:  r.number(),
			MoreAfter:  r.number(),
			RetryAfter: r.number(),
			ResetAfter: r.number(),
		}
		if room == 2 {
			d.Wait, d.RetryAfter = d.RetryAfter, 0
		}
		if d.Charged > 0 {
			d.Receipt.At = r.Now
		}
		o.Decisions = append(o.Decisions, d)
	}
	o.Slots.Free = true
	if q.Slots != nil {
		o.Slots.Free = r.oneOf(1) == 1
		had = r.number()
		o.Slots.InFlight = r.number()
	}
	if q.Ban != nil {
		o.Ban.Stands = r.oneOf(1) == 1
		o.Ban.Began = r.oneOf(1) == 1
		o.Ban.EndsAfter = r.number()
	}
	o.SetVerdict()
	return had
}

// Done reads the reply to [Message.Refund].
func (r *Reply) Done() error {
	if r.oneOf(1) == 0 && r.err == nil {
		return r.failure()
	}
	return r.err
}

// Set reads the reply to [Message.Set]. It returns how many slots the instance had.
func (r *Reply) Set() (had int64, err error) {
	if err := r.Done(); err != nil {
		return 0, err
	}
	had = r.number()
	return had, r.end()
}

// End returns an error if anything follows the last operation.
func (r *Reply) End() error {
	if r.err == nil && len(r.rest) > 0 {
		r.fail(fmt.Sprintf("holds %d bytes too many", len(r.rest)))
	}
	return r.err
}

// end ends an operation.
func (r *Reply) end() error {
	foreign := r.foreign
	r.foreign = nil
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

// oneOf reads a byte from 0 to most.
func (r *Reply) oneOf(most byte) byte {
	b := r.next(1)[0]
	if b > most {
		r.fail(fmt.Sprintf("holds %d where a number from 0 to %d belongs", b, most))
		return 0
	}
	return b
}

// number reads a number computed from the value at a key.
func (r *Reply) number() int64 {
	t := r.next(8)
	bits := uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
	n := math.Float64frombits(bits)
	if n >= 0 && n <= float64(algorithms.Forever) && n == math.Trunc(n) {
		return int64(n)
	}
	if r.foreign == nil {
		r.foreign = ScriptError(fmt.Sprintf("the value at a key is not a budget: it gives %v", n))
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

func (r *Reply) failure() error {
	text := r.text()
	if r.err != nil {
		return r.err
	}
	return ScriptError(text)
}
