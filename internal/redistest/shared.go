package redistest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// shared is the Redis of all tests of a package that need only a database each.
var shared struct {
	sync.Mutex
	server *Server // nil: none was needed
	users  int
}

// databases is how many tests may use the shared Redis at a time.
const databases = 1000

// Shared returns an empty database of a Redis that all tests of a package share. The package has the TestMain of
// [Main]. Commands are counted for all databases, so a test that counts them is not parallel. A test that stops its
// Redis, configures it, closes connections of others, or flushes scripts while others run uses [Start].
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = startOnPort(t, true, os.TempDir(), "--databases", fmt.Sprint(databases))
	}
	shared.users++
	o := &redis.Options{Addr: shared.server.Addr, DB: shared.users % databases}
	s := &Server{Addr: fmt.Sprintf("redis://%s/%d", o.Addr, o.DB), Client: redis.NewClient(o)}
	t.Cleanup(func() { _ = s.Client.Close() })
	if err := s.Client.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Main runs the tests of a package, and then ends its shared Redis.
func Main(m *testing.M) {
	code := m.Run()
	EndShared()
	os.Exit(code)
}

// EndShared ends the shared Redis, if there is one. For packages that have a separate TestMain.
func EndShared() {
	if s := shared.server; s != nil {
		_ = s.Client.Close()
		_ = s.process.Process.Kill()
		<-s.exited
	}
}
