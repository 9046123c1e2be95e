package redistest

import (
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// FreePort returns a TCP port that is the test's until it ends, as [ReservePort] says.
func FreePort(t testing.TB) string {
	t.Helper()
	port, release, err := ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// ReservePort returns a TCP port that no process listens on. On Linux the port stays reserved until it is released,
// because a socket that doesn't listen is bound to it. The system gives the port to no other process.
// Servers that ask for the port can listen on it, also several times. On other systems the port was free a
// moment ago.
func ReservePort() (port string, release func(), err error) {
	if runtime.GOOS != "linux" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		defer l.Close()
		return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), func() {}, nil
	}
	n, release, err := reserve(0)
	return strconv.Itoa(n), release, err
}

// reserve binds a socket to a port until it is released, and returns the port. 0 stands for any free port.
func reserve(port int) (reserved int, release func(), err error) {
	syscall.ForkLock.RLock() // no process may inherit the socket
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, nil, err
	}
	release = func() { _ = syscall.Close(socket) }
	var name syscall.Sockaddr
	if err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		name, err = syscall.Getsockname(socket)
	}
	if err != nil {
		release()
		return 0, nil, err
	}
	return name.(*syscall.SockaddrInet4).Port, release, nil
}
