package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Counting is a Redis that runs in callgrind, a tool of valgrind, which counts instructions. So a measurement
// repeats whatever else the machine does. Such a Redis is some 50 times slower than others.
type Counting struct {
	*Server
	dumps string // the beginning of the paths of all dumps
	taken int
}

// StartCounting starts a Redis that counts its instructions. The test is skipped if valgrind is not installed.
func StartCounting(t testing.TB, args ...string) *Counting {
	t.Helper()
	for _, program := range []string{"valgrind", "callgrind_control"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("valgrind is not installed: instructions can't be counted without it")
		}
	}
	dir, port := t.TempDir(), FreePort(t)
	c := &Counting{Server: &Server{Addr: net.JoinHostPort("127.0.0.1", port)}, dumps: filepath.Join(dir, "callgrind")}
	c.under = []string{"valgrind", "--tool=callgrind", "--callgrind-out-file=" + c.dumps}
	c.args = serverArgs(dir, args, "--port", port, "--hz", "1")
	if !c.start(t, &redis.Options{Addr: c.Addr, ReadTimeout: time.Minute}) {
		t.Fatal("redis-server did not start in valgrind")
	}
	return c
}

// Instructions returns the number of instructions that Redis runs while work does.
func (c *Counting) Instructions(t testing.TB, work func()) int64 {
	t.Helper()
	c.control(t, "--zero")
	work()
	c.control(t, "--dump")
	c.taken++
	text, err := os.ReadFile(fmt.Sprint(c.dumps, ".", c.taken))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if number, found := strings.CutPrefix(line, "totals: "); found {
			n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("callgrind counted no instructions")
	return 0
}

func (c *Counting) control(t testing.TB, command string) {
	t.Helper()
	if out, err := exec.Command("callgrind_control", command, strconv.Itoa(c.process.Process.Pid)).CombinedOutput(); err != nil {
		t.Fatalf("callgrind_control %s: %v: %s", command, err, out)
	}
}
