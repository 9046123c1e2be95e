package faultsim

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Each of several instances finds the new primary, with or without a breaker, whether the Sentinel tells them or not. No
// request waits longer than the timeout.
func TestSentinelFailover(t *testing.T) {
	for name, end := range map[string]func(old *simredis.Server){
		"demoted": func(old *simredis.Server) { old.SetReplica(true) },
		"killed":  (*simredis.Server).Kill,
		"hangs": func(old *simredis.Server) {
			thaw := old.Freeze()
			time.AfterFunc(time.Minute, thaw)
		},
	} {
		for _, tells := range []bool{false, true} {
			for _, lasts := range []time.Duration{0, 70 * time.Millisecond, time.Second} {
				t.Run(fmt.Sprint(name, ", told ", tells, ", after ", lasts), func(t *testing.T) {
					inBubble(t, 0, func(t *testing.T) { sentinelFailover(t, end, tells, lasts) })
				})
			}
		}
	}
}

func sentinelFailover(t *testing.T, end func(*simredis.Server), tells bool, lasts time.Duration) {
	network := newNetwork(t)
	old, by := network.NewServer("10.0.0.1:6379"), network.NewServer("10.0.0.2:6379")
	by.SetReplica(true)
	sentinel := network.NewSentinel("10.0.0.9:26379", "main", old)
	o := redisstore.Options{Address: "10.0.0.9:26379", MasterName: "main", Timeout: timeout}
	limits := []store.Limit{limitOf("z", "gcra", 1_000_000)} // so all are charged: a replica can deny
	ask := func(n int) []store.ZoneRequest {
		return []store.ZoneRequest{{Zone: "z", Key: fmt.Sprint(n), Cost: 1, Limits: limits}}
	}
	var lastFailed, failed atomic.Int64
	var ended atomic.Bool
	var all sync.WaitGroup
	var instances []store.Store
	for n := range 4 {
		direct := openSim(t, network, time.Millisecond, o)
		var s store.Store = direct
		if n >= 2 {
			b := store.NewBreaker(direct, nil)
			t.Cleanup(b.Close)
			s = b
		}
		instances = append(instances, s)
		all.Go(func() {
			for !ended.Load() {
				began := time.Now()
				if _, err := s.Take(t.Context(), ask(n)); err != nil {
					failed.Add(1)
					lastFailed.Store(time.Now().UnixNano())
				}
				if waited := time.Since(began); waited > 2*timeout+50*time.Millisecond {
					t.Errorf("a request waited for %v", waited)
				}
				time.Sleep(23 * time.Millisecond) // virtual time
			}
		})
	}
	time.Sleep(100 * time.Millisecond) // virtual time
	if failed.Load() > 0 {
		t.Error("requests fail before the failover")
	}
	end(old)
	time.Sleep(lasts)
	by.SetReplica(false)
	sentinel.Switch(by, tells)
	over := time.Now()
	time.Sleep(5 * time.Second) // virtual time
	for n, s := range instances {
		if _, err := s.Take(t.Context(), ask(n)); err != nil {
			t.Errorf("instance %d: %v", n, err)
		}
	}
	ended.Store(true)
	all.Wait()
	if late := time.Unix(0, lastFailed.Load()).Sub(over); late > 1500*time.Millisecond {
		t.Errorf("a request failed %v after the failover", late)
	}
	if len(by.Snapshot()) != len(instances) {
		t.Errorf("%d keys on the new primary, want %d", len(by.Snapshot()), len(instances))
	}
}

// A Sentinel that names a replica as the primary does not keep a store from using the others, because a failed check of a
// breaker asks again.
func TestWrongSentinel(t *testing.T) {
	for range 8 { // which one is asked first is random
		inBubble(t, 0, func(t *testing.T) {
			network := newNetwork(t)
			primary, replica := network.NewServer("10.0.0.1:6379"), network.NewServer("10.0.0.2:6379")
			replica.SetReplica(true)
			network.NewSentinel("10.0.0.8:26379", "main", replica)
			network.NewSentinel("10.0.0.9:26379", "main", primary)
			b := store.NewBreaker(openSim(t, network, time.Millisecond, redisstore.Options{
				Address: "10.0.0.8:26379,10.0.0.9:26379", MasterName: "main", Timeout: timeout,
			}), nil)
			t.Cleanup(b.Close)
			within(t, 20*time.Second, "a take to succeed", func() bool {
				_, err := b.Take(t.Context(), ask("k"))
				return err == nil
			})
		})
	}
}
