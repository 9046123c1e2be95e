package faultsim

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// sharedCalls counts the script calls of a node that several hash slots share, and the others.
func sharedCalls(s *simredis.Server) (shared, others *atomic.Int64) {
	shared, others = new(atomic.Int64), new(atomic.Int64)
	s.SetTrouble(func(args []string) simredis.Trouble {
		if args[2] == "0" {
			shared.Add(1)
		} else {
			others.Add(1)
		}
		return simredis.Trouble{}
	})
	return shared, others
}

// takeTogether takes for requests at the same time, and returns how many failed.
func takeTogether(t *testing.T, s store.Store, requests ...[]store.ZoneRequest) (failed int) {
	t.Helper()
	var all sync.WaitGroup
	errs := make([]error, len(requests))
	for i, r := range requests {
		all.Go(func() { _, errs[i] = s.Take(t.Context(), r) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Log(err)
			failed++
		}
	}
	return failed
}

// The calls of a node share script calls, whatever their hash slots. If the node denies that, or the options do, each hash
// slot has its own.
func TestNodeSharesCalls(t *testing.T) {
	for _, name := range []string{"allowed", "denied by the node", "denied by the options"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				c := newClusterTest(t)
				node := c.Nodes[0]
				if name == "denied by the node" {
					node.DenySharing()
				}
				var told atomic.Pointer[string]
				s := must(redisstore.NewCluster(redisstore.Options{
					Cluster: true, Address: node.Address(), Timeout: timeout, DeclareKeys: name == "denied by the options",
					Dialer: c.network.NewClient(500 * time.Microsecond),
				}, redisstore.Hooks{SharingDenied: func(address string, err error) {
					text := address + " " + err.Error()
					told.Store(&text)
				}}))
				t.Cleanup(func() { _ = s.Close() })
				round := func() {
					var requests [][]store.ZoneRequest
					for n := range 9 {
						requests = append(requests, ask(c.keyOn(node, n)))
					}
					if failed := takeTogether(t, s, requests...); failed > 0 {
						t.Errorf("%d takes failed", failed)
					}
					time.Sleep(100 * time.Millisecond) // virtual time: the node is asked whether it runs such calls
				}
				round()
				shared, others := sharedCalls(node)
				round()
				perSlot, want := s.Stats().PerSlot, 0
				if name == "allowed" {
					if shared.Load() == 0 || shared.Load()+others.Load() >= 9 { // the first takes have calls of their own
						t.Errorf("%d shared calls and %d others, want fewer than 9", shared.Load(), others.Load())
					}
				} else {
					if want = 1; shared.Load() != 0 || others.Load() != 9 {
						t.Errorf("%d shared calls and %d others, want 0 and 9", shared.Load(), others.Load())
					}
				}
				if name == "denied by the options" {
					want = 3 // all nodes
				}
				if perSlot != want {
					t.Errorf("PerSlot is %d, want %d", perSlot, want)
				}
				if text := told.Load(); (text != nil) != (name == "denied by the node") || text != nil && !strings.Contains(*text, "10.0.0.1:6379 ") {
					t.Errorf("the hook was told %v", text)
				}
				if left := remaining(t, s, ask(c.keyOn(node, 8))[0]); left != 8 {
					t.Errorf("%d remaining, want 8", left)
				}
			})
		})
	}
}

// Zones whose keys are on one node are decided in one call: all of them or none are charged, at one instant.
func TestZonesOnOneNode(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		c := newClusterTest(t)
		s := c.open(t, redisstore.Hooks{})
		shareCalls(t, c, s)
		one, two := ask(c.keyOn(c.Nodes[0], 0))[0], ask(c.keyOn(c.Nodes[0], 1))[0]
		two.Cost = 4
		elsewhere := ask(c.keyOn(c.Nodes[1], 0))[0]
		shared, others := sharedCalls(c.Nodes[0])
		for n := range 4 {
			requests := []store.ZoneRequest{one, two, elsewhere}[:2+n%2]
			allowed, err := s.Take(t.Context(), requests)
			if want := n < 2; allowed != want || err != nil {
				t.Errorf("take %d: allowed %v, error %v", n, allowed, err)
			}
			if d := requests[0].Outcome.Decisions[0]; d.Remaining != max(9-int64(n), 8) {
				t.Errorf("take %d: %+v", n, d)
			}
		}
		if shared.Load() != 4 || others.Load() != 0 {
			t.Errorf("%d shared calls and %d others, want one for each take", shared.Load(), others.Load())
		}
		if left := remaining(t, s, elsewhere); left != 9 {
			t.Errorf("%d remaining on the other node, want 9", left)
		}
	})
}

// Requests of several keys that were queued before their hash slot paused are still decided.
func TestQueuedBeforePause(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		c := newClusterTest(t)
		s := must(redisstore.NewCluster(redisstore.Options{
			Cluster: true, Address: c.Nodes[0].Address(), Timeout: timeout, Batch: 1, Dialer: c.network.NewClient(0),
		}, redisstore.Hooks{}))
		t.Cleanup(func() { _ = s.Close() })
		shareCalls(t, c, s)
		c.Nodes[0].SetScriptTime(time.Millisecond, 0) // so that requests queue
		var requests [][]store.ZoneRequest
		for range 6 {
			requests = append(requests, append(ask(c.keyOn(c.Nodes[0], 0)), ask(c.keyOn(c.Nodes[0], 1))...))
		}
		c.BeginMove(slotOf(requests[0][1].Key), c.Nodes[1])
		if failed := takeTogether(t, s, requests...); failed > 0 {
			t.Errorf("%d takes failed", failed)
		}
		for _, r := range requests[0] {
			if left := remaining(t, s, r); left != 4 {
				t.Errorf("%d remaining, want 4", left)
			}
		}
	})
}

// Corrections of a key that is on two nodes are made once: none on the one node while another one isn't possible there.
func TestSharedCorrectionsOfSplitKey(t *testing.T) {
	for seed := range uint64(6) { // the key that moves is drawn
		inBubble(t, seed, func(t *testing.T) {
			c := newClusterTest(t)
			s := c.open(t, redisstore.Hooks{})
			shareCalls(t, c, s)
			var corrections []store.Correction
			var requests []store.ZoneRequest
			for n := range 12 {
				two := append(ask(c.keyOn(c.Nodes[0], n)), ask(c.keyOn(c.Nodes[0], n))...)
				two[0].Cost, two[1].Cost = 3, 3
				two[1].Zone, two[1].Limits = "y", []store.Limit{limitOf("y", "fixed_window", 10)}
				if allowed, err := s.Take(t.Context(), two); !allowed || err != nil {
					t.Fatal(allowed, err)
				}
				requests = append(requests, two...)
				for i := range two {
					corrections = append(corrections, store.Correction{Request: &two[i], Refund: 1, Charge: 0})
				}
			}
			slot := slotOf(requests[22].Key) // the first corrections have calls of their own
			c.BeginMove(slot, c.Nodes[1])
			c.MoveKeys(slot, 1)
			shared, _ := sharedCalls(c.Nodes[0])
			s.Correct(corrections, func(err error) { t.Error(err) })
			time.Sleep(20 * time.Millisecond) // virtual time, as below
			c.EndMove(slot)
			time.Sleep(time.Second)
			for _, r := range requests {
				if left := remaining(t, s, r); left != 8 {
					t.Errorf("zone %s, key %s: %d remaining, want 8", r.Zone, r.Key, left)
				}
			}
			if shared.Load() == 0 {
				t.Error("no call was shared")
			}
		})
	}
}

// A hash slot has its own calls until a second after a redirect.
func TestHashSlotPauses(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		c := newClusterTest(t)
		s := c.open(t, redisstore.Hooks{})
		shareCalls(t, c, s)
		requests := append(ask(c.keyOn(c.Nodes[0], 0)), ask(c.keyOn(c.Nodes[0], 1))...)
		c.BeginMove(slotOf(requests[1].Key), c.Nodes[1])
		for n, want := range []string{"1 and 2", "0 and 2", "0 and 2", "1 and 2"} {
			shared, others := sharedCalls(c.Nodes[0])
			if allowed, err := s.Take(t.Context(), requests); !allowed || err != nil {
				t.Errorf("allowed %v, error %v", allowed, err)
			}
			if got := fmt.Sprint(shared.Load(), " and ", others.Load()); got != want {
				t.Errorf("take %d: %s shared calls and others, want %s", n, got, want)
			}
			time.Sleep([]time.Duration{400 * time.Millisecond, 900 * time.Millisecond, 1100 * time.Millisecond, 0}[n]) // virtual time
		}
		for _, r := range requests {
			if left := remaining(t, s, r); left != 6 {
				t.Errorf("%d remaining, want 6", left)
			}
		}
	})
}

// shareCalls lets the store find out that the nodes run shared calls.
func shareCalls(t *testing.T, c *clusterTest, s store.Store) {
	t.Helper()
	remaining(t, s, ask("")[0]) // so that the nodes are known
	for _, node := range c.Nodes {
		requests := append(ask(c.keyOn(node, 100)), ask(c.keyOn(node, 101))...)
		errtest.None(t, errtest.Of(s.Take(t.Context(), requests)))
	}
	time.Sleep(100 * time.Millisecond) // virtual time
}

// While hash slots move, calls that share a script call with theirs are made once, as if nothing moved. So are requests with
// two keys of a node.
func TestSharedCallsWhileSlotsMove(t *testing.T) {
	for _, step := range []time.Duration{0, 300 * time.Microsecond, 2 * time.Millisecond, 40 * time.Millisecond, 300 * time.Millisecond} {
		for _, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket"} {
			t.Run(fmt.Sprint(algorithm, " ", step), func(t *testing.T) {
				inBubble(t, 0, func(t *testing.T) { sharedCallsWhileSlotsMove(t, step, algorithm) })
			})
		}
	}
}

func sharedCallsWhileSlotsMove(t *testing.T, step time.Duration, algorithm string) {
	const keys, limit = 12, 100_000
	c := newClusterTest(t)
	s := c.open(t, redisstore.Hooks{})
	shareCalls(t, c, s)
	from, to := c.Nodes[0], c.Nodes[1]
	shared, _ := sharedCalls(from)
	limits := []store.Limit{limitOf("z", algorithm, limit)}
	one := func(n int) store.ZoneRequest {
		return store.ZoneRequest{Zone: "z", Key: c.keyOn(from, n), Cost: 1, Limits: limits}
	}
	var charged [keys]atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for n := range keys {
		all.Go(func() {
			for turn := 0; ; turn++ {
				requests, other := []store.ZoneRequest{one(n)}, (n+1)%keys
				if turn%3 == 0 {
					requests = append(requests, one(other))
				}
				if allowed, err := s.Take(t.Context(), requests); !allowed || err != nil {
					t.Errorf("allowed %v, error %v", allowed, err)
				}
				charged[n].Add(1)
				if len(requests) > 1 {
					charged[other].Add(1)
				}
				select {
				case <-stop:
					return
				case <-time.After(max(step/8, 500*time.Microsecond) + time.Duration(37*n)*time.Microsecond): // virtual time
				}
			}
		})
	}
	for n := range keys {
		slot := slotOf(c.keyOn(from, n))
		time.Sleep(step + 13*time.Microsecond) // virtual time, as below
		c.BeginMove(slot, to)
		time.Sleep(step)
		c.MoveKeys(slot, 1)
		time.Sleep(step)
		if n%3 != 2 { // the others continue moving
			c.EndMove(slot)
		}
	}
	time.Sleep(50 * time.Millisecond)
	close(stop)
	all.Wait()
	for n := range keys {
		if left, want := remaining(t, s, one(n)), limit-charged[n].Load(); left != want {
			t.Errorf("key %d: %d remaining, want %d", n, left, want)
		}
	}
	if shared.Load() == 0 {
		t.Error("no call was shared")
	}
}
