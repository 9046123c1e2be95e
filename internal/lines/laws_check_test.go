package lines

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// refund is called by the places of a zone.
func (w *world) refund(z *zoneModel, owner any, corrections []store.Correction) {
	if owner == z.refunded {
		w.Error("the charges of one owner are not given back together")
	}
	z.refunded = owner
	if taken, awaiting, line := w.places(z, corrections[0].Request.Key); taken-awaiting > int64(len(line)) {
		w.Error("a charge is given back while a request is being decided")
	}
	for _, x := range corrections {
		at := len(z.line) - 1
		for at > 0 && z.line[at].Requests[0].Key != x.Request.Key {
			at--
		}
		c := z.line[at]
		if c.doing != left || c.owner != owner || x.Request.Outcome.Decisions[0].Receipt != c.Requests[c.indexOf(z)].Outcome.Decisions[0].Receipt {
			w.Error("a charge is given back that others build on")
		}
		z.line = slices.Delete(z.line, at, at+1)
	}
	_ = w.memory.CorrectAt(w.Context(), w.now, corrections)
}

func (c *client) indexOf(z *zoneModel) int { return slices.Index(c.zones, z) }

// line returns the clients that stand in a line, in the order in which they came.
func (w *world) line(key slotKey) (line []*client) {
	for _, c := range w.clients {
		if (c.doing == waiting || c.doing == asking) && c.slotKey(c.need) == key {
			line = append(line, c)
		}
	}
	slices.SortStableFunc(line, func(a, b *client) int { return int(a.Came - b.Came) })
	return line
}

// places counts the places of a key, or of all.
func (w *world) places(z *zoneModel, key string) (taken, awaiting int64, line []*heldRequest) {
	for _, c := range z.line {
		if key == "" || c.Requests[0].Key == key {
			taken++
			line = append(line, c.Zones[c.indexOf(z)].held)
		}
	}
	for _, c := range w.clients {
		if i := c.indexOf(z); i >= 0 && (key == "" || c.Requests[0].Key == key) && c.doing <= asking && c.Zones[i].hasPlace {
			taken++
			if c.doing == waiting {
				awaiting++
			}
		}
	}
	return taken, awaiting, line
}

func (w *world) check() {
	for _, z := range w.zones {
		waiting := 0
		for _, key := range []string{"a", "b"} {
			taken, awaiting, line := w.places(z, key)
			if k := z.Places.byKey[key]; k.taken != taken || k.awaiting != awaiting || !slices.Equal(k.line, line) {
				w.Errorf("key %s has %d places, of which %d wait for slots, and %d for limits: want %d, %d, %d",
					key, k.taken, k.awaiting, len(k.line), taken, awaiting, len(line))
			}
			if n := len(line); n > 0 && line[n-1].abandoned && taken-awaiting == int64(n) {
				w.Errorf("the last charge of key %s isn't given back", key)
			}
			if z.Slots != nil {
				waiting += w.checkLine(slotKey{z.Slots.ID, key}, z)
			}
		}
		if int64(waiting) != z.counted {
			w.Errorf("%d requests of zone %s are counted, want %d", z.counted, z.Zone, waiting)
		}
		z.refunded = nil
	}
}

// checkLine returns how many wait in a line.
func (w *world) checkLine(key slotKey, z *zoneModel) int {
	line, real := w.line(key), []*Request(nil)
	if l := w.slots.byKey[key]; l != nil {
		for e := l.requests.Front(); e != nil; e = e.Next() {
			real = append(real, e.Value.(*Request))
		}
	}
	if !slices.EqualFunc(real, line, func(r *Request, c *client) bool { return r == &c.Request }) {
		w.Errorf("line %v has %v, want %v", key, real, line)
	}
	if len(line) == 0 {
		if n := w.told[key]; n > 0 {
			w.Errorf("nobody waits in line %v, but the store knows of %d", key, n)
		}
		return 0
	}
	due := w.paces[key].next
	if w.paces[key].mayBeFree || w.taken[key] < z.Slots.Limit {
		due = w.now
	}
	asked := slices.ContainsFunc(line, func(c *client) bool { return c.doing == asking })
	for i, c := range line {
		latest := c.Came + z.MaxDelay
		if i == 0 && !asked {
			latest = min(latest, due)
		}
		if c.doing == waiting && c.due > max(latest, w.now) {
			w.Errorf("client %d of line %v looks at %d, now is %d: want %d", i, key, c.due, w.now, latest)
		}
	}
	return len(line)
}
