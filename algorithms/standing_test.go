package algorithms

import (
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// A list shows the bans that deny requests, and their ends, also when the clock was set back.
func TestStandingBanAgrees(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 8))
	stood, steppedBack := 0, 0
	for range seedtest.Cases(t, 1500) {
		b := &Ban{After: 1 + random.Int64N(2), Window: 10_000_000, Duration: 1 + random.Int64N(20_000_000), Max: 40_000_000}
		s, now := new(State), Micros(1_000_000_000)
		for range 6 {
			before := now
			now += random.Int64N(30_000_000) - 10_000_000
			listed, ok := s.StandingBan(now)
			check := BanCheck{Ban: b, State: s}
			limit := mustLimit(t, Quota{Algorithm: "gcra", Events: 1, Window: 1})
			// The cost is more than the burst, so the limit denies the request.
			Take([]ZoneRequest{{
				Cost: 5, Ban: &check, Checks: []Check{{Limit: limit, State: new(State)}},
			}}, now)
			d := check.Decision
			if ok != d.Stands || ok && listed.EndsAfter != d.EndsAfter {
				t.Fatalf("%+v, %d µs later: listed %v %+v, decided %+v", b, now-before, ok, listed, d)
			}
			if ok {
				stood++
				if now < before-1_000_000 {
					steppedBack++
				}
			}
		}
	}
	if stood < 100 || steppedBack < 100 {
		t.Errorf("%d bans stood, %d of them after a step back", stood, steppedBack)
	}
}
