package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/sharing"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The topology of a [Cluster]: which node has which hash slots, and how a Cluster learns that.

// nodeFor returns the node that has a hash slot. If the node is unknown, nodeFor returns any node that works, which
// redirects to the right one. It waits for the first attempt to query the hash slots, but for no later one.
func (c *Cluster) nodeFor(ctx context.Context, hashSlot int, deadline time.Time) (*node, error) {
	if n := c.hashSlotNodes[hashSlot].Load(); n != nil {
		return n, nil
	}
	c.mu.Lock()
	refreshing, known := c.startRefreshLocked(), c.hashSlotsKnown || c.refreshErr != nil
	c.mu.Unlock()
	if !known {
		if err := awaitRefresh(ctx, refreshing, deadline); err != nil {
			return nil, err
		}
		if n := c.hashSlotNodes[hashSlot].Load(); n != nil {
			return n, nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if !n.breaker.Open() {
			return n, nil
		}
	}
	return nil, toStoreError(context.Background(), cmp.Or(c.refreshErr, errNoNode))
}

// awaitRefresh waits until a query of the hash slots has ended. It returns a [store.Error] at the deadline.
func awaitRefresh(ctx context.Context, refreshing <-chan struct{}, deadline time.Time) error {
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	select {
	case <-refreshing:
		return nil
	case <-waiting.Done():
		err := errors.New("redisstore: no node of the cluster has replied with the slots yet")
		return cmp.Or(ctx.Err(), error(&store.Error{Reason: store.ReasonTimeout, Err: err}))
	}
}

// errNoNode is the error for a hash slot whose node is unknown while all known nodes fail.
var errNoNode = errors.New("redisstore: no node of the cluster is working")

// nodeAtLocked returns the node at an address. It makes the node if it is unknown.
func (c *Cluster) nodeAtLocked(address string) *node {
	if n := c.nodes[address]; n != nil {
		return n
	}
	o := c.options
	o.Address = address
	newClient, _ := o.clientFunc() // NewCluster has checked these options
	n := &node{cluster: c, Store: newNode(o, newClient, c.hooks, c.keys)}
	n.sharing = sharing.New(o.DeclareKeys, n.findSharing)
	n.breaker = store.NewBreaker(n, func(failure error) {
		n.noteHealth(failure)
		n.sharing.Forget() // another server may reply next
		if c.has(n) {
			c.hooks.healthChanged(address, failure)
		}
	})
	c.nodes[address] = n
	if c.closed {
		n.close()
	}
	return n
}

// has reports whether a node has hash slots, or may have some. A node without hash slots is forgotten.
func (c *Cluster) has(n *node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[n.options.Address] == n
}

// Check implements [store.Checked]. It runs every command of the scripts in one of the node's hash slots.
func (n *node) Check(ctx context.Context) error {
	n.cluster.refreshHashSlots() // another node may have replaced this one
	const redirects = 5
	sent := 0
	for tag := range n.tags() {
		err := n.check(ctx, tag)
		if to := (nodes.Redirect{}); !errors.As(err, &to) {
			return err
		}
		// The hash slot is moving, maybe for long, or has moved.
		if sent++; sent == redirects {
			return nil // a node that redirects works
		}
	}
	return errors.New("redisstore: the node has no slots")
}

// tags yields hash tags of hash slots of the node, which no key has. It begins at another one each time.
func (n *node) tags() iter.Seq[string] {
	return func(yield func(string) bool) {
		first := rand.IntN(wire.HashSlotCount)
		for i := range 20 * wire.HashSlotCount {
			tag := fmt.Appendf(nil, "%%!%d", first+i)
			if n.cluster.hashSlotNodes[wire.HashSlotOf(tag)].Load() == n && !yield(string(tag)) {
				return
			}
		}
	}
}

// refreshHashSlots starts a query of the hash slots, unless one has begun within refreshInterval.
func (c *Cluster) refreshHashSlots() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startRefreshLocked()
}

// startRefreshLocked is refreshHashSlots. It returns a channel that is closed when the query in
// progress ends, or nil if there is none.
func (c *Cluster) startRefreshLocked() <-chan struct{} {
	if c.refreshing == nil && (c.refreshBegan.IsZero() || time.Since(c.refreshBegan) >= refreshInterval) {
		c.refreshing, c.refreshBegan = make(chan struct{}), time.Now()
		go c.queryNodes(c.queryAddressesLocked())
	}
	return c.refreshing
}

// renewHashSlots queries the hash slots, unless a query has begun within refreshInterval. It waits for the reply until
// the deadline. Without a reply, the last known hash slots stay.
func (c *Cluster) renewHashSlots(ctx context.Context, deadline time.Time) {
	c.mu.Lock()
	refreshing := c.startRefreshLocked()
	c.mu.Unlock()
	if refreshing != nil {
		_ = awaitRefresh(ctx, refreshing, deadline)
	}
}

// queryAddressesLocked returns the addresses to query, the best first: nodes that work, then the
// addresses of the options, then nodes that fail. The order within each group is random.
func (c *Cluster) queryAddressesLocked() (addresses []string) {
	rank := make(map[string]int)
	for _, address := range c.options.hosts() {
		rank[address] = 1
	}
	for address, n := range c.nodes {
		if !n.breaker.Open() {
			rank[address] = 0
		} else if _, configured := rank[address]; !configured {
			rank[address] = 2
		}
	}
	addresses = slices.Sorted(maps.Keys(rank)) // the order of a map is not quite random
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	slices.SortStableFunc(addresses, func(a, b string) int { return rank[a] - rank[b] })
	return addresses
}

// queryNodes queries nodes, maxParallelQueries at a time, and stores the first valid reply. It prefers the reply of a node
// whose cluster state is ok: other nodes may be cut off and have old hash slots.
func (c *Cluster) queryNodes(addresses []string) {
	type result struct {
		ranges []nodes.Range
		works  bool
		err    error
	}
	var failure error
	for chunk := range slices.Chunk(addresses, maxParallelQueries) {
		ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
		results := make(chan result, len(chunk))
		for _, address := range chunk {
			go func() {
				ranges, works, err := c.queryNode(ctx, address)
				results <- result{ranges, works, err}
			}()
		}
		var known []nodes.Range
		for range chunk {
			r := <-results
			if failure = cmp.Or(failure, r.err); r.err == nil {
				known = r.ranges
			}
			if r.works {
				break
			}
		}
		cancel()
		if known != nil {
			c.storeHashSlots(known)
			return
		}
	}
	c.recordRefreshError(failure)
}

// queryNode queries a node for all hash slots over a separate connection. works reports whether the
// node's cluster state is ok.
func (c *Cluster) queryNode(ctx context.Context, address string) (ranges []nodes.Range, works bool, err error) {
	o := c.options
	o.Address = address
	newClient, err := o.clientFunc()
	if err != nil {
		return nil, false, err
	}
	client := newClient()
	defer client.Close()
	pipeline := client.Pipeline()
	info, hashSlots := pipeline.ClusterInfo(ctx), pipeline.Do(ctx, "cluster", "slots") // a Redis before 7 has no CLUSTER SHARDS
	_, _ = pipeline.Exec(ctx)
	reply, err := hashSlots.Slice()
	if err == nil {
		ranges, err = nodes.ParseRanges(reply, address)
	}
	if err == nil && len(ranges) == 0 {
		err = fmt.Errorf("redisstore: %s knows no slots", address)
	}
	err = explainSentinel(ctx, client, address, err)
	if err != nil && strings.Contains(err.Error(), "cluster support disabled") {
		err = fmt.Errorf("%s is not a node of a cluster (%w): write redis without cluster, or the address of a node", address, err)
	}
	return ranges, err == nil && !strings.Contains(info.Val(), "cluster_state:fail"), err
}

// storeHashSlots records which node has which hash slots, and forgets nodes without hash slots.
func (c *Cluster) storeHashSlots(ranges []nodes.Range) {
	c.mu.Lock()
	failed := c.refreshErr != nil
	c.refreshErr, c.hashSlotsKnown = nil, true
	serving := make(map[*node]bool)
	var owners [wire.HashSlotCount]*node
	for _, r := range ranges {
		n := c.nodeAtLocked(r.Master)
		serving[n] = true
		for hashSlot := r.First; hashSlot <= r.Last; hashSlot++ {
			owners[hashSlot] = n
		}
	}
	for hashSlot, n := range owners {
		c.hashSlotNodes[hashSlot].Store(n)
	}
	var replaced []string // nodes that fail, whose hash slots other nodes have now
	for address, n := range c.nodes {
		if !serving[n] {
			if n.breaker.Open() {
				replaced = append(replaced, address)
			}
			n.close()
			delete(c.nodes, address)
		}
	}
	c.endRefreshLocked()
	c.mu.Unlock()
	for _, address := range replaced {
		c.hooks.healthChanged(address, nil)
	}
	if failed {
		c.hooks.healthChanged(c.options.Address, nil)
	}
}

// recordRefreshError records why no node replied with the hash slots. The known hash slots stay.
func (c *Cluster) recordRefreshError(failure error) {
	c.mu.Lock()
	first := c.refreshErr == nil && !c.hashSlotsKnown
	if !c.hashSlotsKnown {
		c.refreshErr = failure
	}
	c.endRefreshLocked()
	c.mu.Unlock()
	if first {
		c.hooks.healthChanged(c.options.Address, failure)
	}
}

func (c *Cluster) endRefreshLocked() {
	close(c.refreshing)
	c.refreshing = nil
}

func (n *node) close() {
	n.breaker.Close()
	_ = n.Store.Close()
}
