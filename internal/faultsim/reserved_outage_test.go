package faultsim

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// Redis fails between the charges of five requests and their responses after 5 s, which give all back. Charges are given
// back where they were made, or stay. Nothing is reserved any more in the end: another request is decided at once.
func TestReservedInOutages(t *testing.T) {
	none, kill := func(*simredis.Server) {}, (*simredis.Server).Kill
	restart := func(s *simredis.Server) { s.Start(s.Snapshot()) }
	lose := func(loss simredis.Loss) func(s *simredis.Server) {
		return func(s *simredis.Server) {
			time.Sleep(2900 * time.Millisecond) // virtual time, until just before the responses
			s.SetTrouble(func([]string) simredis.Trouble { return simredis.Trouble{Lost: loss} })
			time.Sleep(150 * time.Millisecond) // virtual time
			s.SetTrouble(nil)
		}
	}
	for _, test := range []struct {
		name      string
		before    func(*simredis.Server) // the charges
		then      func(*simredis.Server) // 2 s after them
		later     func(*simredis.Server) // 10 s after them
		meanwhile string                 // the outcome of six requests 3 s after the charges, which take 3 s; "": any
		last      string                 // of one request in the end
		least     int64                  // that remains in Redis before
	}{
		{"the responses find no Redis", none, kill, restart, "6 in 6s", "0 in 0s", 0},
		{"Redis works again before the responses", kill, restart, none, "6 in 6s", "1 in 1s", 5},
		{"FLUSHALL", none, (*simredis.Server).Flush, none, "6 in 6s", "1 in 1s", 5},
		{"the corrections are lost", none, lose(simredis.LostBefore), none, "", "0 in 0s", 0},
		{"the replies to the corrections are lost", none, lose(simredis.LostAfter), none, "", "1 in 1s", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				w := newOutageWorld("local", redisstore.Options{Timeout: timeout}, &zonePlan{
					name: "login", settles: true, wait: 10 * time.Second,
					quota: algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: forever},
				})
				defer w.end(t)
				request := func(n int, takes time.Duration) (outcome func() string) {
					var all sync.WaitGroup
					var passed atomic.Int64
					began := time.Now()
					for range n {
						all.Go(func() {
							if w.request(takes).status == 200 {
								passed.Add(1)
							}
						})
					}
					lasts := make(chan time.Duration, 1)
					go func() { all.Wait(); lasts <- time.Since(began).Round(time.Second) }()
					return func() string { lasted := <-lasts; return fmt.Sprint(passed.Load(), " in ", lasted) }
				}
				test.before(w.nodes[0])
				request(5, 5*time.Second)
				time.Sleep(2 * time.Second) // virtual time
				go test.then(w.nodes[0])
				time.Sleep(time.Second) // virtual time
				meanwhile := request(6, 3*time.Second)
				time.Sleep(7 * time.Second) // virtual time
				test.later(w.nodes[0])
				time.Sleep(recovery) // virtual time
				if got := meanwhile(); test.meanwhile != "" && got != test.meanwhile {
					t.Errorf("meanwhile %s, want %s", got, test.meanwhile)
				}
				remain := w.remaining()
				if got := request(1, time.Second)(); got != test.last || remain < test.least || test.last[0] == '0' && remain > 0 {
					t.Errorf("in the end %s, and %d remain; want %s, and at least %d", got, remain, test.last, test.least)
				}
				time.Sleep(recovery) // virtual time, until no denial is remembered
				kill(w.nodes[0])
				if got := request(6, time.Second)(); got != "6 in 2s" {
					t.Errorf("by local budgets %s, want 6 in 2s", got)
				}
				restart(w.nodes[0])
			})
		})
	}
}
