package simulate_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// zones is a Configuration of which a Decider knows only the zones.
type zones struct {
	simulate.Configuration
	all []simulate.Zone
}

func (z zones) Zones() []simulate.Zone { return z.all }
func (zones) MaxKeys() int64           { return 1_000_000 }

// second is a second in the time of the log.
const second algorithms.Micros = 1_000_000

// outcomes is an Observer that keeps what was decided.
type outcomes []outcome

type outcome struct {
	visit  *simulate.Visit
	came   algorithms.Micros
	denied bool
	delay  algorithms.Micros
	zones  []simulate.DecidedZone
}

func (o *outcomes) Observe(d *simulate.Decided) {
	*o = append(*o, outcome{d.Visit, d.Came, d.Denied, d.Delay, append([]simulate.DecidedZone(nil), d.Zones...)})
}

func limit(t testing.TB, zone, name string, events, window, burst int64) store.Limit {
	t.Helper()
	return storetest.Limit(t, zone, algorithms.Quota{Algorithm: name, Events: events, Window: window, Burst: burst})
}

// A slot is free from the end of a request on, and the true cost counts from then on. Ends come before
// requests of the same instant.
func TestEndsCorrect(t *testing.T) {
	c := zones{all: []simulate.Zone{{Name: "api", Concurrency: 1}, {Name: "tokens"}}}
	slots := &store.Slots{ID: store.SlotsID("api", ""), Limit: 1}
	budget := limit(t, "tokens", "fixed_window", 10, 3600*second, 0)
	visit := func(start, end algorithms.Micros, zone int, trueCost int64) *simulate.Visit {
		r := store.ZoneRequest{Zone: c.all[zone].Name, Key: "k", Cost: 4}
		if zone == 0 {
			r.Slots, r.Cost = slots, 1
		} else {
			r.Limits = []store.Limit{budget}
		}
		return &simulate.Visit{Start: start, End: end, Handlers: []simulate.HandlerVisit{{
			Requests: []store.ZoneRequest{r}, Zones: []simulate.ZoneVisit{{Zone: zone, Settled: zone == 1, TrueCost: trueCost}},
		}}}
	}
	var got outcomes
	d := simulate.NewDecider(c, &got)
	for _, v := range []struct {
		visit *simulate.Visit
		want  bool
	}{
		{visit(1*second, 5*second, 0, 0), true},
		{visit(5*second-1, 6*second, 0, 0), false},
		{visit(5*second, 6*second, 0, 0), true},
		{visit(10*second, 12*second, 1, 1), true},
		{visit(10*second, 12*second, 1, 1), true},
		{visit(12*second-1, 12*second, 1, 1), false}, // 2 of 10 remain
		{visit(12*second, 13*second, 1, 8), true},    // 8 remain
		{visit(13*second, 13*second, 1, 0), false},   // none remain
	} {
		d.Decide(v.visit)
		if last := got[len(got)-1]; last.denied == v.want {
			t.Errorf("the request at %d: allowed is %t, want %t", v.visit.Start, !last.denied, v.want)
		}
	}
	d.Finish()
}

// A request without slots, settle and delay allocates nothing.
func TestDecideAllocates(t *testing.T) {
	c := zones{all: []simulate.Zone{{Name: "api"}, {Name: "logins"}}}
	limits := [][]store.Limit{
		{limit(t, "api", "token_bucket", 10, second, 0), limit(t, "api", "fixed_window", 100, 60*second, 0)},
		{limit(t, "logins", "gcra", 10, second, 0)},
	}
	d := simulate.NewDecider(c)
	v := &simulate.Visit{Start: second, Handlers: []simulate.HandlerVisit{{
		Requests: []store.ZoneRequest{{Zone: "api", Key: "k", Cost: 1, Limits: limits[0]}, {Zone: "logins", Key: "k", Cost: 1, Limits: limits[1], Shadow: true}},
		Zones:    []simulate.ZoneVisit{{Zone: 0}, {Zone: 1}},
	}}}
	decide := func() {
		v.Start += second / 100
		d.Decide(v)
	}
	decide()
	if n := testing.AllocsPerRun(1000, decide); n > 0 {
		t.Errorf("a request allocates %v times", n)
	}
}

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
