//go:build real

package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// instance takes from a store continuously, and records the results.
type instance struct {
	store store.Store

	mu      sync.Mutex
	errors  int
	last    error
	failed  time.Time
	longest time.Duration
}

// Each of several instances finds the new primary, with or without a breaker, and no request waits
// longer than the timeout.
//
// Simulated: TestSentinelFailover.
func TestRealSentinel(t *testing.T) {
	trio := redistest.StartTrio(t, "theirs")
	const timeout = 2 * time.Second
	options := redisstore.Options{
		Address: strings.Join(trio.Addrs(), ","), MasterName: redistest.Master, SentinelPassword: trio.Password, Timeout: timeout,
	}
	var instances []*instance
	var running sync.WaitGroup
	stop := make(chan struct{})
	defer running.Wait()
	defer close(stop)
	for n := range 4 {
		s := open(t, options)
		i := &instance{store: s}
		if n >= 2 {
			b := store.NewBreaker(s, nil)
			defer b.Close()
			i.store = b
		}
		instances = append(instances, i)
		running.Go(func() { i.run(t, fmt.Sprint("instance ", n), stop) })
	}
	// recovered waits until all instances charge the new primary and nothing has failed for a
	// while, and logs when each failed last.
	recovered := func(what string, began time.Time, master *redistest.Server) {
		t.Helper()
		for n, i := range instances {
			key := fmt.Sprintf("caddy_rl:{instance %d}:%s", n, endless(t, "").Limits[0].ID)
			before := ""
			redistest.WaitForState(t, fmt.Sprintf("%s: instance %d to recover", what, n), func() (any, bool) {
				charged := master.Client.Get(t.Context(), key).Val()
				isCharged := before != "" && charged != before
				before = charged
				_, failed, last := i.seen()
				return last, isCharged && time.Since(failed) > time.Second && time.Since(began) > time.Second &&
					strings.Contains(master.Client.Info(t.Context(), "replication").Val(), "role:master")
			})
			errors, failed, last := i.seen()
			longest := i.forget()
			t.Logf("%s: instance %d failed last after %v (%d times), longest request %v, last error: %v",
				what, n, max(0, failed.Sub(began)).Round(time.Millisecond), errors, longest.Round(time.Millisecond), last)
			if longest > timeout+slack {
				t.Errorf("%s: a request of instance %d waited for %v, it may for %v", what, n, longest, timeout)
			}
		}
	}
	old, next := trio.Roles(t)
	recovered("start", time.Now(), old)

	began := time.Now()
	trio.Failover(t)
	recovered("failover", began, next)
	old, next = trio.Roles(t)

	began = time.Now()
	old.Kill(t)
	recovered("kill", began, next)
}

// slack is for a machine that is busy with other tests.
const slack = 10 * time.Second

func (i *instance) run(t *testing.T, key string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Millisecond): // a client asks 500 times a second
		}
		began := time.Now()
		_, err := i.store.Take(context.Background(), []store.ZoneRequest{endless(t, key)})
		i.mu.Lock()
		if i.longest = max(i.longest, time.Since(began)); err != nil {
			i.errors, i.last, i.failed = i.errors+1, err, time.Now()
		}
		i.mu.Unlock()
	}
}

func (i *instance) seen() (errors int, failed time.Time, last error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.errors, i.failed, i.last
}

// forget clears the results, and returns how long the longest take took.
func (i *instance) forget() (longest time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	longest, i.longest, i.errors = i.longest, 0, 0
	return longest
}

// A Sentinel that hangs does not keep a store from using the others when the primary dies.
//
// Simulated: TestSentinelFailover.
func TestRealHangingSentinel(t *testing.T) {
	trio := redistest.StartTrio(t, "right")
	addrs := strings.Join(trio.Addrs(), ",")
	o := redisstore.Options{Address: addrs, MasterName: redistest.Master, SentinelPassword: "right", Timeout: 2 * time.Second}
	s := open(t, o)
	errtest.None(t, errtest.Of(s.Take(context.Background(), request(t, "k"))))
	master, _ := trio.Roles(t)
	in := -1
	redistest.WaitFor(t, "a Sentinel to be in use", func() bool {
		in = slices.IndexFunc(trio.Sentinels, func(one *redistest.Server) bool { return strings.Contains(trio.Clients(t, one), "sub=2") })
		return in >= 0
	})
	trio.Sentinels[in].Freeze(t)
	began := time.Now()
	master.Kill(t)
	redistest.WaitForState(t, "a take to succeed", func() (any, bool) {
		asked := time.Now()
		_, err := s.Take(context.Background(), request(t, "k"))
		if waited := time.Since(asked); waited > o.Timeout+slack {
			t.Errorf("a request waited for %v", waited)
		}
		if err != nil {
			_ = s.Check(context.Background())
		}
		return err, err == nil
	})
	t.Logf("with a Sentinel that hangs: recovered after %v", time.Since(began).Round(time.Millisecond))
}

// endless returns a request that is always allowed and charged.
func endless(t testing.TB, key string) store.ZoneRequest {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1_000_000, Window: 1_000_000})
	return store.ZoneRequest{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}
}
