//go:build real

package redistest

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestAudit, with a Redis that also hangs for longer than the timeout.
//
// Simulated: TestFaults, TestAudit.
func TestRealAudit(t *testing.T) {
	audit(t, 300*time.Millisecond, func(server *Server) {
		server.Freeze(t)
		time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond) // the fault lasts for a random time
		server.Thaw(t)
	})
}
