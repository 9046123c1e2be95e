package simulate

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The requests that run at the same time are bounded. Others end at once, until another request has ended.
func TestRunningRequestsAreBounded(t *testing.T) {
	d := NewDecider(&reportConfiguration{maxKeys: 1000, zones: []Zone{{Name: "api", Concurrency: 10}}})
	d.capacity = 3
	slots := &store.Slots{ID: store.SlotsID("api", ""), Limit: 10}
	var inFlight []int64
	for i := range int64(8) {
		v := &Visit{Start: 1 + i, End: 1 << 50, Handlers: []HandlerVisit{{
			Requests: []store.ZoneRequest{{Zone: "api", Key: "k", Cost: 1, Slots: slots}}, Zones: make([]ZoneVisit, 1),
		}}}
		if i == 0 {
			v.End = 6
		}
		d.Decide(v)
		inFlight = append(inFlight, v.Handlers[0].Requests[0].Outcome.Slots.InFlight)
		if n := d.events.Len(); n > 3 {
			t.Fatalf("%d events wait", n)
		}
	}
	for i, want := range []int64{1, 2, 3, 4, 4, 3, 4, 4} {
		if inFlight[i] != want {
			t.Errorf("with request %d, %d requests are in flight, want %d", i, inFlight[i], want)
		}
	}
	d.Finish()
	if d.capacity != 3 {
		t.Errorf("a capacity of %d requests remains", d.capacity)
	}
}
