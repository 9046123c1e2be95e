package storetest

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const hour = 60 * minute

// Growth is a limit of N events an hour. It is for measurements of the cost of a decision and of the
// memory of a key, as N grows.
type Growth struct {
	// Name is the name of the algorithm, with the option that changes its state.
	Name string
	// N is the number of events that the limit grants.
	N     int64
	Limit store.Limit
	// Entries is the number of instants or buckets in a full log. It is 0 for algorithms
	// without a log.
	Entries int64
	// First and Last are the instants of the first and the last charge of Fill.
	First, Last algorithms.Micros
	// Pace is an interval of requests of cost 1 that pass and keep the budget about as full.
	Pace algorithms.Micros
}

// Growths returns every algorithm, and the options that change its state, with N from 10 to 100,000 or the
// largest legal N.
func Growths(t testing.TB) []Growth {
	t.Helper()
	var all []Growth
	add := func(name string, n int64, q algorithms.Quota) {
		g := Growth{
			Name: name, N: n, Limit: Limit(t, fmt.Sprint(name, n), q),
			First: start, Last: start + hour - hour/charges(n), Pace: hour / n,
		}
		if q.Algorithm == "sliding_log" {
			g.Entries = min(n, cmp.Or(q.Buckets, n))
		} else {
			g.First = g.Last
		}
		if q.WarmUp > 0 {
			g.Pace *= 3 // the cold factor
		}
		all = append(all, g)
	}
	for n := int64(10); n <= 100_000; n *= 10 {
		for _, q := range Quotas(n, hour) {
			if q.Algorithm != "sliding_log" || n <= algorithms.MaxLogged {
				add(q.Algorithm, n, q)
			}
			switch q.Algorithm {
			case "sliding_log":
				apart, coarse, fine := q, q, q
				apart.MinInterval, coarse.Buckets, fine.Buckets = second/1000, 60, 1000
				if n <= algorithms.MaxLogged {
					add("sliding_log min_interval", n, apart)
				}
				add("sliding_log buckets 60", n, coarse)
				add("sliding_log buckets 1000", n, fine)
			case "smooth":
				q.Burst, q.WarmUp = 0, minute
				add("smooth warm_up", n, q)
			}
		}
	}
	return all
}

func (g *Growth) String() string { return fmt.Sprintf("%s/n=%d", g.Name, g.N) }

// Ask returns a request to the limit.
func (g *Growth) Ask(key string, cost int64) []store.ZoneRequest {
	return newRequest("z", key, cost, g.Limit)
}

// Load is a request to a full budget that is repeated at a pace.
type Load struct {
	Name     string
	At, Pace algorithms.Micros
	Cost     int64
}

// Loads returns the loads to measure after Fill, in this order. passes is the result of Fill.
func (g *Growth) Loads(passes algorithms.Micros) []Load {
	loads := []Load{{Name: "denied", At: g.Last, Cost: 1}}
	if g.Entries > 0 { // the longest search, which drops nothing
		loads = append(loads, Load{Name: "peek, half expired", At: (g.First+g.Last)/2 + hour})
	}
	return append(loads, Load{Name: "allowed", At: passes, Pace: g.Pace, Cost: 1})
}

// charges returns the number of requests that charge n events to a log.
func charges(n int64) int64 { return min(n, 1000) }

// Fill charges N events: to a log evenly over an hour, else at once. At Last, a request of cost 1 is then
// denied. It would pass at the returned instant.
func (g *Growth) Fill(t testing.TB, s Store, key string) (passes algorithms.Micros) {
	t.Helper()
	take := func(now algorithms.Micros, r []store.ZoneRequest, want bool) {
		if allowed, err := s.TakeAt(context.Background(), now, r); err != nil || allowed != want {
			t.Fatalf("%v: %v, %v, want %v", g, allowed, err, want)
		}
	}
	step, cost := hour/charges(g.N), g.N/charges(g.N)
	if g.First == g.Last {
		cost = g.N
	}
	r := g.Ask(key, cost)
	for now := g.First; now <= g.Last; now += step {
		take(now, r, true)
	}
	r[0].Cost = 1
	take(g.Last, r, false)
	return g.Last + r[0].Outcome.Decisions[0].RetryAfter
}
