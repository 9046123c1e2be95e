//go:build unix

package simredis

import (
	"io"
	"sync"
	"syscall"
)

// A client peeks into the socket of a connection before it uses the connection again, to see whether the server has closed
// it. A simulated connection shows it one of two real sockets: one that is open, or one whose other end is closed.

// sockets are the two sockets.
var sockets = sync.OnceValue(func() (s struct{ open, closed int }) {
	pair := func() [2]int {
		p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			panic(err)
		}
		return p
	}
	a, b := pair(), pair()
	_ = syscall.Close(b[1])
	s.open, s.closed = a[0], b[0]
	return s
})

// SyscallConn implements [syscall.Conn].
func (c *conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

type rawConn struct{ *conn }

// Read implements [syscall.RawConn].
func (r rawConn) Read(look func(fd uintptr) (done bool)) error {
	r.in.mu.Lock()
	ended := r.in.err != nil && (r.in.err != io.EOF || len(r.in.packets) == 0) && !r.in.held
	r.in.mu.Unlock()
	fd := sockets().open
	if ended {
		fd = sockets().closed
	}
	look(uintptr(fd))
	return nil
}

// Write implements [syscall.RawConn].
func (r rawConn) Write(func(fd uintptr) (done bool)) error { return syscall.ENOTSUP }

// Control implements [syscall.RawConn].
func (r rawConn) Control(func(fd uintptr)) error { return syscall.ENOTSUP }
