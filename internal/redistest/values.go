package redistest

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// value is what a key holds, in Go: the state of a limit or of a ban, slots, or an override.
type value struct {
	limit *algorithms.Limit // nil if there is none
	ban   *algorithms.Ban
	state algorithms.State
	slots algorithms.Slots
	text  string
	// expires is when Redis drops it, where that makes a difference; else 0.
	expires algorithms.Micros
}

// expiryEdge is how far from the computed instant Redis may drop a key. It counts in ms.
const expiryEdge algorithms.Micros = 2000

// value returns the value at a key.
func (r *replay) value(name string) *value {
	v := r.values[name]
	if v == nil {
		v = new(value)
		r.values[name] = v
	}
	return v
}

// changed notes when Redis drops the budget, if that makes a difference.
func (v *value) changed(l *algorithms.Limit) {
	if v.expires = 0; l.Lingers() && v.state != (algorithms.State{}) {
		v.expires = l.Expires(&v.state)
	}
}

// expire drops a value that Redis has dropped, too.
func (r *replay) expire(name string, at algorithms.Micros) {
	v := r.values[name]
	switch {
	case v == nil || v.expires == 0 || at < v.expires-expiryEdge:
	case at > v.expires+expiryEdge:
		delete(r.values, name)
	case v.limit != nil:
		r.doubt(name, at)
	}
}

// override returns the override at a key. edge reports whether it may have ended already.
func (r *replay) override(name string, at algorithms.Micros) (text string, edge bool) {
	v := r.values[name]
	if v == nil {
		return "", false
	}
	return v.text, v.expires > 0 && at >= v.expires-expiryEdge
}

// compareStored compares the values with those in Redis, but for logs.
func (r *replay) compareStored(client *redis.Client) {
	ctx := context.Background()
	for name, v := range r.values {
		if _, doubtful := r.doubtful[name]; doubtful || r.spoiled[name] || v.limit != nil && v.limit.Algorithm().IsLog() {
			continue
		}
		now, err := client.Time(ctx).Result()
		if err != nil {
			r.differ("Redis doesn't answer at the end: %v", err)
			return
		}
		got, err := client.Get(ctx, name).Bytes()
		want, expires := v.stored()
		if v.limit != nil || v.ban != nil { // some algorithms store two numbers
			got = append(got, make([]byte, max(len(want)-len(got), 0))...)
		}
		r.States++
		switch {
		case errors.Is(err, redis.Nil):
			if len(want) > 0 && expires > now.UnixMicro()+expiryEdge {
				r.differ("%s is empty, Go has %x until %d", name, want, expires)
			}
		case err != nil:
			r.differ("%s: %v", name, err)
		case string(got) != string(want):
			r.differ("%s holds %x, Go has %x", name, got, want)
		}
	}
}

// stored returns the form in which a value is stored, empty if it isn't, and when Redis may
// drop it at the earliest.
func (v *value) stored() (stored []byte, expires algorithms.Micros) {
	switch {
	case v.text != "":
		if v.expires == 0 {
			return []byte(v.text), algorithms.Forever
		}
		return []byte(v.text), v.expires - expiryEdge
	case v.ban != nil:
		expires = v.ban.Expires(&v.state)
	case v.limit != nil:
		expires = v.limit.Expires(&v.state)
	default:
		stored, _ = v.slots.AppendBinary(nil)
		return stored, v.slots.Expires()
	}
	if v.state == (algorithms.State{}) {
		return nil, 0
	}
	for _, n := range []int64{v.state.A, v.state.B, v.state.C} {
		stored = binary.LittleEndian.AppendUint64(stored, uint64(n))
	}
	return stored, expires
}
