package faultsim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// lineOf returns a scenario whose requests wait for slots of one key, for at most a minute.
func lineOf(topology string, away time.Duration, slots int64, requests []*record) *scenario {
	s := &scenario{
		topology: topology, mode: "deny", delay: away / 2, keys: 1, length: time.Minute, clients: requests, requests: requests,
		zones: []*zonePlan{
			{name: "once", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 20, Window: forever}},
			{name: "slots", slots: slots, delay: time.Minute},
		},
	}
	for n, q := range requests {
		q.number, q.key, q.zones, q.cost = n, keyName(0), 2, 1
		s.instances = max(s.instances, q.instance+1)
	}
	return s
}

// overtaken returns how often a slot went to others that came later, for the request to which this happened most. Its own
// slot can be free meanwhile, for a hand-over.
func overtaken(requests []*record) (most int) {
	for _, q := range requests {
		n := 0
		for _, other := range requests {
			if !other.passed.IsZero() && other.sent.After(q.sent) && (q.passed.IsZero() || other.passed.Add(handOver).Before(q.passed)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// reports returns requests that come at instances in turn.
func reports(number int, every, takes time.Duration, instanceOf func(n int) int) (requests []*record) {
	for n := range number {
		requests = append(requests, &record{at: time.Duration(n) * every, takes: takes, instance: instanceOf(n)})
	}
	return requests
}

// Requests of several instances pass in the order in which they came.
func TestOneLine(t *testing.T) {
	mostly := func(n int) int { return min(n%4, 1) } // one of four comes to instance 0
	for _, topology := range []string{"single", "cluster"} {
		for _, away := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
			for instances := range 3 {
				t.Run(fmt.Sprint(topology, " ", away, " away, ", instances), func(t *testing.T) {
					inBubble(t, 0, func(t *testing.T) {
						turns := func(n int) int { return n % max(instances, 1) }
						if instances == 0 {
							turns = mostly
						}
						s := lineOf(topology, away, 2, reports(30, 400*time.Millisecond, time.Second, turns))
						v := s.run()
						last := time.Time{}
						for _, q := range s.requests {
							if q.status != 200 {
								t.Errorf("%v", q)
							}
							if q.ended.After(last) {
								last = q.ended
							}
						}
						n, took := overtaken(s.requests), last.Sub(s.requests[0].sent)
						t.Logf("overtaken by %d, %v in all", n, took)
						if n > 2 || took > 17500*time.Millisecond || len(v.broken) > 0 {
							t.Errorf("overtaken by %d, %v in all; %v", n, took, v.broken)
						}
					})
				})
			}
		}
	}
}

// Slots that become free at once go to those that came first, whichever instance gives them back. None stays free for
// longer than two hand-overs.
func TestManySlotsAtOnce(t *testing.T) {
	const slots = 8
	for holds := range 2 { // which instance holds the slots
		for _, turns := range []func(n int) int{
			func(n int) int { return n % 2 }, func(n int) int { return n / 8 % 2 }, func(n int) int { return min(n%8, 1) },
		} {
			inBubble(t, 0, func(t *testing.T) {
				requests := reports(slots, 0, 3*time.Second, func(int) int { return holds })
				for _, q := range reports(3*slots, 40*time.Millisecond, 10*time.Second, turns) {
					q.at += time.Second
					requests = append(requests, q)
				}
				s := lineOf("single", time.Millisecond, slots, requests)
				v := s.run()
				free := requests[0].ended
				var waits []time.Duration
				for _, q := range requests[slots : 2*slots] {
					waits = append(waits, q.passed.Sub(free))
				}
				n, last := overtaken(requests), slices.Max(waits)
				t.Logf("overtaken by %d, the last slot was free for %v", n, last)
				if n > 2 || last > 2*handOver || len(v.broken) > 0 {
					t.Errorf("overtaken by %d, the last slot was free for %v; %v", n, last, v.broken)
				}
			})
		}
	}
}

// A line whose only request leaves, gives up or dies holds up the others no longer than it must.
func TestLineEnds(t *testing.T) {
	for name, test := range map[string]struct {
		first *record // at instance 0
		fault *fault
		most  time.Duration // from the free slot to the second request
	}{
		"passes": {first: &record{takes: time.Millisecond}, most: handOver},
		"leaves": {first: &record{patience: 880 * time.Millisecond}, most: handOver},
		"dies": {
			first: &record{takes: time.Millisecond}, most: 1500 * time.Millisecond,
			fault: &fault{kills: true, at: 990 * time.Millisecond, do: func(w *world, _ *fault) { w.kill(0) }},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				holds, second := &record{instance: 1, takes: time.Second}, &record{instance: 1, at: 200 * time.Millisecond}
				test.first.at = 100 * time.Millisecond
				s := lineOf("single", time.Millisecond, 1, []*record{holds, test.first, second})
				if test.fault != nil {
					s.faults = []*fault{test.fault}
				}
				v := s.run()
				if waited := second.passed.Sub(holds.ended); second.status != 200 || waited > test.most || len(v.broken) > 0 {
					t.Errorf("%v: %v after the slot was free; %v", second, waited, v.broken)
				} else {
					t.Log(waited)
				}
			})
		})
	}
}

// More requests come than the slot can serve, so most give up. The slot is busy nearly all the time, and few requests that
// came later get it.
func TestLinesUnderOverload(t *testing.T) {
	for instances := range 4 {
		inBubble(t, 0, func(t *testing.T) {
			const takes, most = 20 * time.Millisecond, 550 // in the time of all requests and the delay
			requests := reports(1000, takes/2, takes, func(n int) int { return n * 7 % 13 % (instances + 1) })
			s := lineOf("single", time.Millisecond, 1, requests)
			s.zones[1].delay = time.Second
			v := s.run()
			passed := 0
			for _, q := range requests {
				if q.status == 200 {
					passed++
				}
			}
			t.Logf("%d instances: %d passed", instances+1, passed)
			if passed < most*3/4 || len(v.broken) > 0 {
				t.Errorf("%d instances: %d passed, %d could; %v", instances+1, passed, most, v.broken)
			}
		})
	}
}
