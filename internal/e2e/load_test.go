package e2e

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// slack is the time that a request can take beyond the timeout of Redis, on a slow machine. A request that has no
// timeout takes longer.
const slack = caddytest.Patient / 3

// load is requests that keep coming over several connections, evenly to all Caddys,
// each a moment after the one before on its connection was answered.
type load struct {
	end chan struct{}
	wg  sync.WaitGroup

	mu sync.Mutex
	tally
}

// tally counts the outcomes of requests.
type tally struct {
	statuses map[int]int
	slowest  time.Duration
}

func startLoad(t testing.TB, connections int, path string, to ...*caddytest.Caddy) *load {
	t.Helper()
	l := &load{end: make(chan struct{}), tally: tally{statuses: make(map[int]int)}}
	for i := range connections {
		c := to[i%len(to)]
		l.wg.Go(func() {
			for {
				began := time.Now()
				r, err := c.Do("GET", "http://"+c.Site+path, "")
				if err != nil {
					t.Error(err)
					return
				}
				l.mu.Lock()
				l.statuses[r.StatusCode]++
				l.slowest = max(l.slowest, time.Since(began))
				l.mu.Unlock()
				select {
				case <-l.end:
					return
				case <-time.After(10 * time.Millisecond): // else the load takes all processors
				}
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

// soFar returns the outcomes of the requests answered until now.
func (l *load) soFar() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return tally{maps.Clone(l.statuses), l.slowest}
}

// stop waits for the last answers. Only the first call counts.
func (l *load) stop() {
	select {
	case <-l.end:
	default:
		close(l.end)
	}
	l.wg.Wait()
}

// only checks that there are no other statuses.
func (y *tally) only(t *testing.T, statuses ...int) {
	t.Helper()
	for status, n := range y.statuses {
		if !slices.Contains(statuses, status) {
			t.Errorf("status %d, %d times", status, n)
		}
	}
}

// upgrade opens a connection that becomes another protocol, whose other end repeats each line. The test
// closes it at its end, if it has not done so before.
func upgrade(t *testing.T, c *caddytest.Caddy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Site)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n", c.Site)
	answer := bufio.NewReader(conn)
	for line := ""; line != "hello\n"; {
		if line, err = answer.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// duringReloads calls ask all the time while a Caddy loads ten configurations, each with the status it must
// get. ask reports whether it had an answer: there is none while the admin endpoint is being replaced.
func duringReloads(t *testing.T, c *caddytest.Caddy, ask func() bool, reload func(n int) (config string, status int)) {
	t.Helper()
	stop := make(chan struct{})
	var answers atomic.Int64
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if ask() {
					answers.Add(1)
				}
			}
		}
	})
	for n := 0; n < 10 || answers.Load() == 0; n++ {
		config, status := reload(n)
		r, err := c.Do("POST", "http://"+c.Admin+"/load", c.Expand(config), "Content-Type", "text/caddyfile")
		if err == nil && r.StatusCode != status {
			t.Errorf("%d %s", r.StatusCode, r.Text)
		}
	}
	close(stop)
	asking.Wait()
	c.Settle(t)
}
