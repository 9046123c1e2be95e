package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// eventually waits until something is so. No test reaches its deadline by the slowness of its
// machine.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	redistest.WaitFor(t, "the moment when "+what, so)
}

// long marks a test of faults of Redis, a soak or a flood, which -short skips.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}
