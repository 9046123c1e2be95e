package caddytest

import (
	"fmt"
	"testing"
	"time"
)

// Eventually waits until something is so. No test reaches its deadline by the slowness of its machine. If there is
// something to see meanwhile, use [EventuallySees].
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	EventuallySees(t, what, so, func(so bool) bool { return so })
}

// EventuallySees looks at something until it is so, and returns what it saw last. If it gives up, it says what it saw.
func EventuallySees[T any](t testing.TB, what string, look func() T, so func(T) bool) T {
	t.Helper()
	began := time.Now()
	for {
		saw := look()
		if so(saw) {
			return saw
		}
		waited := time.Since(began)
		if waited > Patient {
			t.Fatalf("waited in vain for %v until %s; the last look shows %s", waited.Round(time.Second), what, shortened(saw))
		}
		// A look can cost more than what it looks at, so looks get rarer.
		time.Sleep(min(max(waited/10, 2*time.Millisecond), 50*time.Millisecond)) // a poll
	}
}

// shortened returns a value as text, without the middle if it is long.
func shortened(saw any) string {
	text := fmt.Sprintf("%+v", saw)
	if most := 2000; len(text) > most {
		text = fmt.Sprintf("%s … %d bytes … %s", text[:most/2], len(text)-most, text[len(text)-most/2:])
	}
	return text
}
