package limiter

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// The push-back never ends before the wait, and has 32 bits.
func TestGRPCPushbackValues(t *testing.T) {
	for wait, want := range map[algorithms.Micros]string{
		1: "1", 1000: "1", 1001: "2", 3_600_000_000: "3600000",
		2147483647000: "2147483647", 2147483647001: "-1", algorithms.Forever - 1: "-1", algorithms.Forever: "-1",
	} {
		if got := formatPushback(wait); got != want {
			t.Errorf("after %d µs: %s, want %s", wait, got, want)
		}
	}
}
