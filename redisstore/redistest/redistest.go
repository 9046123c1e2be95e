// Package redistest starts throw-away Redis servers for tests.
package redistest

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server process that ends with the test.
type Server struct {
	// Addr is its host:port.
	Addr string
	// Client talks to it directly.
	Client *redis.Client
}

// Start starts a Redis without persistence on a free port; args are added to its
// command line. The test fails if there is no redis-server: it is not skipped,
// because what it would show is shown nowhere else.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is not installed: run ./scripts/test.sh once, which installs it")
	}
	dir := t.TempDir()
	for attempt := 1; ; attempt++ { // the free port may be taken before Redis has it
		s := start(t, path, dir, args)
		if s != nil {
			return s
		}
		if attempt == 5 {
			t.Fatal("redis-server did not start")
		}
	}
}

func start(t testing.TB, path, dir string, args []string) *Server {
	t.Helper()
	port := FreePort(t)
	addr := net.JoinHostPort("127.0.0.1", port)
	var output bytes.Buffer
	process := exec.Command(path, append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
	}, args...)...)
	process.Stdout, process.Stderr = &output, &output
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = process.Wait()
		close(exited)
	}()
	s := &Server{Addr: addr, Client: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() {
		_ = s.Client.Close()
		_ = process.Process.Kill()
		<-exited
	})
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// With a password any answer will do: it is there.
		err := s.Client.Ping(context.Background()).Err()
		if err == nil || redis.HasErrorPrefix(err, "NOAUTH") {
			return s
		}
		select {
		case <-exited:
			t.Logf("redis-server ended: %s", output.String())
			return nil
		default:
		}
	}
	return nil
}

// FreePort returns a TCP port nobody listened on a moment ago.
func FreePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
