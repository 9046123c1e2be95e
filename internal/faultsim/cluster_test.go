package faultsim

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// clusterTest is a cluster of three nodes.
type clusterTest struct {
	*simredis.Cluster
	network *simredis.Network
	owners  map[string]*simredis.Server // by key
}

func newClusterTest(t *testing.T) *clusterTest {
	t.Helper()
	network := newNetwork(t)
	return &clusterTest{network.NewCluster("10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"), network, make(map[string]*simredis.Server)}
}

// open opens a store of the cluster, which is a millisecond away, there and back.
func (c *clusterTest) open(t *testing.T, hooks redisstore.Hooks) *redisstore.Cluster {
	t.Helper()
	s := must(redisstore.NewCluster(redisstore.Options{
		Cluster: true, Address: "10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379", Timeout: timeout, Dialer: c.network.NewClient(500 * time.Microsecond),
	}, hooks))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// slotOf returns the hash slot of a key.
func slotOf(key string) int { return (wire.Names{}).HashSlot(key) }

// keyOn returns the nth key of a node, as long as no slot has moved.
func (c *clusterTest) keyOn(node *simredis.Server, n int) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("key-", i)
		if c.Nodes[slotOf(key)*len(c.Nodes)/wire.HashSlotCount] == node {
			if n--; n < 0 {
				return key
			}
		}
	}
}

// remaining returns what is left of the limit of a key.
func remaining(t *testing.T, s store.Store, r store.ZoneRequest) int64 {
	t.Helper()
	look := []store.ZoneRequest{{Zone: r.Zone, Key: r.Key, Limits: r.Limits}}
	errtest.None(t, errtest.Of(s.Take(t.Context(), look)))
	return look[0].Outcome.Decisions[0].Remaining
}

// A node dies, and another one takes over after some time. Meanwhile its keys fail, and no others do. No request waits for
// longer than the timeout. The charges of a request on other nodes are given back. An instance that sent nothing in all this
// time finds the new node, unless the old one still hangs.
func TestNodeDies(t *testing.T) {
	for _, lasts := range []time.Duration{0, 10 * time.Millisecond, 99 * time.Millisecond, 2 * time.Second} {
		for _, hangs := range []bool{false, true} {
			t.Run(fmt.Sprint(lasts, ", hangs ", hangs), func(t *testing.T) {
				inBubble(t, 0, func(t *testing.T) { nodeDies(t, lasts, hangs) })
			})
		}
	}
}

func nodeDies(t *testing.T, lasts time.Duration, hangs bool) {
	c := newClusterTest(t)
	dying := c.Nodes[1]
	var changes sync.Map // the last failure, by address
	s := c.open(t, redisstore.Hooks{HealthChanged: func(address string, failure error) { changes.Store(address, failure) }})
	idle := c.open(t, redisstore.Hooks{})
	mine, others := ask(c.keyOn(dying, 0))[0], ask(c.keyOn(c.Nodes[0], 0))[0]
	mine.Cost, others.Cost = 0, 0
	together := append(ask(c.keyOn(c.Nodes[2], 1)), ask(c.keyOn(dying, 1))...)
	together[1].Zone = "y"
	errtest.None(t, errtest.Of(idle.Take(t.Context(), together)))
	run := func(r store.ZoneRequest, stop <-chan struct{}, see func(err error)) {
		for {
			began, one := time.Now(), []store.ZoneRequest{r}
			_, err := s.Take(t.Context(), one)
			if waited := time.Since(began); waited > 2*timeout+50*time.Millisecond {
				t.Errorf("a request waited for %v", waited)
			}
			see(err)
			select {
			case <-stop:
				return
			case <-time.After(7 * time.Millisecond): // virtual time
			}
		}
	}
	stop := make(chan struct{})
	var failed, lastFailed atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		run(mine, stop, func(err error) {
			if err != nil {
				failed.Add(1)
				lastFailed.Store(time.Now().UnixNano())
			}
		})
	})
	all.Go(func() {
		run(others, stop, func(err error) {
			errtest.Report(t, err, "a key of another node")
		})
	})
	time.Sleep(100 * time.Millisecond) // virtual time
	end := dying.Kill
	if hangs {
		thaw := dying.Freeze()
		defer thaw()
		end = func() {}
	}
	end()
	if lasts > 0 {
		before := remaining(t, s, together[0])
		if _, err := s.Take(t.Context(), together); err == nil {
			t.Error("a request succeeds with a dead node")
		}
		within(t, time.Second, "the charge to be given back", func() bool { return remaining(t, s, together[0]) == before })
		time.Sleep(lasts)
	}
	by := c.Add(c.network, "10.0.0.4:6379")
	by.Start(nil)
	c.Replace(dying, by)
	over := time.Now()
	time.Sleep(5 * time.Second) // virtual time
	if _, err := idle.Take(t.Context(), together); err != nil && !hangs {
		t.Errorf("the first request of an instance, long after the death: %v", err)
	}
	close(stop)
	all.Wait()
	if late := time.Unix(0, lastFailed.Load()).Sub(over); late > 1500*time.Millisecond {
		t.Errorf("a request failed %v after the failover", late)
	}
	if s.Stats().Failing != 0 {
		t.Errorf("%d nodes fail, the dead one is to be forgotten", s.Stats().Failing)
	}
	if failure, known := changes.Load(dying.Address()); lasts >= time.Second && (!known || failure != nil || failed.Load() == 0) {
		t.Errorf("HealthChanged has told of the node: %v, last of %v; %d requests failed", known, failure, failed.Load())
	}
}

// The hash slots of a node that is cut off from the others are old, and are not used.
func TestNodeCutOff(t *testing.T) {
	for range 8 { // any node may reply first
		inBubble(t, 0, func(t *testing.T) {
			c := newClusterTest(t)
			alone, heir := c.Nodes[0], c.Add(c.network, "10.0.0.4:6379")
			c.CutOff(alone)
			c.Replace(alone, heir)
			s := c.open(t, redisstore.Hooks{})
			for n := range 10 { // of all nodes
				errtest.None(t, errtest.Of(s.Take(t.Context(), ask(fmt.Sprint(n)))))
			}
		})
	}
}

// While a slot moves, requests of a key fail if not all of its values are on one node, or if it has several values, but
// none yet. They fail after the timeout, because the move could end before.
func TestSplitKey(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		c := newClusterTest(t)
		s := c.open(t, redisstore.Hooks{})
		slot := slotOf("split")
		takes := make(map[string]func() error) // by key
		for i := 0; len(takes) < 2; i++ {
			key := "split"
			if i > 0 {
				key = fmt.Sprint("new", i)
			}
			if slotOf(key) != slot {
				continue
			}
			r := ask(key)
			r[0].Limits = append(r[0].Limits, limitOf("other", "token_bucket", 10))
			takes[key] = func() error {
				_, err := s.Take(t.Context(), r)
				return err
			}
		}
		works := func(take func() error) {
			t.Helper()
			errtest.Report(t, take())
		}
		works(takes["split"])
		to := c.Nodes[0]
		if slot*3/wire.HashSlotCount == 0 {
			to = c.Nodes[1]
		}
		c.BeginMove(slot, to)
		c.MoveKeys(slot, 1)
		for key, take := range takes {
			began := time.Now()
			err := take()
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("slot %d of the cluster is moving to another node, or has moved", slot)) {
				t.Errorf("%s: %v", key, err)
			}
			if waited := time.Since(began); waited < timeout/2 || waited > timeout*11/10 {
				t.Errorf("%s: it waited for %v", key, waited)
			}
		}
		c.MoveKeys(slot, 1)
		works(takes["split"])
		c.EndMove(slot)
		for _, take := range takes {
			works(take)
		}
	})
}

// A request that has waited in the queue of a node for longer than the timeout still goes to the node that the first one
// names.
func TestGoesOnAfterWait(t *testing.T) {
	for _, callers := range []int{1, 10, 40} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				c := newClusterTest(t)
				s := must(redisstore.NewCluster(redisstore.Options{
					Cluster: true, Address: "10.0.0.1:6379", Timeout: timeout, Batch: 1, Dialer: c.network.NewClient(0),
				}, redisstore.Hooks{}))
				t.Cleanup(func() { _ = s.Close() })
				from, to, key := c.Nodes[0], c.Nodes[1], c.keyOn(c.Nodes[0], 0)
				errtest.None(t, errtest.Of(s.Take(t.Context(), ask(key))))
				c.BeginMove(slotOf(key), to)
				c.EndMove(slotOf(key))
				from.SetScriptTime(9*time.Millisecond, 0) // so 40 calls need three times the timeout
				var all sync.WaitGroup
				for n := range callers {
					all.Go(func() {
						if n < callers-1 {
							_, _ = s.Take(t.Context(), ask(c.keyOn(from, n+1)))
							return
						}
						time.Sleep(time.Millisecond) // virtual time: it is the last one
						r, began := ask(key), time.Now()
						if allowed, err := s.Take(t.Context(), r); !allowed || err != nil || r[0].Outcome.Decisions[0].Remaining != 8 {
							t.Errorf("allowed %v, error %v, %+v, want 8 remaining", allowed, err, r[0].Outcome.Decisions)
						}
						if waited := time.Since(began); callers == 40 && waited < 3*timeout {
							t.Errorf("it waited for %v only", waited)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// A node that hangs during a refund delays the request only until the timeout. The refund is made later, once.
func TestGivesBackLate(t *testing.T) {
	for _, slow := range []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, timeout / 2, 90 * time.Millisecond} {
		t.Run(slow.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				c := newClusterTest(t)
				s := c.open(t, redisstore.Hooks{})
				limits := []store.Limit{limitOf("z", "fixed_window", 2)}
				both := []store.ZoneRequest{
					{Zone: "z", Key: c.keyOn(c.Nodes[0], 0), Cost: 3, Limits: limits}, // finds no room
					{Zone: "z", Key: c.keyOn(c.Nodes[1], 0), Cost: 1, Limits: limits},
				}
				remaining(t, s, both[0])
				remaining(t, s, both[1])
				c.Nodes[0].SetTrouble(func([]string) simredis.Trouble { return simredis.Trouble{Before: slow} })
				ended := make(chan struct{})
				go func() {
					time.Sleep(1200 * time.Microsecond) // virtual time: the node has charged
					thaw := c.Nodes[1].Freeze()
					<-ended
					thaw()
				}()
				began := time.Now()
				allowed, err := s.Take(t.Context(), both)
				if waited := time.Since(began); allowed || err != nil || waited > timeout*11/10 {
					t.Errorf("allowed %v, error %v after %v", allowed, err, waited)
				}
				close(ended)
				if d := both[1].Outcome.Decisions[0]; d.Charged != 0 {
					t.Errorf("%+v, want no receipt", d)
				}
				time.Sleep(5 * time.Second) // virtual time
				if left := remaining(t, s, both[1]); left != 2 {
					t.Errorf("%d remaining, want 2", left)
				}
			})
		})
	}
}

// If a node of a request is known to fail, nothing is charged on the other nodes, and nothing is asked.
func TestBesideFailedNode(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		c := newClusterTest(t)
		s := c.open(t, redisstore.Hooks{})
		both := append(ask(c.keyOn(c.Nodes[0], 0)), ask(c.keyOn(c.Nodes[1], 0))...)
		both[1].Zone = "y"
		if allowed, err := s.Take(t.Context(), both); !allowed || err != nil {
			t.Fatal(allowed, err)
		}
		thaw := c.Nodes[0].Freeze()
		defer thaw()
		if err := s.Check(t.Context()); err == nil || s.Stats().Failing != 1 {
			t.Fatalf("error %v, %d failing", err, s.Stats().Failing)
		}
		messages := countMessages(c.Nodes[1])
		for range 10 {
			if _, err := s.Take(t.Context(), both); !errors.Is(err, store.ErrOpen) {
				t.Errorf("error %v, want that the node isn't asked", err)
			}
		}
		if n := messages.Load(); n != 0 {
			t.Errorf("the other node was asked %d times", n)
		}
	})
}

// The first request finds that a cluster is unreachable. Later requests fail at once until the cluster replies.
func TestUnreachableCluster(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		c := newClusterTest(t)
		var thaw []func()
		for _, node := range c.Nodes {
			thaw = append(thaw, node.Freeze())
		}
		s := c.open(t, redisstore.Hooks{})
		if _, err := s.Take(t.Context(), ask("k")); reasonOf(err) != store.ReasonTimeout {
			t.Errorf("error %v, want a timeout", err)
		}
		within(t, 2*time.Second, "the cluster to count as failing", func() bool { return s.Stats().Failing > 0 })
		began := time.Now()
		for range 50 {
			if _, err := s.Take(t.Context(), ask("k")); reasonOf(err) != store.ReasonTimeout {
				t.Fatalf("error %v, want a timeout", err)
			}
		}
		if waited := time.Since(began); waited > timeout {
			t.Errorf("50 requests took %v: they wait", waited)
		}
		for _, thaw := range thaw {
			thaw()
		}
		within(t, 2*time.Second, "a take to succeed", func() bool {
			_, err := s.Take(t.Context(), ask("k"))
			return err == nil
		})
		within(t, 2*time.Second, "nothing to fail any more", func() bool { return s.Stats().Failing == 0 })
	})
}

// Counts of slots are set on the node that a hash slot moves to or has moved to, even if no request has one of its keys.
func TestCountsAreSetElsewhere(t *testing.T) {
	for _, stages := range []time.Duration{time.Second, setAgain - time.Second, setAgain + time.Second, slotExpiry * 3 / 2} {
		t.Run(stages.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				c := newClusterTest(t)
				s, other := c.open(t, redisstore.Hooks{}), c.open(t, redisstore.Hooks{})
				key := c.keyOn(c.Nodes[0], 0)
				first, second := takeSlot(t, s, key, 3), takeSlot(t, s, key, 3)
				stays := func(when string) {
					t.Helper()
					for began := time.Now(); time.Since(began) < stages; time.Sleep(stages / 20) {
						if n := inFlight(t, other, key); n != 2 {
							t.Fatalf("%s: %d in flight after %v, want 2", when, n, time.Since(began))
						}
					}
				}
				c.BeginMove(slotOf(key), c.Nodes[2])
				stays("before the key moves")
				c.MoveKeys(slotOf(key), 1)
				stays("when the key has moved")
				c.EndMove(slotOf(key))
				stays("when the slot has moved")
				time.Sleep(slotExpiry * 3 / 2) // virtual time, without a request
				stays("later")
				leave(s, first, second)
				within(t, time.Second, "the slots to be free", func() bool { return inFlight(t, other, key) == 0 })
			})
		})
	}
}
