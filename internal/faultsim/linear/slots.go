package linear

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// slotsState is slots, per store: how many requests hold one, how many others may believe do, and how
// many were given back. lost is whether a call failed: its slot can stay taken.
type slotsState struct {
	held, believed, left [Stores]int
	lines                [Stores]line
	lost                 bool
}

// lineCall is the part of a call about the line of its store. Instants are in nanoseconds.
type lineCall struct {
	came   int64 // when the client came
	waited int64 // until the call began
	lasted int64 // the call
	waits  bool  // the client is the only one in the line of the store
}

// began returns when the call began, which is when a client without a line came.
func (c lineCall) began() int64 { return c.came + c.waited }

// line is the line of a store, in which at most one client waits.
type line struct {
	known         bool  // a client waits or has waited
	ended         bool  // others may have heard of that
	first, latest int64 // the bounds of the instant at which the client came, by the clock of Redis
	renewed       int64 // since when others have surely known of it
}

// add notes that a client of a line was denied.
func (l *line) add(c call) {
	if !l.known || l.ended {
		*l = line{known: true, first: c.came, latest: c.came}
	}
	l.latest, l.renewed = max(l.latest, c.came+c.lasted), c.began()
}

// ahead returns how many clients of other stores are surely in front of the one of a call, and how many can be.
func (s *slotsState) ahead(c call) (surely, perhaps int) {
	for by, l := range s.lines {
		if by == c.by || !l.known {
			continue
		}
		if l.first < c.came+c.lasted {
			perhaps++
		}
		const slack, lives = 2 * algorithms.LineSlack * 1000, (algorithms.LineExpiry - algorithms.LineRenewal) * 1000
		if age := c.began() + c.lasted - l.renewed; !l.ended && l.latest+slack < c.came && age < lives {
			surely++
		}
	}
	return surely, perhaps
}

const slotsLimit = 3

// slotsGrace is how long a give-back may take in simulated time until other stores see it.
const slotsGrace = 250 * time.Millisecond

// Slots says: never more than slotsLimit requests hold a slot. A take is denied only if so
// many requests hold a slot, or would with the give-backs on their way. Give-backs of other stores
// are on their way until a "told". Give-backs of the same store are on their way if they had not ended
// when the take began. Clients of other stores that came before count as if they held a slot.
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
			case c.what == "end":
				s.lines[c.by].ended = true
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
			surely, perhaps := s.ahead(c)
			if output == "granted" {
				s.held[c.by]++
				s.believed[c.by]++
				if c.waits {
					s.lines[c.by] = line{}
				}
				if held+surely < slotsLimit || s.lost && held < slotsLimit {
					return []any{s}
				}
			} else if believed+perhaps >= slotsLimit || s.lost {
				if c.waits {
					s.lines[c.by].add(c)
				}
				return []any{s}
			}
			return nil
		},
	},
	visit: func(c *client) {
		leave := c.waitForSlot(func(s *redisstore.Store, corrections []store.Correction) {
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

// beginWait reports whether the client may wait for a slot, because no other client of its store does.
func (c *client) beginWait() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := call{by: c.by, key: c.key}
	may := !c.waits[at]
	c.waits[at] = true
	return may
}

func (c *client) endWait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waits, call{by: c.by, key: c.key})
}

// waitForSlot is takeSlot, but often waits if none is free.
func (c *client) waitForSlot(correct func(*redisstore.Store, []store.Correction)) (leave func()) {
	came := c.now()
	if leave = c.takeSlot(correct, lineCall{}); leave != nil || c.rand.IntN(2) == 0 || !c.beginWait() {
		return leave
	}
	defer c.endWait()
	for range 1 + c.rand.IntN(60) {
		if leave = c.takeSlot(correct, lineCall{came: came, waits: true}); leave != nil {
			return leave
		}
		time.Sleep(time.Duration(c.rand.IntN(10_000)) * time.Microsecond) // a client makes random pauses
	}
	c.do(call{key: c.key, what: "end", by: c.by}, func() (string, error) {
		c.store.EndLine(store.SlotsID("z", ""), c.key, 0)
		return "", nil
	})
	return nil
}

// takeSlot takes a slot. It returns what gives it back, or nil if none was free.
func (c *client) takeSlot(correct func(*redisstore.Store, []store.Correction), l lineCall) (leave func()) {
	key := c.key
	r := []store.ZoneRequest{{Zone: "z", Key: key, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: slotsLimit}}}
	if l.waits {
		l.waited = c.now() - l.came
		r[0].Line = store.SlotLine{Waited: l.waited / 1000, Waiting: 1}
	} else {
		l.came = c.now()
	}
	result := c.do(call{key: key, what: "take", by: c.by, seen: c.leftBy(c.by, key, 0), lineCall: l}, func() (string, error) {
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
		c.tell(key)
	}
}

// tell adds when other stores see a give-back. Outside of simulated time another request of the key shows it: its reply
// comes only when Redis knows of the give-back.
func (c *client) tell(key string) {
	told := call{key: key, what: "told", by: c.by}
	if c.simulated {
		now := c.now()
		c.add(told, "", now+1, now+slotsGrace.Nanoseconds()) // after the give-back, which takes no simulated time
		return
	}
	c.do(told, func() (string, error) {
		_, err := c.store.Take(c.ctx, []store.ZoneRequest{{Zone: "z", Key: key, Slots: &store.Slots{ID: store.SlotsID("z", "")}}})
		return "", err // a limit of 0 denies the request
	})
}
