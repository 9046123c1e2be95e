package caddytest

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Eventually waits until something is so. No test reaches its deadline by the slowness of its machine. If there is
// something to see meanwhile, use [EventuallySees].
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	redistest.WaitFor(t, what, so)
}

// EventuallySees looks at something until it is so, and returns what it saw last. If it gives up, it says what it saw.
func EventuallySees[T any](t testing.TB, what string, look func() T, so func(T) bool) (saw T) {
	t.Helper()
	redistest.WaitForState(t, what, func() (any, bool) {
		saw = look()
		return saw, so(saw)
	})
	return saw
}
