package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The layout of a [Cluster]: which node has which slots, and how that is learned.

// nodeOf returns the node that has a slot, or any if that isn't known: it says who does.
// It waits for the first answer to who has which slots, but for no other.
func (c *Cluster) nodeOf(ctx context.Context, slot int, deadline time.Time) (*node, error) {
	if n := c.slots[slot].Load(); n != nil {
		return n, nil
	}
	c.mu.Lock()
	attempt, known := c.startRefreshLocked(), c.known || c.failure != nil
	c.mu.Unlock()
	if !known {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-attempt:
		case <-timer.C:
			return nil, &store.Error{Reason: store.ReasonTimeout, Err: errors.New("redisstore: no node of the cluster has said yet which has which slots")}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if n := c.slots[slot].Load(); n != nil {
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
	return nil, toStoreError(context.Background(), cmp.Or(c.failure, errNoNode))
}

// errNoNode is that of a key whose node isn't known when all others fail.
var errNoNode = errors.New("redisstore: no node of the cluster works that could say which has a slot")

// follow notes that the node at an address has a slot by now, and returns it. In one step:
// a node that has none may be forgotten at any time.
func (c *Cluster) follow(slot int, address string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodeLocked(address)
	c.slots[slot].Store(n)
	c.startRefreshLocked()
	return n
}

// node returns the node at an address, known or not.
func (c *Cluster) node(address string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodeLocked(address)
}

func (c *Cluster) nodeLocked(address string) *node {
	if n := c.nodes[address]; n != nil {
		return n
	}
	o := c.options
	o.Address = address
	dial, _ := o.client() // it has made one of these settings before
	n := &node{cluster: c, Store: newNode(o, dial, c.stepped, c.slotCounts)}
	n.breaker = store.NewBreaker(n, func(failure error) { c.changed(address, failure) })
	c.nodes[address] = n
	if c.closed {
		n.close()
	}
	return n
}

// Check tells whether a node does all that is asked of it. It implements
// [store.Checked].
func (n *node) Check(ctx context.Context) error {
	n.cluster.refreshSlots() // another one may have taken its place
	const tries, redirects = 20 * wire.SlotCount, 5
	sent := 0
	for i := range tries {
		tag := fmt.Appendf(nil, "%%!%d", i)
		if n.cluster.slots[wire.SlotOf(tag)].Load() != n {
			continue
		}
		err := n.check(ctx, string(tag))
		if to := (redirect{}); !errors.As(err, &to) {
			return err
		}
		// This slot is on its way, and may be so for long, or has gone.
		if sent++; sent == redirects {
			return nil // whoever sends others elsewhere works
		}
	}
	return errors.New("redisstore: the node has no slots")
}

// refreshSlots asks who has which slots, soon, unless that was asked a moment ago.
func (c *Cluster) refreshSlots() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startRefreshLocked()
}

// startRefreshLocked returns what is closed when the attempt ends that is under way, if one is.
func (c *Cluster) startRefreshLocked() <-chan struct{} {
	if c.attempt == nil && (c.began.IsZero() || time.Since(c.began) >= learnApart) {
		c.attempt, c.began = make(chan struct{}), time.Now()
		go c.queryNodes(c.addressesLocked())
	}
	return c.attempt
}

// addressesLocked returns the addresses to ask, the best first: nodes that work, then
// those of the options, then nodes that fail; of each kind any.
func (c *Cluster) addressesLocked() (places []string) {
	var failing []string
	for address, n := range c.nodes {
		if n.breaker.Open() {
			failing = append(failing, address)
		} else {
			places = append(places, address)
		}
	}
	shuffle(places)
	configured := c.options.hosts()
	shuffle(configured)
	shuffle(failing)
	for _, address := range append(configured, failing...) {
		if !slices.Contains(places, address) {
			places = append(places, address)
		}
	}
	return places
}

func shuffle(s []string) { rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) }

// queryNodes asks at these places, a few at a time, and keeps what the first of them says that
// knows: if possible not one that doesn't work, for it may be cut off from the others and
// not have heard who has its slots by now.
func (c *Cluster) queryNodes(places []string) {
	type result struct {
		ranges []slotRange
		works  bool
		err    error
	}
	var failure error
	for few := range slices.Chunk(places, learnFrom) {
		ctx, cancel := context.WithTimeout(context.Background(), learnTimeout)
		results := make(chan result, len(few))
		for _, address := range few {
			go func() {
				ranges, works, err := c.querySlots(ctx, address)
				results <- result{ranges, works, err}
			}()
		}
		var known []slotRange
		for range few {
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
			c.slotsRefreshed(known)
			return
		}
	}
	c.refreshFailed(failure)
}

// querySlots asks a node who has which slots, and whether it works, over a connection of its
// own.
func (c *Cluster) querySlots(ctx context.Context, address string) (ranges []slotRange, works bool, err error) {
	o := c.options
	o.Address = address
	dial, err := o.client()
	if err != nil {
		return nil, false, err
	}
	client := dial()
	defer client.Close()
	pipeline := client.Pipeline()
	info, slots := pipeline.ClusterInfo(ctx), pipeline.Do(ctx, "cluster", "slots") // a Redis before 7 has no CLUSTER SHARDS
	_, _ = pipeline.Exec(ctx)
	reply, err := slots.Slice()
	for _, one := range reply {
		r, err := readRange(one, address)
		if err != nil {
			return nil, false, err
		}
		if r.master != "" {
			ranges = append(ranges, r)
		}
	}
	if err == nil && len(ranges) == 0 {
		err = fmt.Errorf("redisstore: %s knows of no slots", address)
	}
	if err != nil && strings.Contains(err.Error(), "cluster support disabled") {
		err = fmt.Errorf("%s is no node of a cluster (%w): write redis without cluster, or the address of one", address, err)
	}
	return ranges, err == nil && !strings.Contains(info.Val(), "cluster_state:fail"), err
}

// slotRange are slots of one node.
type slotRange struct {
	first, last int64
	master      string // its address
}

// readRange reads one element of what CLUSTER SLOTS says at an address: first and last
// slot, and who has them, the master first, each with host and port. The client's own
// reader knows no node without a host.
func readRange(reply any, from string) (slotRange, error) {
	values, _ := reply.([]any)
	if len(values) < 2 {
		return slotRange{}, wire.ReplyError("ends early")
	}
	if len(values) == 2 { // nobody
		return slotRange{}, nil
	}
	first, isFirst := values[0].(int64)
	last, isLast := values[1].(int64)
	master, _ := values[2].([]any)
	if !isFirst || !isLast || first < 0 || last >= wire.SlotCount || len(master) < 2 {
		return slotRange{}, wire.ReplyError(fmt.Sprintf("holds %.100v where slots and their nodes belong", reply))
	}
	host, _ := master[0].(string)
	return slotRange{first, last, addressFrom(host, fmt.Sprint(master[1]), from)}, nil
}

// addressFrom is an address, as a node at another means it: without a host it is where
// that one is.
func addressFrom(host, port, from string) string {
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, port)
}

// slotsRefreshed notes who has which slots, and forgets nodes that have none.
func (c *Cluster) slotsRefreshed(ranges []slotRange) {
	c.mu.Lock()
	had := c.failure != nil
	c.failure, c.known = nil, true
	serving := make(map[*node]bool)
	var owners [wire.SlotCount]*node
	for _, r := range ranges {
		n := c.nodeLocked(r.master)
		serving[n] = true
		for slot := r.first; slot <= r.last; slot++ {
			owners[slot] = n
		}
	}
	for slot, n := range owners {
		c.slots[slot].Store(n)
	}
	for address, n := range c.nodes {
		if !serving[n] {
			n.close()
			delete(c.nodes, address)
		}
	}
	c.endAttemptLocked()
	c.mu.Unlock()
	if had {
		c.changed(c.options.Address, nil)
	}
}

// refreshFailed notes why nobody said who has which slots. What is known stays.
func (c *Cluster) refreshFailed(failure error) {
	c.mu.Lock()
	first := c.failure == nil && !c.known
	if !c.known {
		c.failure = failure
	}
	c.endAttemptLocked()
	c.mu.Unlock()
	if first {
		c.changed(c.options.Address, failure)
	}
}

func (c *Cluster) endAttemptLocked() {
	close(c.attempt)
	c.attempt = nil
}

func (n *node) close() {
	n.breaker.Close()
	_ = n.Store.Close()
}

// redirect is what a node says that is not to decide on a key.
type redirect struct {
	kind    string // MOVED, ASK or TRYAGAIN
	address string // of who is; empty with TRYAGAIN
}

func (r redirect) Error() string {
	return fmt.Sprintf("redisstore: %s %s: this Redis is a node of a cluster, write cluster in the block of redis", r.kind, r.address)
}

// addressFrom is the address, as a node at another means it. IPv6 ones have no
// brackets.
func (r redirect) addressFrom(from string) string {
	at := max(strings.LastIndexByte(r.address, ':'), 0)
	return addressFrom(r.address[:at], strings.TrimPrefix(r.address[at:], ":"), from)
}

// asRedirect returns err, read if it is a redirect.
func asRedirect(err error) error {
	if err == nil {
		return nil
	}
	for _, kind := range []string{"MOVED", "ASK", "TRYAGAIN"} {
		if redis.HasErrorPrefix(err, kind+" ") {
			r := redirect{kind: kind}
			if words := strings.Fields(err.Error()); kind != "TRYAGAIN" && len(words) > 2 {
				r.address = words[2]
			}
			return r
		}
	}
	return err
}
