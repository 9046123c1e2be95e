package redistest

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
)

// value is the value of a key, in Go: the state of a limit or of a ban, slots, or an override.
type value struct {
	limit *algorithms.Limit // nil if there is none
	ban   *algorithms.Ban
	state algorithms.State
	slots wiretest.Slots
	text  string
	// expires is the instant at which Redis drops the key. It is 0 if this makes no difference.
	expires algorithms.Micros
	edge    algorithms.Micros // see expiryEdge
	// late is how much later Redis may drop the key, because its process stood still before the script set the expiry.
	late algorithms.Micros
}

// clockEdge is how much earlier or later than computed Redis may drop a key, because Redis counts in ms.
const clockEdge algorithms.Micros = 2000

// expiryEdge returns clockEdge and the time of the current call. Redis counts from when it began with the call. This can
// be long before the instant of the script, if its process stood still in between.
func (r *replay) expiryEdge() algorithms.Micros { return clockEdge + r.took }

// valueAt returns the value of a key. If the key has none, valueAt adds an empty one.
func (r *replay) valueAt(name string) *value {
	v := r.values[name]
	if v == nil {
		v = new(value)
		r.values[name] = v
	}
	return v
}

// updateExpiry sets expires after a change of a limit's state.
func (r *replay) updateExpiry(v *value, l *algorithms.Limit) {
	if v.expires = 0; l.KeptAfterReset() && v.state != (algorithms.State{}) {
		v.expires, v.edge, v.late = l.Expires(&v.state), r.expiryEdge(), r.lasted
	}
}

// dropExpired drops a value that Redis has dropped. Near the edge, the value becomes doubtful.
func (r *replay) dropExpired(name string, at algorithms.Micros) {
	v := r.values[name]
	switch {
	case v == nil || v.expires == 0 || at < v.expires-v.edge:
	case at > v.expires+v.late+r.expiryEdge():
		delete(r.values, name)
	case v.limit != nil:
		r.addDoubt(name, at)
	}
}

// overrideAt returns the override of a key. edge reports whether the override may have ended already.
func (r *replay) overrideAt(name string, at algorithms.Micros) (text string, edge bool) {
	v := r.values[name]
	if v == nil {
		return "", false
	}
	return v.text, v.expires > 0 && at >= v.expires-v.edge
}

// compareStored compares the values with those in Redis, except logs.
func (r *replay) compareStored(client *redis.Client) {
	ctx := context.Background()
	for name, v := range r.values {
		if _, doubtful := r.doubtful[name]; doubtful || r.spoiled[name] || v.limit != nil && v.limit.Algorithm().IsLog() {
			continue
		}
		got, err := client.Get(ctx, name).Bytes()
		now, failed := client.Time(ctx).Result() // later, so a key that is gone may have expired by then
		if failed != nil {
			r.addDifference("Redis doesn't answer at the end: %v", failed)
			return
		}
		want, expires := v.encode()
		r.States++
		switch {
		case errors.Is(err, redis.Nil):
			if len(want) > 0 && expires > now.UnixMicro()+clockEdge {
				r.addDifference("%s is empty, Go has %x until %d", name, want, expires)
			}
		case err != nil:
			r.addDifference("%s: %v", name, err)
		case string(got) != string(want):
			r.addDifference("%s holds %x, Go has %x", name, got, want)
		}
	}
}

// encode returns the bytes of a value in Redis, and the earliest instant at which Redis may drop the key.
// The bytes are empty if Redis doesn't store the value.
func (v *value) encode() (stored []byte, expires algorithms.Micros) {
	switch {
	case v.text != "":
		if v.expires == 0 {
			return []byte(v.text), algorithms.Forever
		}
		return []byte(v.text), v.expires - v.edge
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
	return PackState(v.state), expires
}

// PackState returns the state of a budget or a ban as [algorithms.ParseState] reads it.
func PackState(s algorithms.State) (stored []byte) {
	for _, n := range []int64{s.A, s.B, s.C, s.D} {
		stored = append(stored, binary.LittleEndian.AppendUint64(nil, uint64(n))[:7]...)
	}
	return stored
}
