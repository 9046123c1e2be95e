package redistest

import (
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// A reserved port is not given to others, even while no server listens on it. A server that asks for the port
// gets it, again and again.
func TestFreePort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ports are reserved only on Linux")
	}
	port := FreePort(t)
	for range 3 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		errtest.None(t, err)
		_ = l.Close()
	}
	n, _ := strconv.Atoi(port)
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	errtest.None(t, err)
	defer func() { _ = syscall.Close(socket) }()
	// If this bind fails, the system doesn't give the port to a process that asks for any port.
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		t.Error("the port is free for anybody")
	}
}
