package e2e

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

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

// goroutines counts those of a Caddy, without any that serve idle connections.
func goroutines(t *testing.T, c *caddytest.Caddy) (n int) {
	t.Helper()
	c.CloseIdleConnections()
	r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=1", "")
	if err == nil {
		_, err = fmt.Sscanf(r.Text, "goroutine profile: total %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waitForGoroutines waits until a Caddy has no more than it had.
func waitForGoroutines(t *testing.T, c *caddytest.Caddy, had int) {
	t.Helper()
	look := func() int { return goroutines(t, c) }
	caddytest.EventuallySees(t, fmt.Sprintf("it has no more goroutines than the %d it had", had), look, func(n int) bool { return n <= had })
}
