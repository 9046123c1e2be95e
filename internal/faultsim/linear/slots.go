package linear

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// slotsState is slots, per store: how many requests hold one, how many others may believe do, and how
// many were given back. lost is whether a call failed: its slot can stay taken.
type slotsState struct {
	held, believed, left [Stores]int
	lost                 bool
}

const slotsLimit = 3

// slotsGrace is how long a give-back may take until other stores see it. It is a round trip, on a
// machine that has other things to do.
const slotsGrace = 250 * time.Millisecond

// Slots says: never more than slotsLimit requests hold a slot. A take is denied only if so
// many requests hold a slot, or would with the give-backs on their way. Give-backs of other stores
// are on their way until a "told" that ends slotsGrace after them. Give-backs of the same store are
// on their way if they had not ended when the take began.
var Slots = &Subject{
	model: porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{slotsState{}} },
		Step: func(state, input, output any) []any {
			s, c := state.(slotsState), input.(call)
			switch {
			case output == unknown:
				s.lost = true
				return []any{s}
			case c.what == "leave":
				s.held[c.by]--
				s.left[c.by]++
				return []any{s}
			case c.what == "told":
				s.believed[c.by] = s.held[c.by]
				return []any{s}
			}
			held, believed := 0, s.held[c.by]+s.left[c.by]-c.seen
			for by := range Stores {
				if held += s.held[by]; by != c.by {
					believed += s.believed[by]
				}
			}
			if output == "granted" {
				s.held[c.by]++
				s.believed[c.by]++
				if held < slotsLimit {
					return []any{s}
				}
			} else if believed >= slotsLimit || s.lost {
				return []any{s}
			}
			return nil
		},
	},
	visit: func(c *client) {
		leave := c.takeSlot(func(s *redisstore.Store, corrections []store.Correction) {
			began := c.now()
			s.Correct(corrections, func(err error) {
				c.fail(err)
				c.add(call{key: c.key, what: "leave", by: c.by}, unknown, began, c.now())
			})
		})
		if leave != nil {
			time.Sleep(time.Duration(c.rand.IntN(20_000)) * time.Microsecond) // the request is in flight for a random time
			leave()
		}
	},
	lose: func(ctx context.Context, _ *rand.Rand, redis *redis.Client, key string) {
		redis.Del(ctx, "caddy_rl:{"+key+"}:"+store.SlotsID("z", ""))
	},
}

// leftBy adds n to the slots of a key that a store has given back, and returns how many they are.
func (h *History) leftBy(by int, key string, n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left[call{by: by, key: key}] += n
	return h.left[call{by: by, key: key}]
}

// takeSlot takes a slot. It returns what gives it back, or nil if none was free.
func (c *client) takeSlot(correct func(*redisstore.Store, []store.Correction)) (leave func()) {
	key := c.key
	r := []store.ZoneRequest{{Zone: "z", Key: key, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: slotsLimit}}}
	result := c.do(call{key: key, what: "take", by: c.by, seen: c.leftBy(c.by, key, 0)}, func() (string, error) {
		if _, err := c.store.Take(c.ctx, r); err != nil || !r[0].Outcome.Slots.Taken {
			return "denied", err
		}
		return "granted", nil
	})
	if result != "granted" {
		return nil
	}
	return func() {
		c.do(call{key: key, what: "leave", by: c.by}, func() (string, error) {
			correct(c.store, []store.Correction{{Request: &r[0], Leave: true}})
			return "", nil
		})
		c.leftBy(c.by, key, 1)
		now := c.now()
		c.add(call{key: key, what: "told", by: c.by}, "", now, now+slotsGrace.Nanoseconds())
	}
}
