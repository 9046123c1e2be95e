package faultsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Requests of one key come at once to two instances, and most reserve an event that they give back a second later. All of
// these pass, and as many as the limit has that keep theirs. If an instance is killed, what it had reserved is used after
// 30 s, and nobody waits longer.
func TestReservedOverInstances(t *testing.T) {
	for _, test := range []struct {
		name        string
		trueCost    int64
		kills       bool
		least, most int           // how many pass
		took        time.Duration // until the last one has an answer, with the round trips of a hand-over for each second
	}{
		{"valid", 0, false, 24, 24, 5 * time.Second},
		{"guesses", 1, false, 5, 5, time.Second},
		{"killed", 0, true, 0, 12, 31 * time.Second},
	} {
		for _, topology := range []string{"single", "cluster"} {
			for _, away := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
				t.Run(fmt.Sprint(test.name, " ", topology, " ", away, " away"), func(t *testing.T) {
					inBubble(t, 0, func(t *testing.T) {
						s := lineOf(topology, away, 0, reports(24, time.Millisecond, time.Second, func(n int) int { return n % 2 }))
						s.zones[1] = &zonePlan{
							name: "login", settles: true, wait: time.Minute,
							quota: algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: forever},
						}
						s.zones[0].quota.Events = 1000
						for _, q := range s.requests {
							q.trueCost = test.trueCost
						}
						if test.kills {
							s.faults = []*fault{{kills: true, at: 500 * time.Millisecond, do: func(w *world, _ *fault) { w.kill(0) }}}
						}
						v := s.run()
						passed, last := 0, time.Duration(0)
						for _, q := range s.requests {
							if q.killed {
								continue
							}
							if last = max(last, q.ended.Sub(s.requests[0].sent)); q.status == 200 {
								passed++
							}
						}
						t.Logf("%d passed in %v, overtaken by %d", passed, last, overtaken(s.requests))
						if passed < test.least || passed > test.most || last > test.took+6*handOver || len(v.broken) > 0 {
							t.Errorf("%d passed in %v, want %d to %d in %v; %v", passed, last, test.least, test.most, test.took, v.broken)
						}
					})
				})
			}
		}
	}
}

// A charge is corrected also while its hash slot moves, wherever the reserved events of the key are, and if there are none.
func TestReservedWhileSlotMoves(t *testing.T) {
	for _, moved := range []int{0, 1, 2} {
		for _, released := range []bool{false, true} {
			inBubble(t, 0, func(t *testing.T) {
				c := newClusterTest(t)
				s, slot := c.open(t, redisstore.Hooks{}), slotOf("split")
				l, _ := algorithms.NewLimit(algorithms.Quota{Algorithm: "calendar", Events: 100, Period: "year"})
				r := ask("split")
				r[0].Limits, r[0].ReservedID, r[0].Cost = []store.Limit{store.NewLimit("z", "", l)}, store.ReservedID("z", ""), 5
				correct := func(charge int64, settled bool) {
					s.Correct([]store.Correction{{Request: &r[0], Charge: charge, Settled: settled}}, func(err error) {
						t.Errorf("%d keys moved, released before %v: %v", moved, released, err)
					})
				}
				errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
				if released {
					correct(0, true)
					time.Sleep(2 * time.Minute) // in simulated time
				}
				to := c.Nodes[0]
				if slot*3/wire.HashSlotCount == 0 {
					to = c.Nodes[1]
				}
				c.BeginMove(slot, to)
				c.MoveKeys(slot, moved)
				correct(7, !released)
				time.Sleep(recovery) // in simulated time
				c.MoveKeys(slot, 5)
				c.EndMove(slot)
				r[0].Cost = 0
				if _, err := s.Take(t.Context(), r); err != nil || r[0].Outcome.Decisions[0].Used != 12 || r[0].Outcome.Reserved.Events != 0 {
					t.Errorf("%d keys moved, released before %v: %+v, %v", moved, released, r[0].Outcome, err)
				}
			})
		}
	}
}
