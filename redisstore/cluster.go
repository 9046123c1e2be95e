package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Cluster is a [store.Store] in a Redis Cluster. All budgets of one key are in one hash slot, so one node decides them
// together. Each node is a [Store] with its own clock, queue and [store.Breaker], so a node that fails delays only its own
// keys. See [Cluster.Take] for requests with several keys. All methods are safe for concurrent use.
//
// A Cluster queries the hash slots from any node at first, whenever a node fails, and when a node
// redirects. It follows a redirect at once.
type Cluster struct {
	options Options
	hooks   Hooks

	hashSlotNodes [wire.HashSlotCount]atomic.Pointer[node] // the node of each hash slot; nil while unknown
	corrector

	mu             sync.Mutex
	nodes          map[string]*node // by address
	hashSlotsKnown bool             // some hash slots are, or were
	refreshing     chan struct{}    // closed when the query of the hash slots in progress ends; or nil
	refreshBegan   time.Time        // when the last query began
	refreshErr     error            // why it failed, while no hash slots are known
	closed         bool
}

// node is a node of a cluster.
type node struct {
	*Store
	breaker *store.Breaker
	cluster *Cluster
}

const (
	// refreshInterval is the minimum time between the beginnings of two queries of the hash slots.
	refreshInterval = 100 * time.Millisecond
	// maxParallelQueries is how many nodes are queried at the same time.
	maxParallelQueries = 3
	// queryTimeout is the timeout of a query.
	queryTimeout = time.Second
	// moveRetryDelay is the time before a call is tried again, while a hash slot moves and only some of its keys have moved.
	moveRetryDelay = 2 * time.Millisecond
)

// NewCluster returns a Cluster. It opens no connection. [Hooks.HealthChanged] is called for each node, with the node's
// address. It is called with the address of the options if no node replies with the hash slots, and when one does again.
func NewCluster(o Options, hooks Hooks) (*Cluster, error) {
	o, err := o.Normalized()
	if err != nil {
		return nil, err
	}
	if !o.Cluster {
		return nil, errors.New("redisstore: NewCluster needs the option Cluster")
	}
	if _, err := o.clientFunc(); err != nil {
		return nil, err
	}
	c := &Cluster{options: o, hooks: hooks, nodes: make(map[string]*node)}
	c.corrector = corrector{newKeyStates(o.names(), o.SlotExpiry, c.route), c.correctKey}
	c.keys.setMoved = c.setMoved
	return c, nil
}

// Take implements [store.Store], at the time of the nodes.
//
// Each node decides the requests of its keys in one step, unless it denies such script calls or a hash slot moves. The nodes
// decide at the same time. If one denies, the charges of the others are refunded at once, except in uniform zones. Before
// the refund, concurrent requests may have been denied. If one fails, its error is returned, and the charges of the others
// are refunded, too.
func (c *Cluster) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	return c.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at a given instant; 0 stands for the time of the nodes.
func (c *Cluster) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (bool, error) {
	if err := ctx.Err(); err != nil || len(requests) == 0 {
		return err == nil, err
	}
	if hasSeveralKeys(requests) {
		return c.takeGroups(ctx, now, requests, c.groups(requests, true))
	}
	return c.takeKey(ctx, now, requests)
}

// route returns the store of the node that has a name, or nil if the node fails or is unknown.
func (c *Cluster) route(name string) *Store {
	n := c.hashSlotNodes[wire.HashSlotOfName(name)].Load()
	if n == nil || n.breaker.Open() {
		return nil
	}
	return n.Store
}

// setMoved sets the count of a name at the node that has it, and follows redirects.
func (c *Cluster) setMoved(name string) {
	_ = c.withHashSlot(context.Background(), wire.HashSlotOfName(name), func(h hop) error {
		_, err := h.sendAlone(context.Background(), newSetCall(name))
		return toStoreError(context.Background(), err)
	})
}

// takeKey takes for requests of one key.
//
// While a hash slot moves, a node replies TRYAGAIN to a script that names a missing key, and the keys of
// overrides and of reserved events are usually missing. takeKey then leaves these keys out. The overrides in the
// requests apply, and nothing is reserved.
func (c *Cluster) takeKey(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (allowed bool, err error) {
	sent, retrying := requests, false
	err = c.withHashSlot(ctx, c.names().HashSlot(requests[0].Key), func(h hop) error {
		call := h.newTakeCall(ctx, now, sent)
		if retrying {
			allowed, err = h.sendAlone(ctx, call)
		} else { // in a batch, in which other keys may cause a TRYAGAIN
			h.enqueueOrSend(call)
			allowed, err = h.await(call)
			retrying = !nodes.IsRedirect(err, "ELSEWHERE") // the next batch has a script call for the hash slot
		}
		if nodes.IsRedirect(err, "TRYAGAIN") {
			sent = slices.Clone(requests)
			for i := range sent {
				sent[i].Override, sent[i].ReservedID = nil, ""
			}
		}
		return toStoreError(ctx, err)
	})
	if err == nil {
		for i := range requests {
			requests[i].Outcome = sent[i].Outcome
		}
	}
	return allowed, err
}

// correctKey queues a call with corrections of one key. If the node is unknown or redirects,
// correctKey continues in the background. While the hash slot moves, it omits the reserved events, as takeKey does: a
// Set makes their count right later.
func (c *Cluster) correctKey(call *pendingCall, ended func(error)) {
	hashSlot := c.names().HashSlot(call.key)
	retry := func() {
		err := c.withHashSlot(context.Background(), hashSlot, func(h hop) error {
			again := &pendingCall{
				corrections: call.corrections, releases: call.releases, key: call.key, now: call.now, work: call.work,
				queued: time.Now(), done: make(chan struct{}, 1),
			}
			_, err := h.sendAlone(context.Background(), again)
			if nodes.IsRedirect(err, "TRYAGAIN") {
				c.keys.endReleases(call.releases)
				for i := range call.corrections {
					call.corrections[i].Request.ReservedID = ""
				}
			}
			return toStoreError(context.Background(), err)
		})
		ended(err)
	}
	n := c.hashSlotNodes[hashSlot].Load()
	if n == nil {
		go retry()
		return
	}
	if n.breaker.Open() {
		ended(&store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen})
		return
	}
	call.onEnd = func(call *pendingCall) {
		if to := (nodes.Redirect{}); errors.As(call.err, &to) || isDialError(call.err) {
			go retry()
			return
		}
		ended(toStoreError(context.Background(), call.err))
	}
	n.enqueueOrSend(call)
}

// Change implements [store.Store], at the time of the nodes.
func (c *Cluster) Change(ctx context.Context, change store.Change) error {
	return c.ChangeAt(ctx, 0, change)
}

// ChangeAt is Change at a given instant; 0 stands for the time of the nodes.
func (c *Cluster) ChangeAt(ctx context.Context, now algorithms.Micros, change store.Change) error {
	for _, one := range keyChanges(c.names(), now, change) { // each can be on another node while their hash slot moves
		err := c.withHashSlot(ctx, c.names().HashSlot(change.Key), func(h hop) error {
			waiting, cancel := context.WithDeadline(ctx, h.deadline)
			defer cancel()
			one.asking = h.asking
			return toStoreError(ctx, h.changeKey(waiting, one))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hop is an attempt to do something at a node of a cluster.
type hop struct {
	*node
	deadline time.Time
	asking   bool // follows an ASK redirect of another node
}

// sendAlone sends a call in its own batch, before all calls in the queue, and waits for its end. At the deadline the call
// ends if it is not sent yet.
func (h hop) sendAlone(ctx context.Context, c *pendingCall) (allowed bool, err error) {
	waiting, cancel := context.WithDeadline(ctx, h.deadline)
	defer cancel()
	queued := c.queued
	c.ctx, c.alone, c.asking = waiting, true, h.asking
	h.keys.mu.Lock()
	h.queue.calls = slices.Insert(h.queue.calls, 0, c)
	h.scheduleSendLocked()
	h.keys.mu.Unlock()
	if allowed, err = h.await(c); err != nil && err == waiting.Err() && ctx.Err() == nil {
		h.keys.mu.Lock()
		defer h.keys.mu.Unlock()
		err = cmp.Or(h.queue.lateErrorLocked(queued), err)
	}
	return allowed, err
}

// withHashSlot calls do with the node that has a hash slot, within the timeout, and follows redirects. A node that
// redirects has done nothing.
func (c *Cluster) withHashSlot(ctx context.Context, hashSlot int, do func(hop) error) (err error) {
	h, queued := hop{deadline: time.Now().Add(c.options.Timeout)}, true
	for hops := 1; ; hops++ {
		if h.node == nil {
			if h.node, err = c.nodeFor(ctx, hashSlot, h.deadline); err != nil {
				return err
			}
		}
		to, err := c.visit(ctx, hashSlot, h, hops == 1, do)
		if to == (nodes.Redirect{}) {
			return err
		}
		if queued { // the request may have waited
			h.deadline = time.Now().Add(c.options.Timeout)
		}
		queued = to.Kind == "ELSEWHERE"
		h = c.follow(h, hashSlot, to)
		if to.Kind == "TRYAGAIN" || hops > 3 {
			select {
			case <-time.After(moveRetryDelay):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !time.Now().Before(h.deadline) {
			err := fmt.Errorf("redisstore: slot %d of the cluster is moving to another node, or has moved: %s", hashSlot, to.Kind)
			return &store.Error{Reason: store.ReasonTimeout, Err: err}
		}
	}
}

// visit calls do with the node of a hop, and returns the redirect of the node, or the error. The breaker counts no
// redirect. If the first node can't be reached because another one has replaced it, that is a redirect, too.
func (c *Cluster) visit(ctx context.Context, hashSlot int, h hop, first bool, do func(hop) error) (to nodes.Redirect, err error) {
	err = h.breaker.Do(func() error {
		err := do(h)
		if first && isDialError(err) {
			to = c.redirectToOwner(ctx, hashSlot, h)
		}
		if errors.As(err, &to) || to != (nodes.Redirect{}) {
			return nil
		}
		return err
	})
	var failed *store.Error
	if errors.As(err, &failed) && failed.Reason != store.ReasonOpen && (failed.Reason != store.ReasonKey || isHashSlotUnserved(err)) {
		c.refreshHashSlots()
	}
	return to, err
}

// redirectToOwner queries the hash slots until the deadline of a hop. It returns a redirect if another node than that of the
// hop has the hash slot. While no request asks a node, nobody notices that another node has taken over.
func (c *Cluster) redirectToOwner(ctx context.Context, hashSlot int, h hop) (to nodes.Redirect) {
	c.renewHashSlots(ctx, h.deadline)
	if owner := c.hashSlotNodes[hashSlot].Load(); owner != nil && owner != h.node {
		to = nodes.Redirect{Kind: "MOVED", Address: owner.options.Address}
	}
	return to
}

// follow returns the next hop after a redirect. Its node is nil if the redirect names none. A node without hash slots may be
// forgotten at any time, so follow records the new node of the hash slot in the same step. For a second, the hash slot has
// its own script calls.
func (c *Cluster) follow(h hop, hashSlot int, to nodes.Redirect) hop {
	h.sharing.Pause(hashSlot)
	next := hop{deadline: h.deadline, asking: to.Kind == "ASK"}
	if to.Address == "" {
		return next
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next.node = c.nodeAtLocked(to.Resolve(h.options.Address))
	if to.Kind == "MOVED" {
		c.hashSlotNodes[hashSlot].Store(next.node)
		c.startRefreshLocked()
	}
	return next
}

func (c *Cluster) names() wire.Names { return c.options.names() }

// allNodes returns the known nodes. It waits until they are known.
func (c *Cluster) allNodes(ctx context.Context) ([]*node, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(queryTimeout)
	}
	if _, err := c.nodeFor(ctx, 0, deadline); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.nodes)), nil
}

// Check returns an error if a node with hash slots does not run every command of the scripts.
func (c *Cluster) Check(ctx context.Context) error {
	nodes, err := c.allNodes(ctx)
	for _, n := range nodes {
		if failed := n.breaker.Check(ctx); failed != nil {
			err = cmp.Or(err, fmt.Errorf("node %s: %w", n.options.Address, failed))
		}
	}
	return err
}

// EvictionPolicy implements [Redis]. It returns the policy of a node that evicts keys, if there is one.
func (c *Cluster) EvictionPolicy(ctx context.Context) (policy string, bounded bool, err error) {
	nodes, err := c.allNodes(ctx)
	for _, n := range nodes {
		policy, bounded, err = n.EvictionPolicy(ctx)
		if err != nil || bounded && policy != "noeviction" {
			break
		}
	}
	return policy, bounded, err
}

// Address implements [Redis].
func (c *Cluster) Address() string { return c.options.displayAddress() }

// String implements [Redis].
func (c *Cluster) String() string { return c.options.identity() }

// Close closes the connections when no operation uses them any more. The Cluster can still be used.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, n := range c.nodes {
		n.close()
	}
	return nil
}
