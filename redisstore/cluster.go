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
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
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

	slots [slotCount]atomic.Pointer[node] // nil where it isn't known

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
	o, err := o.Normal()
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
	return &Cluster{options: o, stepped: stepped, changed: changed, nodes: make(map[string]*node)}, nil
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

// takeKey takes for requests of one key.
func (c *Cluster) takeKey(ctx context.Context, now algorithms.Micros, requests []store.Request) (allowed bool, err error) {
	again := false
	err = c.at(ctx, requests[0].Key, func(s *Store, deadline time.Time, asking bool) error {
		if now == 0 && !again {
			// Together with others, whose keys may be what is in the way.
			again = true
			allowed, err = s.takeUntil(ctx, deadline, requests)
			return err
		}
		waiting, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		allowed, err = s.takeAlone(waiting, now, deadline, asking, requests)
		return classify(ctx, err)
	})
	return allowed, err
}

// byKey is the part of some requests that is of one key.
type byKey struct {
	requests []store.Request
	places   []int // of these in all
	allowed  bool
	err      error
}

func split(requests []store.Request) (parts []*byKey) {
	for i, r := range requests {
		n := slices.IndexFunc(parts, func(p *byKey) bool { return p.requests[0].Key == r.Key })
		if n < 0 {
			n = len(parts)
			parts = append(parts, new(byKey))
		}
		parts[n].requests = append(parts[n].requests, r)
		parts[n].places = append(parts[n].places, i)
	}
	return parts
}

// each calls do for all parts at the same time, and waits for them.
func each(parts []*byKey, do func(*byKey)) {
	var others sync.WaitGroup
	for _, p := range parts[1:] {
		others.Go(func() { do(p) })
	}
	do(parts[0])
	others.Wait()
}

// takeKeys takes for requests of several keys.
func (c *Cluster) takeKeys(ctx context.Context, now algorithms.Micros, requests []store.Request) (bool, error) {
	deadline := time.Now().Add(c.options.Timeout)
	parts := split(requests)
	for _, p := range parts { // no charge that would have to be given back at once
		n := c.slots[c.names().slot(p.requests[0].Key)].Load()
		if n != nil && n.breaker.Open() {
			return false, &store.Error{Reason: store.ReasonOpen, Err: store.ErrOpen}
		}
	}
	each(parts, func(p *byKey) { p.allowed, p.err = c.takeKey(ctx, now, p.requests) })
	allowed, failed := true, error(nil)
	for _, p := range parts {
		allowed = allowed && p.allowed
		failed = cmp.Or(failed, p.err)
	}
	if failed != nil {
		for _, p := range parts {
			if p.err == nil && charged(p.requests) {
				go c.giveBack(context.WithoutCancel(ctx), now, receipts(p.requests))
			}
		}
		return false, failed
	}
	if !allowed {
		each(parts, func(p *byKey) {
			if p.allowed {
				c.withdraw(context.WithoutCancel(ctx), now, deadline, p.requests)
			}
		})
	}
	for _, p := range parts {
		for i, place := range p.places {
			requests[place].Decisions = p.requests[i].Decisions
		}
	}
	return allowed, nil
}

func charged(requests []store.Request) bool {
	return slices.ContainsFunc(requests, func(r store.Request) bool {
		return slices.ContainsFunc(r.Decisions, func(d algorithms.Decision) bool { return d.Charged > 0 })
	})
}

// receipts copies requests that nobody else may read any more.
func receipts(requests []store.Request) []store.Request {
	copies := slices.Clone(requests)
	for i := range copies {
		copies[i].Decisions = slices.Clone(copies[i].Decisions)
	}
	return copies
}

// withdraw makes requests that had room those of a request that another key had none
// for. It is done by the deadline, whether or not the charge has been given back by then.
func (c *Cluster) withdraw(ctx context.Context, now algorithms.Micros, deadline time.Time, requests []store.Request) {
	var back []store.Request
	var places []int
	for i := range requests {
		r := &requests[i]
		if r.Mode == algorithms.Uniform { // refused requests are charged, too
			for j := range r.Decisions {
				d := &r.Decisions[j]
				if d.Remaining == r.Cost-1 {
					d.RetryAfter = d.MoreAfter
				} else if d.Remaining < r.Cost {
					d.RetryAfter = d.ResetAfter // it fits by then, and maybe sooner
				}
			}
			continue
		}
		if r.Shadow && refuses(r) {
			continue
		}
		back, places = append(back, *r), append(places, i)
	}
	back = receipts(back)
	for _, place := range places {
		for j := range requests[place].Decisions {
			d := &requests[place].Decisions[j]
			d.Wait, d.Charged = 0, 0 // it is not held, and nobody else gives anything back
		}
	}
	if !charged(back) {
		return
	}
	given := make(chan error, 1)
	go func() { given <- c.giveBack(ctx, now, back) }()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case err := <-given:
		if err != nil {
			return
		}
	case <-timer.C:
		return
	}
	for i, place := range places {
		requests[place].Decisions = back[i].Decisions
	}
}

// refuses tells whether a request has no room in its own zone.
func refuses(r *store.Request) bool {
	return slices.ContainsFunc(r.Decisions, func(d algorithms.Decision) bool { return !d.Allowed })
}

// giveBack gives back what was charged to requests of one key, and then has their
// decisions say how their budgets stand.
func (c *Cluster) giveBack(ctx context.Context, now algorithms.Micros, requests []store.Request) error {
	given := false
	return c.at(ctx, requests[0].Key, func(s *Store, deadline time.Time, asking bool) error {
		waiting, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		if !given {
			if err := s.refund(waiting, now, asking, requests, algorithms.Forever); err != nil {
				return classify(ctx, err)
			}
			given = true
			for i := range requests {
				requests[i].Cost, requests[i].MaxWait = 0, 0
			}
		}
		_, err := s.takeAlone(waiting, now, deadline, asking, requests)
		return classify(ctx, err)
	})
}

// Refund implements [store.Store].
func (c *Cluster) Refund(ctx context.Context, requests []store.Request, n int64) error {
	return c.RefundAt(ctx, 0, requests, n)
}

// RefundAt is Refund at an instant of the caller's choice; 0 stands for the time of the
// nodes.
func (c *Cluster) RefundAt(ctx context.Context, now algorithms.Micros, requests []store.Request, n int64) error {
	return c.eachKey(ctx, requests, func(ctx context.Context, s *Store, asking bool, requests []store.Request) error {
		return s.refund(ctx, now, asking, requests, n)
	})
}

// Renew implements [store.Store].
func (c *Cluster) Renew(ctx context.Context, requests []store.Request) error {
	return c.RenewAt(ctx, 0, requests)
}

// RenewAt is Renew at an instant of the caller's choice; 0 stands for the time of the
// nodes.
func (c *Cluster) RenewAt(ctx context.Context, now algorithms.Micros, requests []store.Request) error {
	return c.eachKey(ctx, requests, func(ctx context.Context, s *Store, asking bool, requests []store.Request) error {
		return s.recharge(ctx, now, asking, requests)
	})
}

// eachKey has the nodes do something with the charges of requests, those of each key by
// themselves. The memory of their decisions is the caller's.
func (c *Cluster) eachKey(ctx context.Context, requests []store.Request, do func(ctx context.Context, s *Store, asking bool, requests []store.Request) error) error {
	if !charged(requests) {
		return nil
	}
	parts := split(requests)
	each(parts, func(p *byKey) {
		p.err = c.at(ctx, p.requests[0].Key, func(s *Store, deadline time.Time, asking bool) error {
			waiting, cancel := context.WithDeadline(ctx, deadline)
			defer cancel()
			return classify(ctx, do(waiting, s, asking, p.requests))
		})
	})
	var err error
	for _, p := range parts {
		err = cmp.Or(err, p.err)
	}
	return err
}

// at has the node do something that has a key's slot, within the timeout. A node that
// doesn't have it, or not all of it, does nothing and says who does.
func (c *Cluster) at(ctx context.Context, key string, do func(s *Store, deadline time.Time, asking bool) error) error {
	deadline := time.Now().Add(c.options.Timeout)
	slot := c.names().slot(key)
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
			if errors.As(err, &failed) && failed.Reason != store.ReasonOpen && (failed.Reason != store.ReasonKey || noSlot(err)) {
				c.learn()
			}
			return err
		}
		address := to.addressFrom(n.options.Address)
		n, asking = nil, to.kind == "ASK"
		switch to.kind {
		case "MOVED":
			n = c.moved(slot, address)
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

func (c *Cluster) names() keyNames {
	return keyNames{prefix: c.options.KeyPrefix, secret: c.options.HashKeys}
}

// nodeOf returns the node that has a slot, or any if that isn't known: it says who does.
// It waits for the first answer to who has which slots, but for no other.
func (c *Cluster) nodeOf(ctx context.Context, slot int, deadline time.Time) (*node, error) {
	if n := c.slots[slot].Load(); n != nil {
		return n, nil
	}
	c.mu.Lock()
	attempt, known := c.learnLocked(), c.known || c.failure != nil
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
	return nil, &store.Error{Reason: store.ReasonConnection, Err: cmp.Or(c.failure, errNoNode)}
}

// errNoNode is that of a key whose node isn't known when all others fail.
var errNoNode = errors.New("redisstore: no node of the cluster works that could say which has a slot")

// moved notes that the node at an address has a slot by now, and returns it. In one step:
// a node that has none may be forgotten at any time.
func (c *Cluster) moved(slot int, address string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodeLocked(address)
	c.slots[slot].Store(n)
	c.learnLocked()
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
	n := &node{cluster: c, Store: newStore(o, dial, c.stepped)}
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
	n.cluster.learn() // another one may have taken its place
	const tries, redirects = 20 * slotCount, 5
	sent := 0
	for i := range tries {
		tag := fmt.Appendf(nil, "%%!%d", i)
		if n.cluster.slots[slotOf(tag)].Load() != n {
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

// learn asks who has which slots, soon, unless that was asked a moment ago.
func (c *Cluster) learn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learnLocked()
}

// learnLocked returns what is closed when the attempt ends that is under way, if one is.
func (c *Cluster) learnLocked() <-chan struct{} {
	if c.attempt == nil && (c.began.IsZero() || time.Since(c.began) >= learnApart) {
		c.attempt, c.began = make(chan struct{}), time.Now()
		go c.ask(c.placesLocked())
	}
	return c.attempt
}

// placesLocked returns the addresses to ask, the best first: nodes that work, then
// those of the options, then nodes that fail; of each kind any.
func (c *Cluster) placesLocked() (places []string) {
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

// ask asks at these places, a few at a time, and keeps what the first of them says that
// knows: if possible not one that doesn't work, for it may be cut off from the others and
// not have heard who has its slots by now.
func (c *Cluster) ask(places []string) {
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
				ranges, works, err := c.slotsBy(ctx, address)
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
			c.learned(known)
			return
		}
	}
	c.notLearned(failure)
}

// slotsBy asks a node who has which slots, and whether it works, over a connection of its
// own.
func (c *Cluster) slotsBy(ctx context.Context, address string) (ranges []slotRange, works bool, err error) {
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
		return slotRange{}, errShort
	}
	if len(values) == 2 { // nobody
		return slotRange{}, nil
	}
	first, isFirst := values[0].(int64)
	last, isLast := values[1].(int64)
	master, _ := values[2].([]any)
	if !isFirst || !isLast || first < 0 || last >= slotCount || len(master) < 2 {
		return slotRange{}, replyError(fmt.Sprintf("holds %.100v where slots and their nodes belong", reply))
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

// learned notes who has which slots, and forgets nodes that have none.
func (c *Cluster) learned(ranges []slotRange) {
	c.mu.Lock()
	had := c.failure != nil
	c.failure, c.known = nil, true
	serving := make(map[*node]bool)
	var owners [slotCount]*node
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

// notLearned notes why nobody said who has which slots. What is known stays.
func (c *Cluster) notLearned(failure error) {
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

// all returns the nodes that have slots.
func (c *Cluster) all(ctx context.Context) ([]*node, error) {
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
	nodes, err := c.all(ctx)
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
	nodes, err := c.all(ctx)
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
