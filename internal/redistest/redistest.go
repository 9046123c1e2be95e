// Package redistest starts throw-away Redis servers for tests.
package redistest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server process that ends with the test.
type Server struct {
	// Addr is its host:port, or the path of its socket.
	Addr string
	// Client talks to it directly.
	Client *redis.Client

	args    []string
	env     []string // nil is that of the test
	process *exec.Cmd
	output  bytes.Buffer
	exited  chan struct{}
}

// Start starts a Redis without persistence on a free port; args are added to its
// command line. The test fails if there is no redis-server: it is not skipped,
// because what it would show is shown nowhere else.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	for range 5 { // the free port may be taken before Redis has it
		port := FreePort(t)
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), args: plain(dir, args, "--port", port)}
		if s.start(t, &redis.Options{Addr: s.Addr}) {
			return s
		}
	}
	t.Fatal("redis-server did not start")
	return nil
}

// StartUnix starts a Redis that listens on a unix socket alone.
func StartUnix(t testing.TB, args ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{Addr: filepath.Join(dir, "redis.sock")}
	s.args = plain(dir, args, "--port", "0", "--unixsocket", s.Addr)
	if !s.start(t, &redis.Options{Network: "unix", Addr: s.Addr}) {
		t.Fatal("redis-server did not start")
	}
	return s
}

// plain is a command line: no persistence, and what a test wants last.
func plain(dir string, wanted []string, args ...string) []string {
	return slices.Concat([]string{"--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}, args, wanted)
}

// start starts the process and what ends it, and waits until it answers.
func (s *Server) start(t testing.TB, o *redis.Options) bool {
	t.Helper()
	s.Client = redis.NewClient(o)
	t.Cleanup(func() {
		_ = s.Client.Close()
		s.Kill(t)
	})
	return s.run(t)
}

// run starts the process and waits until it answers.
func (s *Server) run(t testing.TB) bool {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is not installed: run ./scripts/test.sh once, which installs it")
	}
	process, exited := exec.Command(path, s.args...), make(chan struct{})
	process.Stdout, process.Stderr, process.Env = &s.output, &s.output, s.env
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s.process, s.exited = process, exited
	go func() {
		_ = process.Wait()
		close(exited)
	}()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// With a password, or data to load, any answer will do: it is there.
		err := s.Client.Ping(context.Background()).Err()
		if err == nil || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "LOADING") {
			return true
		}
		select {
		case <-exited:
			t.Logf("redis-server ended: %s", s.output.String())
			return false
		default:
		}
	}
	return false
}

// Kill ends the process at once, with all its data but what it has written to files.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	_ = s.process.Process.Kill()
	<-s.exited
}

// Restart starts a new process in the place of one that was killed. It may still be
// loading its data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if !s.run(t) {
		t.Fatal("redis-server did not start again")
	}
}

// Freeze stops the process: its connections stay open, and nothing answers.
func (s *Server) Freeze(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Thaw lets a frozen process go on, with what it was sent meanwhile.
func (s *Server) Thaw(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// Calls is how often a command has run.
func (s *Server) Calls(t testing.TB, command string) (n int) {
	t.Helper()
	info, err := s.Client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d", &n); err == nil {
			return n
		}
	}
	return 0
}
