package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// flood returns the requests of a log: of four keys, each decided up to d after it began.
func flood(r *rand.Rand, requests int, d algorithms.Micros) (visits []*simulate.Visit) {
	at := second
	for range requests {
		at += algorithms.Micros(r.ExpFloat64() * 3000)
		if r.IntN(200) == 0 {
			at += second // a pause
		}
		began := at
		if r.IntN(5) == 0 {
			began += algorithms.Micros(r.Int64N(2)) // at once with another one
		}
		decided := began + algorithms.Micros(r.Int64N(int64(d)+1))
		visits = append(visits, &simulate.Visit{
			Start: began, Instant: decided, End: decided + algorithms.Micros(r.Int64N(int64(second))),
			Handlers: []simulate.HandlerVisit{{
				Requests: []store.ZoneRequest{{Zone: "log", Key: fmt.Sprint(r.IntN(4)), Cost: 1}}, Zones: []simulate.ZoneVisit{{}},
			}},
		})
	}
	return visits
}

// denialsOf decides the requests, in their order, and counts denials by key.
func denialsOf(t *testing.T, visits []*simulate.Visit, window algorithms.Micros) map[string]int {
	t.Helper()
	c := zones{all: []simulate.Zone{{Name: "log"}}}
	l := []store.Limit{limit(t, "log", "sliding_log", 20, int64(window), 0)}
	visits = slices.Clone(visits)
	slices.SortStableFunc(visits, func(a, b *simulate.Visit) int { return int(a.Arrival() - b.Arrival()) })
	var got outcomes
	d := simulate.NewDecider(c, &got)
	for _, v := range visits {
		v.Handlers[0].Requests[0].Limits, v.Handlers[0].Requests[0].Outcome = l, store.Outcome{}
		d.Decide(v)
	}
	d.Finish()
	denied := make(map[string]int)
	for _, o := range got {
		if o.denied {
			denied[o.visit.Handlers[0].Requests[0].Key]++
		}
	}
	return denied
}

// Without the instants, a simulation decides at the beginnings of the requests, which come before. Let no
// request take longer than d from its beginning to its decision. Then Caddy denied at least as many requests of
// each key as a simulation with a window that is shorter by d. It denied at most as many as with a window that is
// longer by d. With the instants a simulation decides as Caddy did, which TestSimulationDeniesWhatCaddyDenied shows.
//
// This is the proof for a sliding log with requests of cost 1. Of all sets of requests that the limit can
// allow, it allows a largest one. Each request that it allows is no later than the one of equal rank in another
// set. If a set fits into the limit, and each request comes earlier by at most d, the times between two
// requests become shorter by at most d. So the set fits into the limit with the shorter window. The converse
// holds with the longer window.
func TestSimulationWithoutInstants(t *testing.T) {
	const window = 300_000
	differ := 0
	seeds := seedtest.Cases(t, uint64(12))
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 31))
		d := []algorithms.Micros{0, 10, 3000, 100_000}[seed%4]
		visits := flood(r, 1000, d)
		served := denialsOf(t, visits, window)
		for _, v := range visits {
			v.Instant = 0
		}
		least, same, most := denialsOf(t, visits, window-d), denialsOf(t, visits, window), denialsOf(t, visits, window+d)
		for key, n := range served {
			if n < least[key] || n > most[key] || same[key] < least[key] || same[key] > most[key] {
				t.Errorf("seed %d, key %s: %d were denied, %d in the simulation, want both from %d to %d",
					seed, key, n, same[key], least[key], most[key])
			}
			if n != same[key] {
				differ++
			}
			if d == 0 && n != same[key] {
				t.Errorf("seed %d, key %s: %d and %d denials at the same instants", seed, key, n, same[key])
			}
		}
		if len(served) != 4 {
			t.Errorf("seed %d: only %d keys have denials", seed, len(served))
		}
	}
	if differ == 0 && seeds >= 12 {
		t.Error("the instants make no difference in any case")
	}
}
