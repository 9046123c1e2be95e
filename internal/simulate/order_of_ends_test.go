package simulate_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// At the end of a request, its last handler gives its slot back first, because it writes its response through the others.
// So the request that waits there asks first, and gets the last event of a zone that both handlers have.
func TestLastHandlerEndsFirst(t *testing.T) {
	const hour = 3600 * second
	c := zones{
		{Name: "both"}, {Name: "first", Concurrency: 2, MaxDelay: hour, Places: 9}, {Name: "last", Concurrency: 1, MaxDelay: hour, Places: 9},
	}
	budget := limit(t, "both", "fixed_window", 4, 24*hour, 0)
	handler := func(zone int) simulate.HandlerVisit {
		slots := &store.Slots{ID: store.SlotsID(c[zone].Name, ""), Limit: c[zone].Concurrency}
		return simulate.HandlerVisit{
			Requests: []store.Request{
				{Zone: "both", Key: "k", Cost: 1, Limits: []store.Limit{budget}}, {Zone: c[zone].Name, Key: "k", Cost: 1, Slots: slots},
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
