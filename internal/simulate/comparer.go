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
	zones  []bool // that denied the request
}

// change is the requests that only one of the configurations denies.
type change struct {
	requests int64
	clients  keytable.Table[changedClient]
	bound    keytable.Bound
	top      topKeys
}

// changedClient is the requests of a client that only one of the configurations denies, and the zones that deny them.
type changedClient struct {
	requests int64
	zones    []bool
}

// NewComparer returns a comparer of two configurations.
func NewComparer(first, second Configuration) *Comparer {
	c := &Comparer{
		configurations: [2]Configuration{first, second}, zones: [2][]Zone{first.Zones(), second.Zones()},
		pending: make(map[int64]pendingOutcome),
	}
	for i := range c.changes {
		c.changes[i] = change{
			clients: keytable.New[changedClient](), bound: keytable.NewBound(max(first.MaxKeys(), second.MaxKeys()), 1),
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

func (c *Comparer) denyingZones(side int, d *Decided) []bool {
	zones := make([]bool, len(c.zones[side]))
	for i := range d.Zones {
		if z := &d.Zones[i]; z.Denied && !z.Shadow {
			zones[z.Zone] = true
		}
	}
	return zones
}

// count counts a request that only one configuration denies.
func (c *Comparer) count(side int, client string, zones []bool) {
	change := &c.changes[side]
	change.requests++
	number, result := change.clients.Find(client, &change.bound)
	if result == keytable.Full {
		return
	}
	changed, last := change.clients.At(number), 0
	changed.requests++
	if changed.zones == nil {
		changed.zones = make([]bool, len(zones))
	}
	for zone, denies := range zones {
		if denies {
			changed.zones[zone], last = true, zone
		}
	}
	change.top.count(topKey{key: number, order: number, denied: changed.requests}, client, func(client string) string {
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
	for _, k := range c.top {
		client := report.ClientChange{Client: k.shown, Requests: k.denied, Zones: []string{}}
		for zone, denies := range c.clients.At(k.key).zones {
			if denies {
				client.Zones = append(client.Zones, zones[zone].Name)
			}
		}
		clients = append(clients, client)
	}
	return clients
}
