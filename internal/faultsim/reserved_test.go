package faultsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
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
