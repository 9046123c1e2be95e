package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/racetest"
)

// A zone that doesn't wait for slots, or whose request finds a slot, allocates nothing for lines.
func TestSlotWaitAllocates(t *testing.T) {
	if racetest.Enabled {
		t.Skip("allocations can't be counted")
	}
	const zone = `"c":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}],"concurrency":10`
	without, with := serving(t.Context(), loadHandler(t, zone+`}`)), serving(t.Context(), loadHandler(t, zone+`,"delay":{"max":"10s"}}`))
	for range 2000 {
		without()
		with()
	}
	before, after := testing.AllocsPerRun(1000, without), testing.AllocsPerRun(1000, with)
	if after > before {
		t.Errorf("%v allocations with delay, %v without", after, before)
	}
}
