package propose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// Requests of a key are encoded one after the other, and read by sets.
func TestEncodedRequests(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	var encoded encodedRequests
	want := make(map[int][]request)
	at := algorithms.Micros(1_700_000_000_000_000)
	for range 1000 {
		at += r.Int64N(1000) * r.Int64N(1e9)
		e := request{at: at, end: at, cost: r.Int64N(3), mode: algorithms.Mode(r.IntN(4))}
		if e.cost == 2 {
			e.settled, e.trueCost = true, r.Int64N(1e12)
			e.end += r.Int64N(1e9)
		}
		set := r.IntN(2) * r.IntN(2000)
		encoded.add(set, &e)
		want[set] = append(want[set], e)
	}
	for set, requests := range want {
		i := 0
		encoded.each(set, func(e request) {
			if e != requests[i] {
				t.Fatalf("set %d, request %d: %+v, want %+v", set, i, e, requests[i])
			}
			i++
		})
		if i != len(requests) {
			t.Fatalf("set %d: %d requests, want %d", set, i, len(requests))
		}
	}
}

// A request that comes late counts at the instant of the request before it.
func TestRecorderKeepsTheOrder(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}}
	log := []zoneRequest{{key: "k", request: request{at: 20, end: 20, cost: 1}}, {key: "k", request: request{at: 10, end: 15, cost: 1}}}
	var got []request
	record(t, log, zone).zones[0].sets[0].each(0, func(e request) { got = append(got, e) })
	if want := []request{log[0].request, {at: 20, end: 20, cost: 1}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Requests that a zone of the same handler denies are recorded. Exempt requests, those that meet only a
// ban, and those that an earlier handler denies are not.
func TestRecorderRecordsRequests(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	zones := []simulate.Zone{
		{Name: "a", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}},
		{Name: "b", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}},
		{Name: "c", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}},
	}
	tests := []struct {
		name   string
		denied [3]bool
		shadow bool // zone a
		only   int  // the zone with only a ban; -1 for none
		exempt int  // the zone that doesn't limit the request; -1 for none
		want   [3]int64
	}{
		{"allowed", [3]bool{}, false, -1, -1, [3]int64{1, 1, 1}},
		{"denied by the other zone", [3]bool{true, false, false}, false, -1, -1, [3]int64{1, 1, 0}},
		{"denied by the last zone", [3]bool{false, false, true}, false, -1, -1, [3]int64{1, 1, 1}},
		{"denied by a shadow", [3]bool{true, false, false}, true, -1, -1, [3]int64{1, 1, 1}},
		{"only a ban", [3]bool{}, false, 1, -1, [3]int64{1, 0, 1}},
		{"exempt", [3]bool{}, false, -1, 0, [3]int64{0, 1, 1}},
	}
	for _, test := range tests {
		r := NewRecorder(zonesOnly{zones: zones, maxKeys: 10}, DefaultTarget)
		visit := simulate.Visit{Handlers: []simulate.HandlerVisit{
			{Zones: []simulate.ZoneVisit{{Zone: 0}, {Zone: 1}}}, {Zones: []simulate.ZoneVisit{{Zone: 2}}},
		}}
		d := simulate.Decided{Visit: &visit, Came: 1, Denied: slices.Contains(test.denied[:], true) && !test.shadow}
		at := 0
		for h := range visit.Handlers {
			for z := range visit.Handlers[h].Zones {
				v := &visit.Handlers[h].Zones[z]
				v.BanOnly = at == test.only
				if at != test.exempt {
					d.Zones = append(d.Zones, simulate.DecidedZone{
						ZoneVisit: v, Key: "k", Cost: 1, Denied: test.denied[at], Shadow: test.shadow && at == 0,
					})
				}
				at++
			}
		}
		r.Observe(&d)
		for i, want := range test.want {
			got := int64(0)
			if s := r.zones[i].sets[0]; s != nil {
				got = s.requests
			}
			if got != want {
				t.Errorf("%s: zone %s has %d requests, want %d", test.name, zones[i].Name, got, want)
			}
		}
	}
}

// The charge of a request is corrected as the Decider corrects it.
func TestRecorderRecordsSettlements(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	sets := []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}
	for _, test := range []struct {
		name                               string
		wasDenied, deniedLater, refundsOwn bool
		want                               request
	}{
		{"settled", false, false, false, request{at: 10, end: 90, cost: 3, settled: true, trueCost: 7}},
		{"denied in the log", true, false, false, request{at: 10, end: 10, cost: 3}},
		{"denied later", false, true, false, request{at: 10, end: 10, cost: 3}},
		{"denied later, and given back", false, true, true, request{at: 10, end: 10, cost: 3, settled: true}},
	} {
		zones := []simulate.Zone{{Name: "a", Sets: sets, RefundsDenied: test.refundsOwn}, {Name: "b", Sets: sets}}
		r := NewRecorder(zonesOnly{zones: zones, maxKeys: 10}, DefaultTarget)
		visit := simulate.Visit{End: 90, WasDenied: test.wasDenied, Handlers: []simulate.HandlerVisit{
			{Zones: []simulate.ZoneVisit{{Zone: 0, Settled: true, TrueCost: 7}}}, {Zones: []simulate.ZoneVisit{{Zone: 1}}},
		}}
		r.Observe(&simulate.Decided{Visit: &visit, Came: 10, Denied: test.deniedLater, Zones: []simulate.DecidedZone{
			{ZoneVisit: &visit.Handlers[0].Zones[0], Key: "k", Cost: 3},
			{ZoneVisit: &visit.Handlers[1].Zones[0], Key: "k", Cost: 1, Denied: test.deniedLater},
		}})
		r.zones[0].sets[0].each(0, func(e request) {
			if e != test.want {
				t.Errorf("%s: %+v, want %+v", test.name, e, test.want)
			}
		})
		if r.zones[0].sets[0].requests != 1 {
			t.Errorf("%s: %d requests", test.name, r.zones[0].sets[0].requests)
		}
	}
}

// The number of keys, and the number of sets, have bounds.
func TestRecorderIsBounded(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}}
	for i := range 50 {
		zone.Sets = append(zone.Sets, simulate.LimitSet{Name: fmt.Sprint("override ", i), Limits: []*algorithms.Limit{limit}})
	}
	var log []zoneRequest
	for i := range 5000 {
		at := int64(i) + 1
		log = append(log, zoneRequest{key: fmt.Sprint("key ", i%2000), set: i % 51, request: request{at: at, end: at, cost: 1}})
	}
	r := record(t, log, zone)
	if n := r.zones[0].keys.Len(); n != 1000 {
		t.Errorf("%d keys, want 1000, which is MaxKeys", n)
	}
	late := simulate.Visit{Handlers: []simulate.HandlerVisit{{Zones: []simulate.ZoneVisit{{Zone: 1}}}}}
	two := NewRecorder(zonesOnly{zones: []simulate.Zone{zone, zone}, maxKeys: 10}, DefaultTarget)
	for i := range 40 { // a zone that comes late has its share of the room
		late.Handlers[0].Zones[0].Zone = i / 20
		two.Observe(&simulate.Decided{Visit: &late, Came: 1, Zones: []simulate.DecidedZone{
			{ZoneVisit: &late.Handlers[0].Zones[0], Key: fmt.Sprint(i), Cost: 1},
		}})
	}
	if first, second := two.zones[0].keys.Len(), two.zones[1].keys.Len(); first != 10 || second != 5 {
		t.Errorf("%d keys in the first zone and %d in the second, want 10 and 5", first, second)
	}
	proposals := r.proposeFor(DefaultTarget)
	all := proposals["zone"]
	if last := all[len(all)-1]; len(all) != maxSets+1 || last.Set != "31 other plans and overrides" || last.Reason == "" || last.Line != "" {
		t.Errorf("%d proposals, the last one %+v", len(all), last)
	}
}
