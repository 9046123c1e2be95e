package simulate_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// At the end of a request, its last handler gives its slot back first, because it writes its response through the others.
// So the request that waits there asks first, and gets the last event of a zone that both handlers have.
func TestLastHandlerEndsFirst(t *testing.T) {
	const hour = 3600 * second
	c := zones{all: []simulate.Zone{
		{Name: "both"}, {Name: "first", Concurrency: 2, MaxDelay: hour, Places: 9}, {Name: "last", Concurrency: 1, MaxDelay: hour, Places: 9},
	}}
	budget := limit(t, "both", "fixed_window", 4, 24*hour, 0)
	handler := func(zone int) simulate.HandlerVisit {
		slots := &store.Slots{ID: store.SlotsID(c.all[zone].Name, ""), Limit: c.all[zone].Concurrency}
		return simulate.HandlerVisit{
			Requests: []store.ZoneRequest{
				{Zone: "both", Key: "k", Cost: 1, Limits: []store.Limit{budget}}, {Zone: c.all[zone].Name, Key: "k", Cost: 1, Slots: slots},
			},
			Zones: []simulate.ZoneVisit{{Zone: 0}, {Zone: zone}},
		}
	}
	var got outcomes
	d := simulate.NewDecider(c, &got)
	for n := range int64(3) { // the first holds both slots, the second waits in the last handler, and the third in the first
		start := (1 + n) * second
		d.Decide(&simulate.Visit{Number: n, Start: start, End: start + 10*second, Handlers: []simulate.HandlerVisit{handler(1), handler(2)}})
	}
	d.Finish()
	denied := make(map[int64]bool)
	for _, o := range got {
		denied[o.visit.Number] = o.denied
	}
	if len(denied) != 3 || denied[0] || denied[1] || !denied[2] {
		t.Errorf("denied are %v, want the third alone", denied)
	}
}

// Each request is observed once, and comes to the last handler, although its place in memory was that of an earlier one.
func TestEachRequestIsObservedOnce(t *testing.T) {
	c := zones{all: []simulate.Zone{{Name: "first", MaxDelay: 3600 * second, Places: 9}, {Name: "last"}}}
	limits := [][]store.Limit{{limit(t, "first", "gcra", 1, 10*second, 1)}, {limit(t, "last", "fixed_window", 100, 24*3600*second, 0)}}
	var got outcomes
	d := simulate.NewDecider(c, &got)
	for n, start := range []algorithms.Micros{1, 20, 21, 22, 60, 61, 100} { // some are delayed in the first handler
		v := &simulate.Visit{Number: int64(n), Start: start * second, End: start * second}
		for i := range c.all {
			v.Handlers = append(v.Handlers, simulate.HandlerVisit{
				Requests: []store.ZoneRequest{{Zone: c.all[i].Name, Key: "k", Cost: 1, Limits: limits[i]}}, Zones: []simulate.ZoneVisit{{Zone: i}},
			})
		}
		d.Decide(v)
	}
	d.Finish()
	seen := make(map[int64]int)
	for _, o := range got {
		if seen[o.visit.Number]++; seen[o.visit.Number] > 1 || o.denied || !o.zones[1].Reached {
			t.Errorf("request %d: %+v", o.visit.Number, o)
		}
	}
	if len(seen) != 7 {
		t.Errorf("%d requests of 7 are observed", len(seen))
	}
}
