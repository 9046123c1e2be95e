//go:build unix

package redistest

import (
	"os"
	"syscall"
	"testing"
)

// Freeze stops the process. Its connections stay open, but nothing answers.
func (s *Server) Freeze(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Thaw continues a frozen process, which then reads all that was sent meanwhile.
func (s *Server) Thaw(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}
