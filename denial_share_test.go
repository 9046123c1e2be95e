package ratelimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// A zone denies a request by a limit or by a ban.
func TestShareCounts(t *testing.T) {
	z := telemetry.Zone{Name: fmt.Sprint(t.Name(), time.Now().UnixNano())} // the process counts by name, also with -count
	for range 3 {
		z.CountOutcome(telemetry.OutcomeAllowed)
		z.CountDecision(telemetry.OutcomeShadowDenied, time.Millisecond)
	}
	z.CountOutcome(telemetry.OutcomeDenied)
	z.CountOutcome(telemetry.OutcomeBanned)
	if got, want := shareCounts()[z.Name], (denials.Counts{Requests: 8, Denied: 2, WouldDeny: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
