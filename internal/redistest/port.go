package redistest

import (
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// FreePort returns a TCP port that no process listens on. On Linux the port stays reserved until the test
// ends, because a socket that doesn't listen is bound to it. The system gives the port to no other process.
// Servers that ask for the port can listen on it, also several times. On other systems the port was free a
// moment ago.
func FreePort(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	port, err := reserve(t, 0)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// reserve binds a socket to a port until the test ends, and returns the port. 0 stands for any free port.
func reserve(t testing.TB, port int) (int, error) {
	syscall.ForkLock.RLock() // no process may inherit the socket
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}
