package lines

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// world drives requests in a time that only the test makes pass.
type world struct {
	*testing.T
	memory *store.Memory
	slots  *Slots
	now    Micros
	agenda []appointment // in the order of their instants
	check  func()        // called after each of them
}

type appointment struct {
	at   Micros
	keep func()
}

func (w *world) at(instant Micros, keep func()) {
	i := len(w.agenda)
	for i > 0 && w.agenda[i-1].at > instant {
		i--
	}
	w.agenda = slices.Insert(w.agenda, i, appointment{instant, keep})
}

func (w *world) run() {
	for len(w.agenda) > 0 {
		next := w.agenda[0]
		w.agenda = w.agenda[1:]
		w.now = next.at
		next.keep()
		w.check()
	}
}

// client is a client that sends a request.
type client struct {
	*world
	Request
	waits, held bool
	takes       Micros // after it has passed
	passed      func()
	denied      func()
}

func (c *client) send() {
	c.Came, c.Wake = c.now, func(wait Micros) { c.at(c.now+wait, c.look) }
	c.Reserve(always)
	c.follow(c.slots.Begin(&c.Request, c.now))
}

func (c *client) follow(next Step, zone int) {
	allowed := false
	if next == Ask {
		allowed, _ = c.memory.TakeAt(c.Context(), c.now, c.Requests)
		next, zone = c.slots.Answered(&c.Request, allowed, c.now)
	}
	delay := Micros(0)
	switch {
	case next == Wait:
		c.waits = true
		c.at(c.now+c.slots.Join(&c.Request, zone, c.now), c.look)
		return
	case !allowed:
		c.Release()
		c.denied()
		return
	}
	for _, d := range c.Requests[0].Outcome.Decisions {
		delay = max(delay, d.Wait)
	}
	c.held = true
	c.Hold(nil)
	c.at(c.now+delay, func() {
		if c.held {
			c.held = false
			c.Pass()
			c.Release()
			c.passed()
			c.at(c.now+c.takes, c.finish)
		}
	})
}

func (c *client) look() {
	if !c.waits {
		return
	}
	next, wait := c.slots.Look(&c.Request, c.now)
	if next == Wait {
		c.at(c.now+wait, c.look)
		return
	}
	c.waits = false
	c.follow(next, 0)
}

// leave ends the request, unless it has passed or was denied.
func (c *client) leave() {
	switch {
	case c.waits:
		c.waits = false
		c.slots.Leave(&c.Request, c.now)
		c.Release()
	case c.held:
		c.held = false
		c.Abandon()
		c.Release()
		c.finish()
	}
}

// finish gives the slot back.
func (c *client) finish() {
	corrections := []store.Correction{{Request: &c.Requests[0], Leave: c.Requests[0].Outcome.Slots.Taken}}
	_ = c.memory.CorrectAt(c.Context(), c.now, corrections)
	c.slots.Wake(corrections)
}

// Clients of several keys come, wait for slots and for limits, and leave at random. Of each key, the requests
// pass in the order in which they came if they need slots, and in the order of their charges. No place is
// lost, and all are free in the end. A key whose clients all stay and fit is never denied by a flood of
// another key.
func TestLaws(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(100)) {
		random := rand.New(rand.NewPCG(seed, 17))
		limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 5, Window: second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, memory: store.NewMemory(1000), slots: NewSlots(FirstPause, MaxPause), now: hour}
		refund := func(_ any, corrections []store.Correction) { _ = w.memory.CorrectAt(t.Context(), w.now, corrections) }
		policy := &Policy{MaxDelay: 20 * second, MaxPlaces: 20 + random.Int64N(30), Places: NewPlaces(refund)}
		w.check = func() { policy.check(t) }
		var slots *store.Slots
		if random.IntN(2) == 0 {
			slots = &store.Slots{ID: store.SlotsID("api", ""), Limit: 1 + random.Int64N(3)}
		}
		type progress struct{ came, charged Micros }
		last := make(map[string]progress) // of the last request of a key that passed
		passed := 0
		newClient := func(key string) *client {
			c := &client{world: w, takes: random.Int64N(second), denied: func() {}}
			c.Requests = []store.Request{{Zone: "api", Key: key, Cost: 1, Limits: []store.Limit{store.NewLimit("api", "", limit)}, Slots: slots}}
			c.Zones = []Zone{{Policy: policy}}
			c.passed = func() {
				passed++
				p, before := progress{c.Came, c.Requests[0].Outcome.Decisions[0].Receipt.At}, last[key]
				if p.charged < before.charged || slots != nil && p.came < before.came {
					t.Errorf("seed %d: a request of key %s passed after one that came or was charged later", seed, key)
				}
				last[key] = p
			}
			return c
		}
		at := w.now
		for number := range 200 {
			c := newClient([]string{"flood", "flood", "flood", "flood", "b"}[random.IntN(5)])
			w.at(at, c.send)
			if random.IntN(3) == 0 {
				w.at(at+random.Int64N(5*second), c.leave)
			}
			if random.IntN(10) == 0 { // one at a time, so it has one place at most
				calm := newClient(fmt.Sprint("calm", number))
				calm.denied = func() { t.Errorf("seed %d: a calm key was denied", seed) }
				w.at(at, calm.send)
			}
			at += random.Int64N(second / 10)
		}
		w.run()
		if passed == 0 {
			t.Error("no request passed")
		}
		policy.wantEmpty(t)
		wantNobody(t, w.slots)
		if t.Failed() {
			return
		}
	}
}
