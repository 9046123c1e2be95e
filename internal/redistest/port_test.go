package redistest

import (
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// A port that a test has is given to nobody else, even while nobody listens on it, and
// who asks for it gets it, again and again.
func TestFreePort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nowhere else is a port kept")
	}
	port := FreePort(t)
	for range 3 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	n, _ := strconv.Atoi(port)
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(socket) }()
	// Where this is refused, the port is not among those for who asks for any.
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		t.Error("the port is free for anybody")
	}
}
