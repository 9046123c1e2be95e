package simulate

import (
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/keytable"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// Comparer compares the outcomes of the same requests in two configurations. It pairs them by
// [Visit.Number], because a configuration with delays decides in another order. It must be made by
// [NewComparer]. It is not safe for concurrent use.
//
// Memory is bounded by the requests that only one Decider has decided so far, and by the larger
// [Configuration.MaxKeys]. This number also bounds the clients whose outcomes changed.
type Comparer struct {
	configurations [2]Configuration
	zones          [2][]Zone
	pending        map[int64]pendingOutcome // by the number of the Visit
	both           int64
	changes        [2]change // of requests that only the first configuration denies, and only the second
}

// pendingOutcome is the outcome of a request in one configuration, while the other one is unknown.
type pendingOutcome struct {
	denied bool
	zones  zoneSet // that denied the request
}

// change is the requests that only one of the configurations denies.
type change struct {
	requests int64
	clients  keytable.Table[int64] // the requests of each client
	bound    keytable.Bound
	zones    keytable.Slab[uint64] // by the number of the client: a zoneSet
	top      topKeys
}

// zoneSet is a set of zones: one bit for each.
type zoneSet []uint64

func newZoneSet(zones int) zoneSet { return make(zoneSet, (zones+63)/64) }

func (s zoneSet) has(zone int) bool { return s[zone/64]&(1<<(zone%64)) != 0 }

func (s zoneSet) add(zone int) { s[zone/64] |= 1 << (zone % 64) }

// NewComparer returns a comparer of two configurations.
func NewComparer(first, second Configuration) *Comparer {
	c := &Comparer{
		configurations: [2]Configuration{first, second}, zones: [2][]Zone{first.Zones(), second.Zones()},
		pending: make(map[int64]pendingOutcome),
	}
	for i, zones := range c.zones {
		c.changes[i] = change{
			clients: keytable.New[int64](), bound: keytable.NewBound(max(first.MaxKeys(), second.MaxKeys()), 1),
			zones: keytable.NewSlab[uint64](len(newZoneSet(len(zones)))),
		}
	}
	return c
}

// First returns the observer of the first configuration.
func (c *Comparer) First() Observer { return comparedSide{c, 0} }

// Second returns the observer of the second configuration.
func (c *Comparer) Second() Observer { return comparedSide{c, 1} }

type comparedSide struct {
	comparer *Comparer
	side     int // 0 or 1
}

func (s comparedSide) Observe(d *Decided) { s.comparer.observe(s.side, d) }

func (c *Comparer) observe(side int, d *Decided) {
	other, known := c.pending[d.Number]
	if !known {
		outcome := pendingOutcome{denied: d.Denied}
		if d.Denied {
			outcome.zones = c.denyingZones(side, d)
		}
		c.pending[d.Number] = outcome
		return
	}
	delete(c.pending, d.Number)
	switch {
	case d.Denied && other.denied:
		c.both++
	case d.Denied:
		c.count(side, d.Client, c.denyingZones(side, d))
	case other.denied:
		c.count(1-side, d.Client, other.zones)
	}
}

func (c *Comparer) denyingZones(side int, d *Decided) zoneSet {
	set := newZoneSet(len(c.zones[side]))
	for i := range d.Zones {
		if z := &d.Zones[i]; z.Denied && !z.Shadow {
			set.add(z.Zone)
		}
	}
	return set
}

// count counts a request that only one configuration denies.
func (c *Comparer) count(side int, client string, zones zoneSet) {
	change := &c.changes[side]
	change.requests++
	number, result := change.clients.Find(client, &change.bound)
	switch result {
	case keytable.Full:
		return
	case keytable.Added:
		change.zones.Add()
	}
	requests := change.clients.At(number)
	*requests++
	known, last := zoneSet(change.zones.Row(number)), 0
	for zone := range c.zones[side] {
		if zones.has(zone) {
			known.add(zone)
			last = zone
		}
	}
	change.top.count(topKey{key: number, order: number, denied: *requests}, client, func(client string) string {
		return c.configurations[side].ShownKey(last, client)
	})
}

// Report returns the comparison so far.
func (c *Comparer) Report() *report.Comparison {
	first, second := &c.changes[0], &c.changes[1]
	return &report.Comparison{
		DeniedByBoth: c.both, NewlyDenied: second.requests, NoMoreDenied: first.requests,
		ClientCountNewlyDenied: second.clients.Len(), ClientCountNoMoreDenied: first.clients.Len(),
		ClientsNewlyDenied: second.report(c.zones[1]), ClientsNoMoreDenied: first.report(c.zones[0]),
	}
}

func (c *change) report(zones []Zone) []report.ClientChange {
	clients := []report.ClientChange{}
	for _, k := range c.top.sorted() {
		client := report.ClientChange{Client: k.shown, Requests: k.denied, Zones: []string{}}
		for zone := range zones {
			if zoneSet(c.zones.Row(k.key)).has(zone) {
				client.Zones = append(client.Zones, zones[zone].Name)
			}
		}
		clients = append(clients, client)
	}
	return clients
}
