//go:build real

package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// When a primary dies, its replica takes over. No request waits longer than the timeout, and keys
// of other nodes are not affected.
//
// Simulated: TestNodeDies.
func TestRealClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	const timeout = 2 * time.Second
	var changes sync.Map
	s, err := redisstore.NewCluster(redisstore.Options{Cluster: true, Address: strings.Join(c.Addrs(), ","), Timeout: timeout},
		redisstore.Hooks{HealthChanged: func(address string, failure error) { changes.Store(address, failure) }})
	errtest.None(t, err)
	t.Cleanup(func() { _ = s.Close() })
	dying := c.Nodes[1]
	var mine, others *instance
	var running sync.WaitGroup
	stop := make(chan struct{})
	defer running.Wait()
	defer close(stop)
	for n := 0; mine == nil || others == nil; n++ {
		key := fmt.Sprint("key-", n)
		i := &instance{store: s}
		switch lost := c.Owner(t, c.Nodes[0], c.Slot(t, key)) == dying; {
		case lost && mine == nil:
			mine = i
		case !lost && others == nil:
			others = i
		default:
			continue
		}
		running.Go(func() { i.run(t, key, stop) })
	}
	began := time.Now()
	dying.Kill(t)
	redistest.WaitForState(t, "the keys of a dead primary to find the new one", func() (any, bool) {
		errors, failed, last := mine.seen()
		return last, errors > 0 && time.Since(failed) > time.Second
	})
	errors, failed, last := mine.seen()
	t.Logf("failed last after %v (%d times), longest request %v, last error: %v",
		failed.Sub(began).Round(time.Millisecond), errors, mine.forget().Round(time.Millisecond), last)
	if _, known := changes.Load(dying.Addr); !known {
		t.Error("HealthChanged was not called for the failed primary")
	}
	if n := s.Stats().Failing; n != 0 {
		t.Errorf("%d nodes fail, the dead one is to be forgotten", n)
	}
	redistest.WaitFor(t, "HealthChanged about the end of the failure", func() bool {
		failure, _ := changes.Load(dying.Addr)
		return failure == nil
	})
	errors, _, last = others.seen()
	if longest := others.forget(); errors > 0 || longest > timeout+slack {
		t.Errorf("keys of other nodes: %d errors (%v), longest request %v", errors, last, longest)
	}
}

// The slots of a primary that is cut off from the others are old, and are not used.
//
// Simulated: TestNodeCutOff.
func TestRealClusterCutOff(t *testing.T) {
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	ctx := context.Background()
	alone, heir := c.Nodes[0], c.Nodes[3]
	for _, other := range c.Nodes[1:] { // the node does not reply for a minute
		errtest.None(t, alone.Client.ClusterForget(ctx, other.Client.ClusterMyID(ctx).Val()).Err())
	}
	c.TakeOver(t, heir, c.Nodes[1], c.Nodes[2])
	redistest.WaitFor(t, "the primary to notice that it is alone", func() bool {
		return !strings.Contains(alone.Client.ClusterInfo(ctx).Val(), "cluster_state:ok")
	})
	for range 20 { // any node may reply first
		s := openCluster(t, c, redisstore.Options{Address: strings.Join(c.Addrs()[:3], ",")})
		for n := range 10 { // of all nodes
			errtest.None(t, errtest.Of(s.Take(ctx, request(t, fmt.Sprint(n)))))
		}
	}
}
