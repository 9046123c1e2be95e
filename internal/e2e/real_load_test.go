//go:build real

package e2e

import (
	"maps"
	"slices"
	"sync"
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
