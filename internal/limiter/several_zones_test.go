package limiter

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If one of several zones needs the body of the response, or a value in it, the handler reads it. The order of the zones
// doesn't matter.
func TestBodyForOneOfSeveralZones(t *testing.T) {
	for n := range 3 {
		state := &State{Limiter: new(Limiter), Requests: make([]store.Request, 3)}
		for i := range state.Requests {
			state.Requests[i].Limits = make([]store.Limit, 1)
			policy := &SettlePolicy{NeedsBody: i == n, NeedsJSON: i == n}
			state.Entries = append(state.Entries, Entry{Zone: &Zone{Settle: policy}, Request: &state.Requests[i]})
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Encoding", "br")
		if body := state.NewSettlement(t.Context(), nil).beginBody(r); body == nil || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("zone %d of 3: body %v, Accept-Encoding %s", n, body, r.Header.Get("Accept-Encoding"))
		}
	}
}

// Each zone counts its own outcome. A ban in shadow mode is none.
func TestOutcomesOfSeveralZones(t *testing.T) {
	for shadow := range 3 {
		telemetry.Forget()
		state := &State{Limiter: new(Limiter), Requests: make([]store.Request, 3)}
		for i := range state.Requests {
			r := &state.Requests[i]
			r.Zone, r.Shadow = fmt.Sprint("z", i), i == shadow
			r.Outcome.Verdict, r.Outcome.Ban = store.Denied, store.BanOutcome{Began: true, EndsAfter: 60_000_000}
			zone := &Zone{Name: r.Zone, Metrics: telemetry.Zone{Name: r.Zone, HasBan: true}}
			state.Entries = append(state.Entries, Entry{Zone: zone, LimitSet: new(LimitSet), Request: r})
		}
		state.countOutcomes(time.Millisecond)
		counts, bansBegun := telemetry.RequestCounts(), bansBegun(t)
		for i := range state.Requests {
			outcome, bans := "denied", 1.0
			if i == shadow {
				outcome, bans = "shadow_denied", 0
			}
			zone := fmt.Sprint("z", i)
			if counts[zone][outcome] != 1 || bansBegun[zone] != bans {
				t.Errorf("zone %d of shadow %d: %v, and %v bans", i, shadow, counts[zone], bansBegun[zone])
			}
		}
	}
	telemetry.Forget()
}

// bansBegun returns how many bans have begun, by zone.
func bansBegun(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	err := telemetry.Register(registry, telemetry.Sources{
		Zones:      func() map[string]telemetry.Features { return nil },
		Redis:      func() (sum telemetry.RedisState, ok bool) { return sum, false },
		MemoryKeys: func() float64 { return 0 }, MemoryOverflowed: func() float64 { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	begun := make(map[string]float64)
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "_bans_total") {
			for _, m := range f.GetMetric() {
				begun[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return begun
}
