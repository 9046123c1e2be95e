package lines

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// world drives clients of two zones in a time that only the test makes pass. It knows what each client does, and
// compares that with the lines and places after each step.
type world struct {
	*testing.T
	random  *rand.Rand
	memory  *store.Memory
	slots   *SlotLines
	zones   [2]*zoneModel
	tenants []store.Tenant
	pause   Micros // that of the SlotLines
	paces   map[lineKey]*pace
	taken   map[slotKey]int64 // slots
	told    map[lineKey]int64 // how many wait, as the store knows
	now     Micros
	clients []*client // except those that are gone
	came    Micros    // how many have come
	takes   int       // how many have been decided
	passed  int
}

// lineKey names the line of a tenant.
type lineKey struct {
	slotKey
	tenant uint64
}

func (c *client) lineKey(zone int) lineKey {
	n := Need{Zone: zone}
	return lineKey{c.slotKey(n), c.tenantOf(n)}
}

type zoneModel struct {
	DelayPolicy
	store.ZoneRequest           // without key
	counted           int64     // by CountWaiting
	refunded          any       // the owner of the last refund of this step
	line              []*client // of all keys, with charges that can be given back, in the order of these
}

// pace says when the first request of a line asks.
type pace struct {
	mayBeFree bool // something has happened since the last question
	freed     bool // since the last question of any line of the key
	next      Micros
}

type doing uint8

const (
	deciding doing = iota // without a line
	waiting
	asking // in a line
	held
	left // while it was held
	inside
	gone
)

type client struct {
	*world
	Request
	doing doing
	due   Micros // when it does next
	next  func()
	zones []*zoneModel
	owner any
	began Micros // the last decision
	order int    // of its last decision
}

func (w *world) come() {
	c := &client{world: w, zones: []*zoneModel{w.zones[0], w.zones[1]}, owner: w.random.IntN(2)}
	if w.random.IntN(2) == 0 {
		slices.Reverse(c.zones)
	}
	c.zones = c.zones[w.random.IntN(2):]
	w.came++
	c.Came = (w.now/1000-1-w.random.Int64N(5))*1000 + w.came // no two came at the same time
	c.Wake = func(wait Micros) {
		if c.doing == waiting {
			c.due = min(c.due, w.now+wait)
		}
	}
	key, tenant := []string{"a", "a", "a", "b"}[w.random.IntN(4)], w.tenants[w.random.IntN(len(w.tenants))]
	want := make([]bool, len(c.zones))
	for i, z := range c.zones {
		q := z.ZoneRequest
		q.Key, q.Tenant = key, tenant
		c.Requests, c.Zones = append(c.Requests, q), append(c.Zones, ZoneWait{Delay: &z.DelayPolicy})
		places, _, _ := w.places(z, "")
		has, _, _ := w.places(z, key)
		own := int64(0) // of the tenant
		for _, other := range w.clients {
			if i := other.indexOf(z); i >= 0 && other.Requests[0].Key == key && other.Zones[i].tenant == tenant.ID && other.hasPlaceIn(i) {
				own++
			}
		}
		room := z.MaxPlaces - places
		if !z.SingleKey {
			room = (room - has + 1) / 2
		}
		want[i] = room > 0 && (tenant.ID == 0 || room > own)
	}
	c.Reserve(always)
	for i, z := range c.Zones {
		if z.hasPlace != want[i] {
			w.Fatalf("a place: %v, want %v", z.hasPlace, want[i])
		}
	}
	w.clients = append(w.clients, c)
	occupied := -1
	for i := range c.zones {
		if occupied < 0 && c.Requests[i].Slots != nil && len(w.pool(c.slotKey(Need{Zone: i}))) > 0 {
			occupied = i
		}
	}
	next, need := c.slots.Begin(&c.Request, w.now)
	switch {
	case occupied < 0:
		c.want(next, Ask)
		c.ask(deciding)
	case want[occupied]:
		c.want(next, Wait)
		c.join(need.Zone)
	default:
		c.want(next, Decided)
		c.end()
	}
}

func (c *client) want(step, want Step) {
	if c.Helper(); step != want {
		c.Fatalf("step %d, want %d", step, want)
	}
}

func (c *client) then(wait Micros, next func()) { c.due, c.next = c.now+wait, next }

func (c *client) ask(doing doing) {
	c.doing, c.began = doing, c.now
	const trip = 20_000 // at most
	c.then(c.random.Int64N(trip), func() {
		allowed, _ := c.memory.TakeAt(c.Context(), c.now, c.Requests)
		c.takes++
		c.order = c.takes
		for i := range c.Requests {
			if c.Requests[i].Outcome.Slots.Taken {
				c.taken[c.slotKey(Need{Zone: i})]++
			}
			if n := c.Requests[i].Line.Waiting; n > 0 {
				c.told[c.lineKey(i)] = n
				if allowed {
					c.told[c.lineKey(i)]--
				}
			}
		}
		c.then(c.random.Int64N(trip), func() { c.answered(allowed) })
	})
}

func (c *client) answered(allowed bool) {
	line := -1
	if c.doing == asking {
		line = c.Line()
	}
	if c.random.IntN(20) == 0 { // the store fails
		c.slots.Leave(&c.Request, c.now)
		c.passOn(line, slotsMayRemain)
		c.end()
		for i := range c.Requests {
			c.Requests[i].Tenant = store.Tenant{} // for which no slot counts
		}
		c.correct(algorithms.Forever)
		return
	}
	next, need := c.slots.Answered(&c.Request, allowed, c.now)
	if next == Wait {
		if line >= 0 && line != need.Zone && c.Requests[line].LacksSlot() {
			c.Error("it leaves a line in which it must wait")
		}
		c.join(need.Zone)
		return
	}
	slots := slotsMayRemain
	if allowed && line >= 0 && c.Requests[line].Outcome.Slots.InFlight >= c.Requests[line].Slots.Limit {
		slots = noSlotRemains
	}
	c.passOn(line, slots)
	if !allowed {
		c.end()
		return
	}
	delay := Micros(0)
	c.doing = held
	for i, z := range c.zones {
		for _, d := range c.Requests[i].Outcome.Decisions {
			delay = max(delay, d.Wait)
		}
		if c.Zones[i].hasPlace && z.Limits != nil {
			at := len(z.line)
			for at > 0 && z.line[at-1].order > c.order {
				at--
			}
			z.line = slices.Insert(z.line, at, c)
		}
	}
	if line >= 0 && c.began+delay > c.Came+c.zones[0].MaxDelay {
		c.Errorf("delayed for %d in all", c.began+delay-c.Came)
	}
	c.Hold(c.owner)
	c.Release()
	c.then(delay, c.pass)
}

// pass ends the delay, which makes the charges before it final.
func (c *client) pass() {
	for _, z := range c.zones {
		if slices.Contains(z.line, c) {
			z.line = slices.DeleteFunc(z.line, func(o *client) bool {
				return o == c || o.doing == left && o.order < c.order && o.Requests[0].Key == c.Requests[0].Key
			})
		}
	}
	c.doing = inside
	c.passed++
	c.Pass()
	c.then(c.random.Int64N(second), c.finish)
}

// passOn is called when a request that was asking in a line leaves it, or returns to it. Slots that may remain are a reason
// for all lines of the key to ask. If none remains, what was free before the question is none any more.
func (c *client) passOn(line int, slots remaining) {
	if line < 0 {
		return
	}
	own := c.lineKey(line)
	for key, p := range c.paces {
		if key.slotKey != own.slotKey {
			continue
		}
		if p.mayBeFree = slots == slotsMayRemain || p.mayBeFree && (slots == slotsForOthers || p.freed); key == own {
			p.next = c.now + c.pause
		}
	}
}

// join begins a line, joins one, or returns to one after a question.
func (c *client) join(zone int) {
	if c.doing == asking && c.Line() == zone {
		slots := slotsForOthers
		if c.Requests[zone].Outcome.Slots.InFlight >= c.Requests[zone].Slots.Limit {
			slots = noSlotRemains
		}
		c.passOn(zone, slots)
	} else {
		if c.doing == asking {
			c.passOn(c.Line(), slotsMayRemain)
		}
		c.enter(c.lineKey(zone))
	}
	c.doing = waiting
	c.then(c.slots.Join(&c.Request, Need{Zone: zone}, c.now), c.look)
}

// enter begins a line if the client is the first one.
func (c *client) enter(key lineKey) {
	if line := c.world.line(key); len(line) == 0 || len(line) == 1 && line[0] == c {
		c.paces[key] = &pace{next: c.now}
	}
}

func (c *client) look() {
	before, first := c.Line(), c.world.line(c.lineKey(c.Line()))[0] == c
	next, wait := c.slots.Look(&c.Request, c.now)
	switch next {
	case Ask:
		key := c.lineKey(c.Line())
		p, line := c.paces[key], c.world.line(key)
		if line[0] != c || c.world.asks(key.slotKey) || !p.mayBeFree && c.now < p.next {
			c.Errorf("it is not the turn of this client of %v", line)
		}
		for i := range c.zones {
			if c.Requests[i].Slots == nil || !c.Zones[i].hasPlace {
				continue
			}
			of := c.lineKey(i)
			if other := c.world.line(of); i != before && len(other) > 0 && other[0].Came < c.Came {
				c.Error("an earlier one waits in another line")
			}
			for other, p := range c.paces {
				rivals := c.world.line(other)
				if other.slotKey != of.slotKey || len(rivals) == 0 || i != before && c.world.asks(of.slotKey) {
					continue
				}
				if c.pause == LocalPause && p.mayBeFree && of.tenant*other.tenant != 0 && c.comesAfter(i, rivals[0]) {
					c.Errorf("it is the turn of the tenant of %v, which holds less for its weight", rivals[0])
				}
			}
		}
		for other, p := range c.paces {
			p.freed = p.freed && other.slotKey != key.slotKey
		}
		p.mayBeFree = false
		c.checkTold(line)
		c.ask(asking)
	case Wait:
		if c.Line() != before {
			c.tell(before)
			c.enter(c.lineKey(c.Line()))
		}
		c.due = c.now + wait
	default:
		if c.now < c.Came+c.zones[0].MaxDelay {
			c.Error("denied before its time is over")
		}
		if first {
			c.tell(before)
		}
		c.end()
	}
}

// checkTold checks what the client, which is the first in its line, says to the store.
func (c *client) checkTold(line []*client) {
	for i := range c.Requests {
		want := store.SlotLine{Waited: c.now - c.Came}
		if i == c.Line() {
			behind := line[1:min(int64(len(line)), 1+c.Requests[i].Slots.Limit)]
			want.Waiting = 1 + int64(len(behind))
			for mark := 0; mark < 4 && len(behind) > 0; mark++ {
				want.Marks[mark] = c.now - behind[len(behind)*mark/4].Came
			}
		}
		if got := c.Requests[i].Line; got != want {
			c.Errorf("zone %d: the store reads %+v, want %+v", i, got, want)
		}
	}
}

// tell makes the next one of a line ask at once, because the first one has left. Memory knows nothing of lines.
func (c *client) tell(zone int) {
	p := c.paces[c.lineKey(zone)]
	p.mayBeFree = p.mayBeFree || c.pause == SharedPause
}

// leave ends what the client does, if it waits or is held.
func (c *client) leave() {
	switch c.doing {
	case waiting:
		if c.world.line(c.lineKey(c.Line()))[0] == c {
			c.tell(c.Line())
		}
		c.slots.Leave(&c.Request, c.now)
		c.end()
	case held:
		c.doing = left
		c.Abandon()
		c.then(0, c.finish)
	}
}

func (c *client) end() {
	c.doing = gone
	c.Release()
}

// finish gives the slots back.
func (c *client) finish() {
	if c.doing == inside {
		c.doing = gone
	}
	c.due = algorithms.Forever
	c.correct(0)
}

// correct gives back charges, and the slots.
func (c *client) correct(refund Micros) {
	corrections := store.FullRefunds(c.Requests)
	for i := range c.Requests {
		taken := c.Requests[i].Outcome.Slots.Taken
		corrections[i].Refund, corrections[i].Leave = refund, taken
		if taken {
			key := c.slotKey(Need{Zone: i})
			c.taken[key]--
			for line, p := range c.paces {
				if line.slotKey == key {
					p.mayBeFree, p.freed = true, true
				}
			}
		}
	}
	_ = c.memory.CorrectAt(c.Context(), c.now, corrections)
	c.slots.Wake(corrections)
}

// run lets clients come, and do what is due.
func (w *world) run(number int, soon Micros) {
	for comes := w.now; !w.Failed(); {
		first := &client{due: algorithms.Forever}
		for _, c := range w.clients {
			if c.due < first.due {
				first = c
			}
		}
		if number > 0 && comes <= first.due {
			w.now = comes
			w.come()
			number--
			comes += w.random.Int64N(soon)
		} else if first.due == algorithms.Forever {
			return
		} else {
			w.now = max(w.now, first.due)
			first.next()
		}
		w.check()
		if n := len(w.clients); n > 0 && w.random.IntN(20) == 0 {
			w.clients[w.random.IntN(n)].leave()
			w.check()
		}
		w.clients = slices.DeleteFunc(w.clients, func(c *client) bool { return c.doing == gone })
	}
}

// Requests of a key wait in the order in which they came, one of them asks at a time, and none waits beside a free
// slot. The charge of a client that leaves is given back as soon as no other request can be charged behind it.
//
// Clients of two keys and one or two zones come, wait for slots and for limits, and leave at random. The store and the
// messages to it take time, and messages overtake each other.
func TestLaws(t *testing.T) {
	passed := 0
	for seed := range seedtest.Cases(t, uint64(200)) {
		random := rand.New(rand.NewPCG(seed, 17))
		w := &world{T: t, random: random, memory: store.NewMemory(1000), now: hour}
		w.pause, w.slots = LocalPause, NewSlotLines(LocalPause, nil)
		if random.IntN(2) > 0 { // a shared store
			w.pause, w.slots = SharedPause, NewSlotLines(SharedPause, func(id, key string, tenant uint64) { w.told[lineKey{slotKey{id, key}, tenant}] = 0 })
		}
		w.paces, w.taken, w.told = make(map[lineKey]*pace), make(map[slotKey]int64), make(map[lineKey]int64)
		w.tenants = []store.Tenant{{}, {ID: 2, Weight: 1}, {ID: 3, Weight: 1 + random.Int64N(3)}}[:1+2*random.IntN(2)]
		maxDelay := 1 + random.Int64N(3*second)
		for i := range w.zones {
			z := &zoneModel{}
			z.Zone, z.Cost = []string{"first", "second"}[i], 1
			z.DelayPolicy = DelayPolicy{MaxDelay: maxDelay, MaxPlaces: 1 + random.Int64N(20), SingleKey: random.IntN(4) == 0}
			z.Places = NewPlaces(func(owner any, corrections []store.Correction) { w.refund(z, owner, corrections) })
			z.CountWaiting = func(_ Need, n int64) { z.counted += n }
			if random.IntN(3) > 0 {
				z.Slots = &store.Slots{ID: store.SlotsID(z.Zone, ""), Limit: []int64{1, 1, 2, 3, 9}[random.IntN(5)]}
			}
			if z.Slots == nil || random.IntN(2) == 0 {
				z.Limits = []store.Limit{storetest.Limit(t, z.Zone, algorithms.Quota{
					Algorithm: []string{"gcra", "token_bucket", "leaky_bucket", "smooth"}[random.IntN(4)], Events: 5, Window: second, Burst: 1,
				})}
			}
			w.zones[i] = z
		}
		w.run(150, 1+second/(2+random.Int64N(30)))
		passed += w.passed
		for _, z := range w.zones {
			z.wantEmpty(t)
		}
		if requests, lines := w.slots.Waiting(); requests != 0 || lines != 0 || len(w.slots.byKey) != 0 {
			t.Errorf("%d requests wait in %d lines of %v, want none", requests, lines, w.slots.byKey)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if passed < 1000 {
		t.Errorf("%d requests passed", passed)
	}
}
