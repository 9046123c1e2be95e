package propose

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// BenchmarkPropose proposes a limit for 1 million requests of 100,000 keys, a few of which come very
// often. With the environment variable PROPOSE_REQUESTS there are more, with ten requests for each key.
func BenchmarkPropose(b *testing.B) {
	requests, err := strconv.Atoi(os.Getenv("PROPOSE_REQUESTS"))
	if err != nil {
		requests = 1_000_000
	}
	keys := requests / 10
	zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{
		newLimit(b, algorithms.Quota{Algorithm: "token_bucket", Events: 100, Window: minute}),
	}}}}
	if os.Getenv("PROPOSE_ZONE") != "" {
		zone.Sets[0].Limits[0] = newLimit(b, open)
	}
	r := NewRecorder(zonesOnly{[]simulate.Zone{zone}, math.MaxInt64}, DefaultTarget)
	draw := rand.New(rand.NewPCG(1, 1))
	zipf := rand.NewZipf(draw, 1.1, 10, uint64(keys))
	at := algorithms.Micros(1_700_000_000_000_000)
	visit := simulate.Visit{Handlers: []simulate.HandlerVisit{{Zones: make([]simulate.ZoneVisit, 1)}}}
	d := simulate.Decided{Visit: &visit, Zones: []simulate.DecidedZone{{ZoneVisit: &visit.Handlers[0].Zones[0], Cost: 1}}}
	for i := range requests {
		at += draw.Int64N(17280) // 10 million requests in a day
		key := zipf.Uint64()
		if i%2 == 0 {
			key = uint64(i / 2 % keys)
		}
		visit.End, d.Came, d.Zones[0].Key = at+1000, at, fmt.Sprint(key)
		r.Observe(&d)
	}
	b.ReportAllocs()
	for b.Loop() {
		proposals := r.proposeFor(DefaultTarget)
		for _, p := range proposals["zone"] {
			b.Logf("%s: %d requests, %d keys, %d points", p.Line, p.DeniedRequests, p.DeniedKeys, len(p.Curve))
		}
	}
}

// BenchmarkSlots measures the requests in flight of one key, of which there are about 100, and decides them by slots.
func BenchmarkSlots(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	log := make([]request, 1_000_000)
	at := algorithms.Micros(1)
	for i := range log {
		at += r.Int64N(1000)
		log[i] = request{at: at, end: at + r.Int64N(100_000), cost: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		m := overlapMeter{}
		for i := range log {
			m.add(log[i])
		}
		s := slotsReplay{slots: 80}
		for i := range log {
			s.denies(log[i])
		}
	}
}
