//go:build real

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// keyPairs sends requests that have one key in each of two zones, and counts those that pass.
type keyPairs struct {
	caddys []*caddytest.Caddy

	mu       sync.Mutex
	requests int
	passed   map[string]int // by zone and key
}

// send sends a request to one of the Caddys, and returns whether it passed.
func (p *keyPairs) send(t *testing.T, window, log string) bool {
	c := p.caddys[rand.IntN(len(p.caddys))]
	r, err := c.Do("GET", "http://"+c.Site+"/", "", "X-Window", window, "X-Log", log)
	if err != nil || r.StatusCode != 200 && r.StatusCode != 429 {
		t.Errorf("%v %s: %v", r.Response, r.Text, err)
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	if r.StatusCode == 200 {
		p.passed["window "+window]++
		p.passed["log "+log]++
	}
	return r.StatusCode == 200
}

// Three Caddys let exactly as many requests pass as the limits say, while a thousand hash slots move under load. The other
// hash slots of a node share script calls until then.
//
// Simulated: TestSharedCallsWhileSlotsMove.
func TestRealThousandSlotsMove(t *testing.T) {
	const count, windowEvents, logEvents = 1000, 10, 20
	cluster := redistest.StartCluster(t)
	cluster.KeepMasters(t)
	primaries := cluster.Nodes[:3]
	var slots [3][]int    // of keys, by primary
	var names [3][]string // the keys
	for n, found := 0, 0; found < count; n++ {
		name := fmt.Sprint("key-", n)
		slot := cluster.Slot(t, name)
		owner := slices.Index(primaries, cluster.Owner(t, primaries[0], slot))
		if !slices.Contains(slots[owner], slot) {
			found++
			slots[owner], names[owner] = append(slots[owner], slot), append(names[owner], name)
		}
	}
	keys := slices.Concat(names[:]...)
	config := caddytest.Site(fmt.Sprintf("zone window {\n key {header.X-Window}\n fixed_window %d 10000d\n}\n"+
		"zone log {\n key {header.X-Log}\n sliding_log %d 10000d\n}\nredis %s {\n cluster\n timeout 30s\n}\n",
		windowEvents, logEvents, strings.Join(cluster.Addrs()[:3], " ")))
	p := &keyPairs{passed: make(map[string]int)}
	for range 3 {
		p.caddys = append(p.caddys, caddytest.StartProcess(t, config))
	}
	calls := func() (n int) {
		for _, node := range primaries {
			n += node.Calls(t, "evalsha")
		}
		return n
	}

	before, end, load := calls(), make(chan struct{}), sync.WaitGroup{}
	for range 12 {
		load.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
					window, distance := rand.IntN(count), 1+rand.IntN(5) // mostly to a key of the same node
					if rand.IntN(4) == 0 {
						distance = 1 + rand.IntN(count-1)
					}
					p.send(t, keys[window], keys[(window+distance)%count])
				}
			}
		})
	}
	for n, from := range primaries {
		to := primaries[(n+1)%3]
		for some := range slices.Chunk(slots[n], 20) {
			for _, slot := range some {
				cluster.BeginMove(t, slot, from, to)
			}
			for _, slot := range some {
				cluster.MoveKeys(t, slot, 1, from, to)
			}
			for _, slot := range some {
				cluster.EndMove(t, slot, from, to)
			}
		}
	}
	close(end)
	load.Wait()
	used := calls() - before
	t.Logf("%d script calls for %d requests with two keys each", used, p.requests)
	if used >= 2*p.requests {
		t.Error("no hash slots shared script calls")
	}

	for some := range slices.Chunk(keys, 10) { // use up what is left
		var rest sync.WaitGroup
		for _, key := range some {
			rest.Go(func() {
				for n := 0; p.send(t, key, fmt.Sprint(key, " alone ", n)); n++ {
				}
				for n := 0; p.send(t, fmt.Sprint(key, " alone ", n), key); n++ {
				}
			})
		}
		rest.Wait()
	}
	for _, key := range keys {
		if window, log := p.passed["window "+key], p.passed["log "+key]; window != windowEvents || log != logEvents {
			t.Errorf("%s: %d and %d requests passed, want %d and %d", key, window, log, windowEvents, logEvents)
		}
	}
}
