//go:build unix

package redistest

import (
	"os"
	"syscall"
	"testing"
)

// Freeze stops the process, and returns when it has stopped. Connections stay open, and the system accepts new ones,
// but nothing replies.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
	var status syscall.WaitStatus
	for err := error(syscall.EINTR); err == syscall.EINTR; {
		_, err = syscall.Wait4(s.process.Process.Pid, &status, syscall.WUNTRACED, nil)
	}
	if !status.Stopped() {
		t.Fatalf("the process hasn't stopped: %v", status)
	}
}

// Thaw continues a frozen process, which then reads all that was sent in the meantime.
func (s *Server) Thaw(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}
