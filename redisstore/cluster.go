package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Cluster is a [store.Store] in a Redis Cluster. All budgets of one key are in one slot
// and decided together, by a node that is a [Store] of its own: it has its own clock,
// script calls and [store.Breaker], so that one which fails holds up nobody else's
// requests. How requests of several keys are decided together, [Cluster.Take] says.
//
// Which node has which slot is asked of any of them at first, whenever one fails, and
// when one says that another has a slot by now. A node's own word counts at once.
type Cluster struct {
	options Options
	stepped func(back time.Duration)
	changed func(address string, failure error)

	slots      [wire.SlotCount]atomic.Pointer[node] // nil where it isn't known
	slotCounts *slotCounts

	mu      sync.Mutex
	nodes   map[string]*node // by address
	known   bool             // some slots are, or were
	attempt chan struct{}    // closed when the attempt to learn the slots ends that is under way; or nil
	began   time.Time        // when the last attempt did
	failure error            // why it failed, if no slots are known
	closed  bool
}

// node is a node of a cluster.
type node struct {
	*Store
	breaker *store.Breaker
	cluster *Cluster
}

// Settings of a [Cluster].
const (
	// learnApart is how far apart attempts to learn the slots begin at least.
	learnApart = 100 * time.Millisecond
	// learnFrom is how many nodes are asked at the same time.
	learnFrom = 3
	// learnTimeout is how long they have for an answer.
	learnTimeout = time.Second
	// movePause is how long a request waits before it is tried again, if a slot is on
	// its way and has some of its keys here and some there.
	movePause = 2 * time.Millisecond
)

// NewCluster makes a store. It opens no connection. stepped is as in [New]; changed, if
// not nil, is called as [store.NewBreaker] says, with the address of a node or, if no
// node of the cluster says who has the slots, those of the options.
func NewCluster(o Options, stepped func(back time.Duration), changed func(address string, failure error)) (*Cluster, error) {
	o, err := o.Normalized()
	if err != nil {
		return nil, err
	}
	if !o.Cluster {
		return nil, errors.New("redisstore: these are not the options of a cluster")
	}
	if _, err := o.client(); err != nil {
		return nil, err
	}
	if changed == nil {
		changed = func(string, error) {}
	}
	c := &Cluster{options: o, stepped: stepped, changed: changed, nodes: make(map[string]*node)}
	c.slotCounts = newSlotCounts(o.names(), o.SlotExpiry, c.storeOf)
	c.slotCounts.setMoved = c.setSlots
	return c, nil
}

// Take implements [store.Store].
//
// Requests of several keys are decided by several script calls at the same time. If one
// refuses, what others have charged is given back at once, but by requests of uniform
// zones; in between, requests of others may have found no room. If one fails, that is
// the error, and what others have charged is given back, too.
func (c *Cluster) Take(ctx context.Context, requests []store.Request) (bool, error) {
	return c.TakeAt(ctx, 0, requests)
}

// TakeAt is Take at an instant of the caller's choice; 0 stands for the time of the
// nodes.
func (c *Cluster) TakeAt(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if len(requests) == 0 {
		return true, nil
	}
	if isOneKey(requests) {
		return c.takeKey(ctx, now, requests)
	}
	return c.takeKeys(ctx, now, requests)
}

func isOneKey(requests []store.Request) bool {
	for i := range requests[1:] {
		if requests[i+1].Key != requests[0].Key {
			return false
		}
	}
	return true
}

// storeOf returns the store of the node that has a name, or nil if none is known that works.
func (c *Cluster) storeOf(name string) *Store {
	n := c.slots[wire.SlotOfName(name)].Load()
	if n == nil || n.breaker.Open() {
		return nil
	}
	return n.Store
}

// setSlots sets the count of a name at the node that has it.
func (c *Cluster) setSlots(name string) {
	_ = c.withSlot(context.Background(), wire.SlotOfName(name), func(s *Store, deadline time.Time, asking bool) error {
		set := newSet(name)
		set.done = make(chan struct{}, 1)
		return toStoreError(context.Background(), s.sendAlone(set, deadline, asking))
	})
}

// takeKey takes for requests of one key.
//
// While the slot of a key is on its way from node to node, a script that names a key which
// isn't there, as overrides usually aren't, can't run: then they are as the requests say.
func (c *Cluster) takeKey(ctx context.Context, now algorithms.Micros, requests []store.Request) (allowed bool, err error) {
	asked, again := requests, false
	err = c.withKey(ctx, requests[0].Key, func(s *Store, deadline time.Time, asking bool) error {
		call := s.newTake(ctx, now, asked)
		if again {
			err = s.sendAlone(call, deadline, asking)
			allowed = call.allowed
			call.release()
		} else { // together with others, whose keys may be what is in the way
			again = true
			s.enqueue(call, true)
			allowed, err = s.await(call)
		}
		if to, ok := errors.AsType[redirect](err); ok && to.kind == "TRYAGAIN" {
			asked = slices.Clone(requests)
			for i := range asked {
				asked[i].Override = nil
			}
		}
		return toStoreError(ctx, err)
	})
	if err == nil {
		for i := range requests {
			requests[i].Outcome = asked[i].Outcome
		}
	}
	return allowed, err
}

// Correct implements [store.Store].
func (c *Cluster) Correct(corrections []store.Correction, failed func(error)) {
	c.slotCounts.leaveSlots(corrections, true)
	c.correct(0, corrections, func(err error) {
		if err != nil && failed != nil {
			failed(err)
		}
	})
}

// LeaveSlots notes that requests hold their slots no more. It asks no node.
func (c *Cluster) LeaveSlots(corrections []store.Correction) {
	c.slotCounts.leaveSlots(corrections, false)
}

// Count counts slots that another store has granted.
func (c *Cluster) CountSlots(requests []store.Request) { c.slotCounts.countSlots(requests) }

// CorrectAt is Correct at an instant of the caller's choice; 0 stands for the time of the nodes. It
// returns when the corrections are made.
func (c *Cluster) CorrectAt(_ context.Context, now algorithms.Micros, corrections []store.Correction) (err error) {
	c.slotCounts.leaveSlots(corrections, true)
	results := make(chan error, len(corrections))
	for range c.correct(now, corrections, func(err error) { results <- err }) {
		err = cmp.Or(err, <-results)
	}
	return err
}

// correct makes refunds and charges, those of each key by themselves. It returns for how many keys;
// ended is called for each.
func (c *Cluster) correct(now algorithms.Micros, corrections []store.Correction, ended func(error)) (n int) {
	for _, made := range callsOf(now, corrections) {
		n++
		c.correctKey(made, ended)
	}
	return n
}

// correctKey makes the corrections of one key. It queues them at once if it is known where, and goes
// on in the background if that node says otherwise.
func (c *Cluster) correctKey(made *pendingCall, ended func(error)) {
	wander := func() {
		err := c.withKey(context.Background(), made.key, func(s *Store, deadline time.Time, asking bool) error {
			again := &pendingCall{
				corrections: made.corrections, key: made.key, now: made.now, alone: true, work: made.work,
				queued: time.Now(), done: make(chan struct{}, 1),
			}
			return toStoreError(context.Background(), s.sendAlone(again, deadline, asking))
		})
		ended(err)
	}
	n := c.slots[c.names().Slot(made.key)].Load()
	if n == nil {
		go wander()
		return
	}
	if n.breaker.Open() {
		ended(&store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen})
		return
	}
	made.onEnd = func(made *pendingCall) {
		if to := (redirect{}); errors.As(made.err, &to) {
			go wander()
			return
		}
		ended(toStoreError(context.Background(), made.err))
	}
	n.enqueue(made, false)
}

// Change implements [store.Store].
func (c *Cluster) Change(ctx context.Context, change store.Change) error {
	return c.ChangeAt(ctx, 0, change)
}

// ChangeAt is Change at an instant of the caller's choice; 0 stands for the time of the
// nodes.
func (c *Cluster) ChangeAt(ctx context.Context, now algorithms.Micros, change store.Change) error {
	for _, one := range changesOf(c.names(), now, change) { // while their slot is on its way, each can be elsewhere
		err := c.withKey(ctx, change.Key, func(s *Store, deadline time.Time, asking bool) error {
			waiting, cancel := context.WithDeadline(ctx, deadline)
			defer cancel()
			return toStoreError(ctx, s.change(waiting, asking, one))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// withKey has the node do something that has a key's slot, within the timeout. A node that
// doesn't have it, or not all of it, does nothing and says who does.
func (c *Cluster) withKey(ctx context.Context, key string, do func(s *Store, deadline time.Time, asking bool) error) error {
	return c.withSlot(ctx, c.names().Slot(key), do)
}

func (c *Cluster) withSlot(ctx context.Context, slot int, do func(s *Store, deadline time.Time, asking bool) error) error {
	deadline := time.Now().Add(c.options.Timeout)
	var n *node
	asking := false
	for hops := 1; ; hops++ {
		if n == nil {
			var err error
			if n, err = c.nodeOf(ctx, slot, deadline); err != nil {
				return err
			}
		}
		var to redirect
		err := n.breaker.Do(func() error {
			err := do(n.Store, deadline, asking)
			if errors.As(err, &to) {
				return nil // it works
			}
			return err
		})
		if to == (redirect{}) {
			var failed *store.Error
			if errors.As(err, &failed) && failed.Reason != store.ReasonOpen && (failed.Reason != store.ReasonKey || isSlotUnserved(err)) {
				c.refreshSlots()
			}
			return err
		}
		if hops == 1 { // the request may have waited in a queue
			deadline = time.Now().Add(c.options.Timeout)
		}
		address := to.addressFrom(n.options.Address)
		n, asking = nil, to.kind == "ASK"
		switch to.kind {
		case "MOVED":
			n = c.follow(slot, address)
		case "ASK":
			n = c.node(address)
		}
		if !time.Now().Before(deadline) {
			return &store.Error{Reason: store.ReasonTimeout, Err: to}
		}
		if to.kind == "TRYAGAIN" || hops > 3 {
			select {
			case <-time.After(movePause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (c *Cluster) names() wire.Names { return c.options.names() }

// Failing is how many nodes aren't asked at present because they have failed.
func (c *Cluster) Failing() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.nodes {
		if one.breaker.Open() {
			n++
		}
	}
	if c.failure != nil {
		n++
	}
	return n
}

// allNodes returns the nodes that have slots.
func (c *Cluster) allNodes(ctx context.Context) ([]*node, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(learnTimeout)
	}
	if _, err := c.nodeOf(ctx, 0, deadline); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []*node
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Check tells whether all nodes that have slots do all that is asked of them.
func (c *Cluster) Check(ctx context.Context) error {
	nodes, err := c.allNodes(ctx)
	for _, n := range nodes {
		if failed := n.breaker.Check(ctx); failed != nil {
			err = cmp.Or(err, fmt.Errorf("node %s: %w", n.options.Address, failed))
		}
	}
	return err
}

// EvictionPolicy is what the nodes do when their memory is full, as
// [Store.EvictionPolicy] has it: of one that drops keys, if any does.
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

// Address says where the cluster is.
func (c *Cluster) Address() string { return c.options.address() }

// String says whose budgets these are, without secrets.
func (c *Cluster) String() string { return c.options.identity() }

// Close closes the connections once no Take is under way. The cluster can still be
// asked.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, n := range c.nodes {
		n.close()
	}
	return nil
}
