package ratelimit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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

func startLoad(t testing.TB, connections int, path string, to ...*caddyProcess) *load {
	t.Helper()
	l := &load{end: make(chan struct{}), tally: tally{statuses: make(map[int]int)}}
	for i := range connections {
		c := to[i%len(to)]
		l.wg.Go(func() {
			for {
				began := time.Now()
				r, err := c.do("GET", "http://"+c.site+path, "")
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
				case <-time.After(10 * time.Millisecond):
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

// metrics returns the metrics whose names begin so, by name and labels.
func metrics(t *testing.T, c *caddyProcess, name string) map[string]float64 {
	t.Helper()
	r, err := c.do("GET", "http://"+c.admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]float64)
	for line := range strings.Lines(r.body) {
		if labels, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(labels, name) {
			var n float64
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatal(err, line)
			}
			found[labels] = n
		}
	}
	return found
}

// goroutines counts those of a Caddy, without any that serve idle connections.
func goroutines(t *testing.T, c *caddyProcess) (n int) {
	t.Helper()
	client.CloseIdleConnections()
	r, err := c.do("GET", "http://"+c.admin+"/debug/pprof/goroutine?debug=1", "")
	if err == nil {
		_, err = fmt.Sscanf(r.body, "goroutine profile: total %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waitForGoroutines waits until a Caddy has no more than it had.
func waitForGoroutines(t *testing.T, c *caddyProcess, had int) {
	t.Helper()
	eventually(t, fmt.Sprintf("it has no more goroutines than the %d it had", had), func() bool { return goroutines(t, c) <= had })
}
