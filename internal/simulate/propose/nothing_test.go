package propose

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

const (
	second = algorithms.Micros(1_000_000)
	hour   = 60 * minute
)

// From nothing, a sliding window of every length is proposed, and token buckets with the least rate. None of
// them denies more than the share, by a real store.
func TestProposalsFromNothing(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(20)) {
		r := rand.New(rand.NewPCG(seed, 19))
		log := drawLog(r, 300, 20, algorithms.Binary, r.IntN(2) == 0)
		delay := []algorithms.Micros{0, second}[r.IntN(2)]
		own := newLimit(t, algorithms.Quota{Algorithm: "gcra", Events: 2, Window: second})
		set := simulate.LimitSet{Limits: []*algorithms.Limit{own}, Open: true}
		zone := simulate.Zone{Name: simulate.ZoneName, Sets: []simulate.LimitSet{set}, MaxDelay: delay}
		target := Target{Requests: r.IntN(2) == 0, Share: 50_000_000}
		all := record(t, log, zone).proposeFor(target)
		proposals, byStore := all[simulate.ZoneName], newReplayStore()
		if len(proposals) < 1+len(simulate.Windows) || proposals[0].Current != "gcra 2 1s" {
			t.Fatalf("seed %d: %+v", seed, proposals)
		}
		for i, p := range proposals[1:] {
			fields := strings.Fields(p.Line)
			window, err := time.ParseDuration(fields[2])
			if err != nil || p.Current != "" {
				t.Fatalf("seed %d: %+v: %v", seed, p, err)
			}
			decide := func(events int64) (denied, total tally) {
				q := algorithms.Quota{Algorithm: fields[0], Events: events, Window: window.Microseconds()}
				if len(fields) == 4 {
					q.Burst, _ = strconv.ParseInt(fields[3], 10, 64)
				}
				return byStore.denied(t, log, newLimit(t, q), delay)
			}
			events, _ := strconv.ParseInt(fields[1], 10, 64)
			denied, total := decide(events)
			if !target.allows(denied, total) || denied != (tally{p.DeniedRequests, p.DeniedKeys}) {
				t.Fatalf("seed %d: %s denies %+v of %+v: %+v", seed, p.Line, denied, total, p)
			}
			if events > 1 {
				if denied, total := decide(events - 1); target.allows(denied, total) || p.Next.Events != events-1 {
					t.Fatalf("seed %d: %s, and one event less denies %+v of %+v", seed, p.Line, denied, total)
				}
			}
			want := "token_bucket"
			if i < len(simulate.Windows) {
				want = map[bool]string{false: "sliding_window", true: "fixed_window"}[delay > 0]
			}
			if fields[0] != want || i < len(simulate.Windows) && window.Microseconds() != simulate.Windows[i] {
				t.Errorf("seed %d: proposal %d is %s", seed, i, p.Line)
			}
		}
	}
}
