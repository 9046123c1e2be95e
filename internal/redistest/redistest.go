// Package redistest starts Redis servers for tests: a [Server], a [Cluster], or a [Trio] of Sentinels. They
// end with the test, except the one of [Shared]. An [Audit] records all script calls and checks them against the functions in Go.
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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server process that ends with the test, or a database of the shared one.
type Server struct {
	// Addr is the host:port, the path of the socket, or the URL of the database.
	Addr string
	// Client is a client with a direct connection.
	Client *redis.Client

	args     []string
	under    []string // the command that runs redis-server; empty: none
	env      []string // nil stands for the environment of the test
	process  *exec.Cmd
	output   bytes.Buffer
	exited   chan struct{}
	outlives bool // the test that starts it
}

// running is the environment variable with the address of a server that runs already.
const running = "RATE_LIMIT_TEST_REDIS"

// Runs reports whether RATE_LIMIT_TEST_REDIS names a server.
func Runs() bool { return os.Getenv(running) != "" }

// Running returns the server that RATE_LIMIT_TEST_REDIS names by its host:port or URL, and a client of it.
// So the suites run against servers that tests can't start. Without the variable Running starts a Redis.
// A test begins with FLUSHALL, so the server must have no other use. scripts/conformance.sh runs such tests
// one after the other.
func Running(t testing.TB) (address string, client *redis.Client) {
	t.Helper()
	address = os.Getenv(running)
	if address == "" {
		s := Start(t)
		return s.Addr, s.Client
	}
	if !strings.Contains(address, "://") {
		address = "redis://" + address
	}
	options, err := redis.ParseURL(address)
	if err != nil {
		t.Fatalf("%s: %v", running, err)
	}
	client = redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatalf("%s: %v", running, err)
	}
	return address, client
}

// Start starts a Redis without persistence on a free port. args are added to its command line. The test
// fails if redis-server is not installed. It is not skipped, because no other test would replace it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return startOnPort(t, false, t.TempDir(), args...)
}

func startOnPort(t testing.TB, outlives bool, dir string, args ...string) *Server {
	t.Helper()
	for range 5 { // the free port may be taken before Redis has it
		port := FreePort(t)
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), args: serverArgs(dir, args, "--port", port), outlives: outlives}
		if s.start(t, &redis.Options{Addr: s.Addr}) {
			return s
		}
	}
	t.Fatal("redis-server did not start")
	return nil
}

// StartUnix starts a Redis that listens only on a unix socket.
func StartUnix(t testing.TB, args ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{Addr: filepath.Join(dir, "redis.sock")}
	s.args = serverArgs(dir, args, "--port", "0", "--unixsocket", s.Addr)
	if !s.start(t, &redis.Options{Network: "unix", Addr: s.Addr}) {
		t.Fatal("redis-server did not start")
	}
	return s
}

// serverArgs returns a command line without persistence. While a script runs, however long, all others wait. The arguments
// that a test wants come last.
func serverArgs(dir string, wanted []string, args ...string) []string {
	always := []string{"--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no", "--lua-time-limit", "0"}
	return slices.Concat(always, args, wanted)
}

// start starts the process, and waits until it answers. The process ends with the test, unless it outlives the test.
func (s *Server) start(t testing.TB, o *redis.Options) bool {
	t.Helper()
	s.Client = redis.NewClient(o)
	if !s.outlives {
		t.Cleanup(func() {
			_ = s.Client.Close()
			s.Kill(t)
		})
	}
	return s.run(t)
}

// run starts the process and waits until it answers.
func (s *Server) run(t testing.TB) bool {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is not installed: run ./scripts/test.sh once, which installs it")
	}
	command := slices.Concat(s.under, []string{path}, s.args)
	process, exited := exec.Command(command[0], command[1:]...), make(chan struct{})
	process.Stdout, process.Stderr, process.Env = &s.output, &s.output, s.env
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s.process, s.exited = process, exited
	go func() {
		_ = process.Wait()
		close(exited)
	}()
	answers := false
	WaitForState(t, "redis-server to answer", func() (any, bool) {
		// An error because of a password, or because data is loading, is an answer, too.
		err := s.Client.Ping(context.Background()).Err()
		answers = err == nil || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "LOADING")
		select {
		case <-exited:
			return err, true
		default:
			return err, answers
		}
	})
	if !answers {
		t.Logf("redis-server ended: %s", s.output.String())
	}
	return answers
}

// Kill kills the process. Its data is lost, except files.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	_ = s.process.Process.Kill()
	<-s.exited
}

// Restart starts a new process after Kill. The process may still load its data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if !s.run(t) {
		t.Fatal("redis-server did not start again")
	}
}

// Calls returns how often a command has run.
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

// WaitFor waits until done returns true: see [WaitForState].
func WaitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	WaitForState(t, what, func() (any, bool) { return "not yet", done() })
}

// WaitForState waits until look returns true. If it has looked too often, the test fails, and says what look has seen last.
// That takes a minute, and as much longer as the machine is slower.
func WaitForState(t testing.TB, what string, look func() (seen any, done bool)) {
	t.Helper()
	const maxLooks = 600
	looks, last, began := 0, time.Duration(0), time.Now()
	for {
		asked, waited := time.Now(), time.Since(began)
		seen, done := look()
		if done {
			return
		}
		looks, last = looks+1, time.Since(asked)
		if looks > maxLooks {
			t.Fatalf("waited in vain for %s: %s (looked %d times in %v, the last look took %v)",
				what, shortened(seen), looks, waited.Round(time.Millisecond), last.Round(time.Millisecond))
		}
		// Others change the state. A look can cost more than what it looks at, so looks get rarer.
		time.Sleep(min(max(waited/10, 2*time.Millisecond), 100*time.Millisecond))
	}
}

// shortened returns a value as text, without the middle if it is long.
func shortened(saw any) string {
	text := fmt.Sprintf("%+v", saw)
	if most := 2000; len(text) > most {
		text = fmt.Sprintf("%s … %d bytes … %s", text[:most/2], len(text)-most, text[len(text)-most/2:])
	}
	return text
}

// Long marks a test of faults of Redis, a soak, a flood, or one that waits or computes for seconds. With -short it
// is skipped.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}
