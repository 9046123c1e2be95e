package faultsim

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// These tests let whole handlers answer while Redis fails at an instant that matters. TestFaults draws the instants.

// outages are instants at which Redis fails, in the middle of what happens to a request, and between requests.
var outages = []time.Duration{
	0, 50 * time.Microsecond, 150 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 3 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond, time.Second,
}

// newOutageWorld returns a world with one instance, a zone, and a single Redis. All requests are in zone 1.
func newOutageWorld(mode string, o redisstore.Options, z *zonePlan) *world {
	once := &zonePlan{name: "once", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: forever}}
	s := &scenario{topology: "single", mode: mode, instances: 1, delay: 100 * time.Microsecond, zones: []*zonePlan{once, z}}
	w := &world{scenario: s, began: time.Now(), network: simredis.NewNetwork(), charges: make(map[string]int)}
	w.nodes = []*simredis.Server{w.network.NewServer(w.newAddress())}
	o.Address = w.nodes[0].Address()
	w.redis = o
	w.instances = []*instance{w.newInstance(0)}
	time.Sleep(time.Second) // virtual time, for the first check
	return w
}

// request sends a request that takes some time, and returns what its client saw.
func (w *world) request(takes time.Duration) *record {
	w.mu.Lock()
	q := &record{number: int(w.scenario.seed), key: "k", zones: 2, cost: 1, takes: takes}
	w.scenario.seed++
	w.mu.Unlock()
	w.serve(q)
	return q
}

// end ends the instances and the network.
func (w *world) end(t *testing.T) {
	t.Helper()
	for _, i := range w.instances {
		errtest.Report(t, i.redis.Close())
	}
	time.Sleep(recovery) // virtual time
	w.network.CloseAll()
}

// shedRequests returns how many requests the instances say they have shed.
func (w *world) shedRequests() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.failures {
		if f.what == shed {
			n++
		}
	}
	return n
}

// remaining returns how many events of zone 1 remain in Redis.
func (w *world) remaining() int64 {
	o := &oracle{w, &verdict{}}
	used, _ := o.peek(1, "", []string{"k"})
	return w.scenario.zones[1].quota.Events - used["k"]
}

// A Redis that hangs makes the first few requests wait, and no others: local budgets decide. A request that Redis
// comes to later, when nobody waits for it, charges nothing. When it works again, it decides again.
func TestHangingRedis(t *testing.T) {
	for _, at := range outages {
		for _, lasts := range []time.Duration{timeout + time.Millisecond, 3 * timeout} {
			for _, mode := range []string{"local", "deny"} {
				inBubble(t, 0, func(t *testing.T) { hangingRedis(t, mode, at, lasts) })
			}
		}
	}
}

func hangingRedis(t *testing.T, mode string, at, lasts time.Duration) {
	const budget = 100
	w := newOutageWorld(mode, redisstore.Options{Timeout: timeout},
		&zonePlan{name: "budget", quota: algorithms.Quota{Algorithm: "token_bucket", Events: budget, Window: forever, Burst: budget}})
	defer w.end(t)
	var mu sync.Mutex
	passed, waited := 0, 0
	var all sync.WaitGroup
	all.Go(func() {
		time.Sleep(at) // virtual time
		freeze(w.nodes[0], lasts)
	})
	send := func(n int, pause time.Duration) {
		for range n {
			all.Go(func() {
				q := w.request(0)
				mu.Lock()
				defer mu.Unlock()
				if q.status == http.StatusOK {
					passed++
				}
				switch took := q.ended.Sub(q.sent); {
				case took > 2*timeout+50*time.Millisecond:
					t.Errorf("frozen at %v for %v: a request waited for %v", at, lasts, took)
				case took > 10*time.Millisecond:
					waited++
				}
			})
			time.Sleep(pause) // virtual time
		}
	}
	send(60, 5*time.Millisecond) // virtual time
	time.Sleep(at + lasts)       // virtual time
	all.Wait()
	if isCertain := mode == "local" || lasts >= 3*timeout && at < 300*time.Millisecond; isCertain && (passed == 60) != (mode == "local") {
		t.Errorf("frozen at %v for %v: %s lets %d of 60 requests pass", at, lasts, mode, passed)
	}
	if most := int(2*timeout/(5*time.Millisecond)) + 20; waited > most {
		t.Errorf("frozen at %v for %v: %d requests waited, want %d at most", at, lasts, waited, most)
	}
	time.Sleep(recovery) // virtual time
	before, lost := w.remaining(), 0
	if at > 0 && at < time.Millisecond { // the reply of the first one can be lost
		lost = 1
	}
	if charged := budget - int(before); mode == "deny" && (charged < passed || charged > passed+lost) {
		t.Errorf("frozen at %v for %v: %d requests passed, and Redis charged %d", at, lasts, passed, charged)
	}
	if q := w.request(0); q.status != http.StatusOK || w.remaining() != before-1 {
		t.Errorf("frozen at %v for %v: afterwards status %d, and %d remain in Redis, want %d", at, lasts, q.status, w.remaining(), before-1)
	}
}

// Redis dies or hangs while requests take and give back slots of one key. on_store_error decides on each
// request: none counts as one that Redis was too busy for, whatever it waited for.
func TestSlotsWhileRedisFails(t *testing.T) {
	for name, fail := range map[string]func(*simredis.Server) (end func()){
		"died":  func(s *simredis.Server) (end func()) { s.Kill(); return func() {} },
		"hangs": (*simredis.Server).Freeze,
	} {
		for _, at := range outages {
			inBubble(t, 0, func(t *testing.T) {
				w := newOutageWorld("local", redisstore.Options{Timeout: 1100 * time.Millisecond}, // virtual time, longer than a request may wait to be sent
					&zonePlan{name: "slots", slots: 1000})
				defer w.end(t)
				began := time.Now()
				var all sync.WaitGroup
				for n := range 16 {
					all.Go(func() {
						for time.Since(began) < 3*time.Second { // virtual time
							if q := w.request(time.Duration(n) * 100 * time.Microsecond); q.status != http.StatusOK {
								t.Errorf("Redis %s after %v: status %d", name, at, q.status)
								return
							}
							time.Sleep(20 * time.Millisecond) // virtual time
						}
					})
				}
				time.Sleep(at) // virtual time
				end := fail(w.nodes[0])
				all.Wait()
				end()
				if n := w.shedRequests(); n > 0 {
					t.Errorf("Redis %s after %v: %d requests were shed", name, at, n)
				}
			})
		}
	}
}

// Requests that wait too long to be sent to a Redis that works are shed: with allow they pass, and else they get 503.
// Nothing else grants them anything.
func TestShedRequests(t *testing.T) {
	const requests = 700
	for mode, want := range map[string]int{"local": 503, "share": 503, "deny": 503, "allow": 200} {
		inBubble(t, 0, func(t *testing.T) {
			w := newOutageWorld(mode, redisstore.Options{Timeout: timeout, Batch: 1},
				&zonePlan{name: "budget", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 100_000, Window: forever}})
			defer w.end(t)
			w.nodes[0].SetScriptTime(5*time.Millisecond, 0)
			var mu sync.Mutex
			statuses := make(map[int]int)
			var all sync.WaitGroup
			for range requests {
				all.Go(func() {
					q := w.request(0)
					mu.Lock()
					defer mu.Unlock()
					statuses[q.status]++
				})
			}
			all.Wait()
			n, decided := w.shedRequests(), 100_000-int(w.remaining())
			wants := map[int]int{200: decided}
			wants[want] += n
			if n == 0 || decided == 0 || w.instances[0].redis.Stats().Failing != 0 || n+decided != requests || statuses[200] != wants[200] || statuses[503] != wants[503] {
				t.Errorf("%s: %d were shed, and %d decided; statuses %v; the breaker may be open", mode, n, decided, statuses)
			}
		})
	}
}

// Redis dies while requests wait for a slot: on_store_error decides. Local budgets count the request in flight.
func TestSlotLineWhileRedisFails(t *testing.T) {
	for mode, want := range map[string]int{"local": 200, "allow": 200, "deny": 503} {
		for _, at := range outages {
			inBubble(t, 0, func(t *testing.T) {
				w := newOutageWorld(mode, redisstore.Options{Timeout: timeout}, &zonePlan{name: "slots", slots: 1, delay: time.Hour})
				defer w.end(t)
				const takes = 10 * time.Second
				var held *record
				waiting := make([]*record, 3)
				var all sync.WaitGroup
				all.Go(func() { held = w.request(takes) })
				time.Sleep(time.Second) // virtual time
				for n := range waiting {
					all.Go(func() { waiting[n] = w.request(0) })
				}
				time.Sleep(at) // virtual time
				w.nodes[0].Kill()
				died := time.Now()
				all.Wait()
				if held.status != http.StatusOK {
					t.Errorf("%s after %v: the request in flight has status %d", mode, at, held.status)
				}
				for _, q := range waiting {
					early, late := q.ended.Before(held.ended), q.ended.Sub(died) > time.Second
					if q.status != want || early != (mode != "local") || mode != "local" && late {
						t.Errorf("%s after %v: a request that waits has status %d, want %d; it ended %v after Redis died", mode, at, q.status, want, q.ended.Sub(died))
					}
				}
			})
		}
	}
}

// A request in flight keeps its slot in Redis, and gives it back there. Meanwhile another configuration with other options
// of Redis was loaded, and Redis hung.
func TestReloadWhileRedisHangs(t *testing.T) {
	for _, at := range outages {
		inBubble(t, 0, func(t *testing.T) {
			w := newOutageWorld("deny", redisstore.Options{Timeout: timeout}, &zonePlan{name: "slots", slots: 1})
			defer w.end(t)
			const takes = 20 * time.Second
			var held *record
			var all sync.WaitGroup
			all.Go(func() { held = w.request(takes) })
			time.Sleep(time.Second) // virtual time
			all.Go(func() { freeze(w.nodes[0], 3*time.Second) })
			time.Sleep(at) // virtual time
			w.mu.Lock()
			old := w.instances[0]
			w.redis.Timeout = 2 * timeout
			w.instances[0] = w.newInstance(0)
			w.mu.Unlock()
			if q := w.request(0); q.status == http.StatusOK {
				t.Errorf("after %v: a second request passes while Redis hangs", at)
			}
			time.Sleep(3*time.Second + recovery) // virtual time
			if q := w.request(0); q.status != http.StatusTooManyRequests {
				t.Errorf("after %v: status %d when Redis works again, want 429: one request is in flight", at, q.status)
			}
			all.Wait()
			time.Sleep(giveBack) // virtual time
			if q := w.request(0); held.status != http.StatusOK || q.status != http.StatusOK {
				t.Errorf("after %v: the request in flight has status %d, and the next one %d", at, held.status, q.status)
			}
			errtest.Report(t, old.redis.Close())
		})
	}
}

// A cluster is partly down while some of its nodes fail, and down while all do.
func TestStateOfCluster(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		s := &scenario{topology: "cluster", mode: "deny", instances: 1, delay: 100 * time.Microsecond, zones: []*zonePlan{
			{name: "once", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: forever}},
		}}
		w := newWorld(s)
		defer w.end(t)
		log := admin.NewHealthLog()
		state := func() string {
			for range 100 { // on all nodes
				q := &record{number: int(s.seed), zones: 1, cost: 1}
				s.seed++
				w.serve(q)
				time.Sleep(20 * time.Millisecond) // virtual time
			}
			return log.Observe(len(w.nodes), w.instances[0].redis.Stats().Failing, nil).State
		}
		got := []string{state()}
		for _, node := range w.nodes {
			node.Kill()
			got = append(got, state())
		}
		for _, node := range w.nodes {
			node.Start(nil)
			time.Sleep(recovery) // virtual time
			got = append(got, state())
		}
		if want := []string{"up", "partly_down", "partly_down", "down", "partly_down", "partly_down", "up"}; !slices.Equal(got, want) {
			t.Errorf("the states are %s", fmt.Sprint(got))
		}
	})
}
