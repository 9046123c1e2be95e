package faultsim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// sharesOf returns a scenario whose tenants share slots, with these weights. Tenant n has so many clients, each of which sends
// its next request when the last one has ended. A tenant with 0 clients floods: it sends twice as many as all slots can serve.
func sharesOf(topology string, instances int, delay time.Duration, slots int64, weights []int64, clients []int) *scenario {
	r, s := rand.New(rand.NewPCG(1, uint64(slots))), lineOf(topology, delay, slots, nil)
	s.instances, s.zones[1].weights, s.zones[1].delay = instances, weights, 2*time.Second
	request := func(tenant int, at time.Duration) *record {
		q := &record{
			number: len(s.requests), at: at, instance: r.IntN(instances), key: keyName(0), zones: 2, cost: 1,
			tenant: tenant, takes: span(r, 200*time.Millisecond, 600*time.Millisecond),
		}
		s.requests = append(s.requests, q)
		return q
	}
	for tenant, n := range clients {
		for i := range n {
			q := request(tenant, time.Duration(i)*7*time.Millisecond)
			s.clients = append(s.clients, q)
			for range 12 {
				q.next = request(tenant, 0)
				q = q.next
			}
		}
		for at := time.Duration(0); n == 0 && at < 5*time.Second; at += 10 * time.Millisecond {
			s.clients = append(s.clients, request(tenant, at))
		}
	}
	return s
}

// Tenants whose requests always wait hold slots in proportion to their weights, over all instances. Others share the slots that
// a tenant leaves idle. A tenant that floods waits behind itself only, and one with a small weight gets a slot in time.
func TestShares(t *testing.T) {
	for _, test := range []struct {
		topology  string
		instances int
		slots     int64
		weights   []int64
		clients   []int
		want      []float64
	}{
		{"single", 1, 20, []int64{1, 1, 2}, []int{0, 12, 24}, []float64{5, 5, 10}},
		{"single", 2, 20, []int64{1, 1, 2}, []int{0, 12, 24}, []float64{5, 5, 10}},
		{"cluster", 3, 20, []int64{1, 1, 2}, []int{0, 3, 30}, []float64{17. / 3, 3, 34. / 3}},
		{"single", 2, 20, []int64{1000, 1, 1}, []int{0, 4, 4}, []float64{18, 1, 1}},
		{"single", 1, 1, []int64{1, 1}, []int{0, 2}, []float64{.5, .5}}, // nobody holds another slot
		{"single", 2, 1, []int64{1, 1}, []int{0, 2}, []float64{.5, .5}},
		{"single", 1, 6, []int64{2, 1}, []int{8, 8}, []float64{4, 2}},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				began, samples := time.Now(), 0.0
				s := sharesOf(test.topology, test.instances, time.Millisecond, test.slots, test.weights, test.clients)
				v := s.run()
				held, waits := make([]float64, len(test.want)), make([][]time.Duration, len(test.want))
				for at := began.Add(1500 * time.Millisecond); at.Before(began.Add(4500 * time.Millisecond)); at = at.Add(7 * time.Millisecond) {
					samples++
					for _, q := range s.requests {
						if !q.passed.IsZero() && !q.passed.After(at) && q.ended.After(at) {
							held[q.tenant]++
						}
					}
				}
				for _, q := range s.requests {
					if waits[q.tenant] = append(waits[q.tenant], q.answered().Sub(q.sent)); q.status != 200 && test.clients[q.tenant] > 0 {
						t.Errorf("%v", q)
					}
				}
				idle := float64(test.slots)
				for n, want := range test.want {
					held[n] /= samples
					idle -= held[n]
					if slices.Sort(waits[n]); math.Abs(held[n]-want) > min(0.7, want/2) {
						t.Errorf("tenant %d holds %.2f slots, want %.2f", n, held[n], want)
					}
					t.Logf("tenant %d holds %.2f slots, waits p50 %v, p99 %v", n, held[n], waits[n][len(waits[n])/2], waits[n][len(waits[n])*99/100])
				}
				if t.Logf("%.2f slots are idle", idle); idle > 0.7 || len(v.broken) > 0 {
					t.Errorf("%.2f slots are idle; %v", idle, v.broken)
				}
			})
		})
	}
}

// While slots are free, no request of a tenant waits for those that others give back later, however far away Redis is.
func TestSharesOfFreeSlots(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		s := sharesOf("single", 1, 10*time.Millisecond, 200, []int64{1, 1, 1, 1}, []int{25, 25, 25, 25})
		s.run()
		for _, q := range s.requests {
			if wait := q.answered().Sub(q.sent); q.status != 200 || wait > 150*time.Millisecond {
				t.Fatalf("%v took %v", q, wait)
			}
		}
	})
}
