package redistest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster of three primaries, each with a replica.
type Cluster struct {
	// Nodes are the first primaries, and then their replicas in the same order.
	Nodes [6]*Server
}

// StartCluster starts a cluster, and waits until it works. Its nodes consider a silent node dead after 2 s.
// args are added to the command line of each node.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := new(Cluster)
	for i := range c.Nodes {
		c.Nodes[i] = startNode(t, args...)
	}
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	host, port, _ := net.SplitHostPort(c.Nodes[0].Addr)
	for i, s := range c.Nodes {
		must(s.Client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		if i < 3 {
			must(s.Client.ClusterAddSlotsRange(ctx, i*16384/3, (i+1)*16384/3-1).Err())
		}
		if i > 0 {
			must(s.Client.ClusterMeet(ctx, host, port).Err())
		}
	}
	c.waitForInfo(t, "the nodes to know each other", "cluster_known_nodes:6")
	for i, s := range c.Nodes[3:] {
		id := c.Nodes[i].Client.ClusterMyID(ctx).Val()
		WaitFor(t, "a node to be a replica", func() bool { return s.Client.ClusterReplicate(ctx, id).Err() == nil })
	}
	for _, s := range c.Nodes[3:] {
		WaitFor(t, "the replicas to have copied their primaries", s.replicates)
	}
	c.waitForInfo(t, "the cluster to work", "cluster_state:ok")
	for _, s := range c.Nodes {
		WaitFor(t, "all nodes to know who the replicas are", func() bool {
			return strings.Count(s.Client.ClusterNodes(ctx).Val(), "slave") == 3
		})
	}
	return c
}

func startNode(t testing.TB, args ...string) *Server {
	t.Helper()
	for range 20 {
		port := FreePort(t)
		const bus = 10_000 // nodes talk to each other on their port plus this
		n, _ := strconv.Atoi(port)
		if n+bus > 65_535 {
			continue
		}
		_, release, err := reserve(n + bus)
		if err != nil {
			continue
		}
		t.Cleanup(release)
		dir := t.TempDir()
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), args: serverArgs(dir, args, "--port", port,
			"--cluster-enabled", "yes", "--cluster-config-file", filepath.Join(dir, "nodes.conf"), "--cluster-node-timeout", "2000",
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")}
		if s.start(t, &redis.Options{Addr: s.Addr}) {
			return s
		}
	}
	t.Fatal("redis-server did not start")
	return nil
}

func (c *Cluster) waitForInfo(t testing.TB, what, line string) {
	t.Helper()
	for _, s := range c.Nodes {
		WaitFor(t, what, func() bool {
			return strings.Contains(s.Client.ClusterInfo(context.Background()).Val(), line)
		})
	}
}

// KeepMasters keeps replicas from taking over by themselves: no node considers another one dead any more. On
// a busy machine a node may be silent for long.
func (c *Cluster) KeepMasters(t testing.TB) {
	t.Helper()
	for _, s := range c.Nodes {
		if err := s.Client.ConfigSet(context.Background(), "cluster-node-timeout", "600000").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() (all []string) {
	for _, s := range c.Nodes {
		all = append(all, s.Addr)
	}
	return all
}

// Slot returns the slot of a hash tag.
func (c *Cluster) Slot(t testing.TB, tag string) int {
	t.Helper()
	slot, err := c.Nodes[0].Client.ClusterKeySlot(context.Background(), "{"+tag+"}").Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(slot)
}

// Owner returns the node that has a slot, according to the asked node.
func (c *Cluster) Owner(t testing.TB, asked *Server, slot int) *Server {
	t.Helper()
	//lint:ignore SA1019 a Redis before 7 has no CLUSTER SHARDS
	ranges, err := asked.Client.ClusterSlots(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ranges {
		if r.Start <= slot && slot <= r.End {
			for _, s := range c.Nodes {
				if s.Addr == r.Nodes[0].Addr {
					return s
				}
			}
		}
	}
	return nil
}

// TakeOver makes a replica the primary of its primary's slots at once, and waits until others have learned of
// it.
func (c *Cluster) TakeOver(t testing.TB, replica *Server, others ...*Server) {
	t.Helper()
	if err := replica.Client.Do(context.Background(), "cluster", "failover", "takeover").Err(); err != nil {
		t.Fatal(err)
	}
	slot := -1
	WaitFor(t, "a replica to take over", func() bool {
		//lint:ignore SA1019 a Redis before 7 has no CLUSTER SHARDS
		for _, r := range replica.Client.ClusterSlots(context.Background()).Val() {
			if r.Nodes[0].Addr == replica.Addr {
				slot = r.Start
			}
		}
		return slot >= 0
	})
	for _, other := range others {
		WaitFor(t, "a node to hear of it", func() bool { return c.Owner(t, other, slot) == replica })
	}
}

// BeginMove begins to move a slot. From then on, requests about keys that its node lacks are redirected.
func (c *Cluster) BeginMove(t testing.TB, slot int, from, to *Server) {
	t.Helper()
	ctx := context.Background()
	for _, err := range []error{
		to.Client.Do(ctx, "cluster", "setslot", slot, "importing", from.Client.ClusterMyID(ctx).Val()).Err(),
		from.Client.Do(ctx, "cluster", "setslot", slot, "migrating", to.Client.ClusterMyID(ctx).Val()).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// MoveKeys moves at most n keys of a slot, and returns their number.
func (c *Cluster) MoveKeys(t testing.TB, slot, n int, from, to *Server) int {
	t.Helper()
	ctx := context.Background()
	keys, err := from.Client.ClusterGetKeysInSlot(ctx, slot, n).Result()
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(to.Addr)
	for _, key := range keys {
		if err := from.Client.Migrate(ctx, host, port, key, 0, 5*time.Second).Err(); err != nil {
			t.Fatal(fmt.Errorf("migrate %s: %w", key, err))
		}
	}
	return len(keys)
}

// EndMove moves the rest of a slot's keys, gives the slot to the other node, and waits until all nodes have heard of it.
// Checks of a node may have written keys by now. A node that gets a slot counts the epoch up. If two nodes take the same
// epoch because one has not heard of the other, both may say for ever that the other one has the slot.
func (c *Cluster) EndMove(t testing.TB, slot int, from, to *Server) {
	t.Helper()
	for c.MoveKeys(t, slot, 100, from, to) > 0 {
	}
	ctx := context.Background()
	id := to.Client.ClusterMyID(ctx).Val()
	for _, s := range []*Server{to, from} {
		if err := s.Client.Do(ctx, "cluster", "setslot", slot, "node", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	epoch := regexp.MustCompile(`cluster_current_epoch:\d+`)
	WaitFor(t, "all nodes to hear of a move", func() bool {
		seen := make(map[string]bool)
		for _, s := range c.Nodes {
			seen[epoch.FindString(s.Client.ClusterInfo(ctx).Val())] = true
		}
		return len(seen) == 1
	})
}
