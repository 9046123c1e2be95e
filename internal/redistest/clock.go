package redistest

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockC []byte

// Clock is the clock of one Redis.
type Clock struct {
	server *Server
	file   string
}

// StartClock starts a Redis with its own clock, which starts at the current time. StartClock needs Linux
// and a C compiler.
func StartClock(t testing.TB) (*Server, Clock) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("a Redis has its own clock on Linux alone: nowhere else does LD_PRELOAD replace its functions")
	}
	text, err := clockLibrary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	library, file := filepath.Join(dir, "clock.so"), filepath.Join(dir, "ahead")
	for name, content := range map[string][]byte{library: text, file: make([]byte, 8)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := Start(t)
	s.Kill(t)
	s.env = append(os.Environ(), "LD_PRELOAD="+library, "CLOCK_AHEAD="+file)
	s.Restart(t)
	c := Clock{s, file}
	c.Set(t, time.Hour)
	c.Set(t, 0)
	return s, c
}

// clockLibrary compiles the clock, once in a process, and returns the library.
var clockLibrary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "clock")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockC, 0o600); err != nil {
		return nil, err
	}
	compiler, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		return nil, err
	}
	command := append(strings.Fields(string(compiler)), "-shared", "-fPIC", "-O1", "-o", library, source)
	if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: run ./scripts/test.sh once, which installs a C compiler\n%s", err, output)
	}
	return os.ReadFile(library)
})

// Set sets the clock ahead of the real one, or behind if ahead is negative.
func (c Clock) Set(t testing.TB, ahead time.Duration) {
	t.Helper()
	f, err := os.OpenFile(c.file, os.O_WRONLY, 0) // without O_TRUNC, because Redis has mapped the file
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds()))); err != nil {
		t.Fatal(err)
	}
	shown, err := c.server.Client.Time(t.Context()).Result()
	if off := time.Until(shown) - ahead; err != nil || off.Abs() > time.Minute {
		t.Fatalf("%v: the clock of Redis shows %v, want the time %v ahead", err, shown, ahead)
	}
}
