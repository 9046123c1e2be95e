package redistest

import "testing"

// Freeze skips the test: Windows can't stop a process and continue it.
func (*Server) Freeze(t testing.TB) { t.Skip("Windows can't stop a process and continue it") }

// Thaw has nothing to do.
func (*Server) Thaw(testing.TB) {}
