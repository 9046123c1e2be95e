package lines

import (
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
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
func (w *world) line(key lineKey) (line []*client) {
	for _, c := range w.pool(key.slotKey) {
		if c.tenantOf(c.need) == key.tenant {
			line = append(line, c)
		}
	}
	return line
}

// pool returns the clients that stand in any line of a key.
func (w *world) pool(key slotKey) (pool []*client) {
	for _, c := range w.clients {
		if (c.doing == waiting || c.doing == asking) && c.slotKey(c.need) == key {
			pool = append(pool, c)
		}
	}
	slices.SortStableFunc(pool, func(a, b *client) int { return int(a.Came - b.Came) })
	return pool
}

// asks reports whether a client is asking in any line of a key.
func (w *world) asks(key slotKey) bool {
	return slices.ContainsFunc(w.pool(key), func(c *client) bool { return c.doing == asking })
}

// comesAfter reports whether the tenant of another client that waits for the slots of a zone holds less for its weight.
func (c *client) comesAfter(zone int, other *client) bool {
	load := func(c *client, zone int, weight int64) int64 {
		held := int64(0)
		for _, user := range c.clients {
			if i := user.indexOf(c.zones[zone]); i >= 0 && user.doing > asking && user.doing < gone && user.due < algorithms.Forever &&
				user.lineKey(i) == c.lineKey(zone) && user.Requests[i].Outcome.Slots.Taken {
				held++
			}
		}
		return held * max(weight, 1)
	}
	others := load(other, other.Line(), c.Requests[zone].Tenant.Weight)
	return load(c, zone, other.Requests[other.Line()].Tenant.Weight) > others
}

// hasPlaceIn reports whether the client has a place in its zone i, or had one that nobody has given back.
func (c *client) hasPlaceIn(i int) bool {
	return c.doing <= asking && c.Zones[i].hasPlace || slices.Contains(c.zones[i].line, c)
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
				for _, tenant := range w.tenants {
					waiting += w.checkLine(lineKey{slotKey{z.Slots.ID, key}, tenant.ID}, z)
				}
			}
		}
		if int64(waiting) != z.counted {
			w.Errorf("%d requests of zone %s are counted, want %d", z.counted, z.Zone, waiting)
		}
		z.refunded = nil
	}
}

// checkLine returns how many wait in a line.
func (w *world) checkLine(key lineKey, z *zoneModel) int {
	line, real, holding := w.line(key), []*Request(nil), int64(0)
	for _, c := range w.clients {
		if i := c.indexOf(z); i >= 0 && key.tenant != 0 && c.lineKey(i) == key && c.doing > asking && c.doing < gone && c.due < algorithms.Forever && c.Requests[i].Outcome.Slots.Taken {
			holding++
		}
	}
	if l := w.slots.byKey[key.slotKey].line(key.tenant); l != nil {
		holding -= l.slots
		for e := l.requests.Front(); e != nil; e = e.Next() {
			real = append(real, e.Value.(*Request))
		}
	}
	if holding != 0 {
		w.Errorf("line %v: its tenant holds %d more", key, holding)
	}
	if !slices.EqualFunc(real, line, func(r *Request, c *client) bool { return r == &c.Request }) {
		w.Errorf("line %v has %v, want %v", key, real, line)
	}
	if len(line) == 0 {
		if n := w.told[key]; n > 0 && w.pause == SharedPause {
			w.Errorf("nobody waits in line %v, but the store knows of %d", key, n)
		}
		return 0
	}
	longest := perQuestion * Micros(4*len(w.tenants)) // pause, with two keys and two zones
	due, asked, pool := w.paces[key].next+max(longest-w.pause, 0), w.asks(key.slotKey), w.pool(key.slotKey)
	if len(w.tenants) > 1 {
		due += max(longest, w.pause) // it was the turn of another line, which has ended
	}
	isDue := func(c *client) bool { return c.due <= w.now }
	if hasReason := w.paces[key].mayBeFree || w.taken[key.slotKey] < z.Slots.Limit; hasReason && !asked && !slices.ContainsFunc(pool, isDue) {
		w.Errorf("nobody of %v asks, although a slot may be free", key)
	}
	for i, c := range line {
		latest := c.Came + z.MaxDelay
		if i == 0 && !asked && !slices.ContainsFunc(pool, isDue) {
			latest = min(latest, due)
		}
		if c.doing == waiting && c.due > max(latest, w.now) {
			w.Errorf("client %d of line %v looks at %d, now is %d: want %d", i, key, c.due, w.now, latest)
		}
	}
	return len(line)
}
