package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Lists of bans and overrides. Redis has no index of them, because keeping one would cost every
// request that bans. A list reads the names of all keys instead, a part of them for each page.

const (
	// maxScanned is how many keys of Redis are read for one page, at most.
	maxScanned = 100_000
	// maxScanCount is how many keys Redis reads in one command. Other commands wait meanwhile, about a
	// third of a millisecond.
	maxScanCount = 1000
	// maxListTime is the time after which a page ends with the entries found so far.
	maxListTime = 500 * time.Millisecond
	// maxListedValues is how many values are read in one round trip.
	maxListedValues = 100
)

// lister makes one page.
type lister struct {
	store.Listing
	names    wire.Names
	deadline time.Time // when the page ends
	scanned  int       // about how many keys were read
	listed   map[string]bool
	page     store.Page
}

// isFull reports whether the page has enough entries, or has cost enough.
func (l *lister) isFull() bool {
	return len(l.page.Entries) >= l.Limit || l.scanned >= maxScanned || l.scanned > 0 && !time.Now().Before(l.deadline)
}

// scanCount returns how many keys to read in the next command. About as many of them match as the page still needs.
func (l *lister) scanCount() int64 {
	missing := l.Limit - len(l.page.Entries)
	count := missing * max(l.scanned, 1) / max(len(l.page.Entries), 1)
	if l.scanned == 0 {
		count = missing
	}
	return int64(min(max(count, 10), maxScanCount))
}

// List implements [store.Store]. Each entry that is in force while a caller asks for all pages is on at
// least one page. This doesn't hold if another Redis becomes the primary, or the Redis restarts. An
// entry can be on two pages, because Redis moves its keys while their number changes a lot, or because
// a timeout has ended a page. A page can have a few more entries than the Limit.
func (s *Store) List(ctx context.Context, l store.Listing) (store.Page, error) {
	return list(l, s.names(), []string{s.options.Address}, func(_ string, page *lister, cursor uint64) (uint64, error) {
		next, err := s.list(ctx, page, cursor)
		return next, toStoreError(ctx, err)
	})
}

// list makes a page of the entries of nodes, in turn. add adds entries of one node from a cursor on, until the page is
// full. It returns the cursor of the next entries, which is 0 if there are none.
func list(
	l store.Listing, names wire.Names, nodes []string, add func(node string, page *lister, cursor uint64) (uint64, error),
) (store.Page, error) {
	number, cursor, err := parseCursor(l.Cursor, nodes)
	if err != nil {
		return store.Page{}, err
	}
	page := &lister{Listing: l, names: names, deadline: time.Now().Add(maxListTime), listed: make(map[string]bool)}
	for ; number < len(nodes); number++ {
		if page.isFull() {
			page.page.Next = formatCursor(nodes, number, 0)
			break
		}
		if cursor, err = add(nodes[number], page, cursor); err != nil {
			return store.Page{}, err
		}
		if cursor != 0 {
			page.page.Next = formatCursor(nodes, number, cursor)
			break
		}
	}
	return page.page, nil
}

// list adds entries to a page until it is full. It returns the cursor of the next entries, which is 0 if there are none.
func (s *Store) list(ctx context.Context, l *lister, cursor uint64) (uint64, error) {
	for begin := cursor; ; {
		next, err := s.listSome(ctx, l, cursor)
		if cursor != begin && isTimeout(err) && ctx.Err() == nil { // a busy Redis: the next page continues from here
			return cursor, nil
		}
		if cursor = next; err != nil || cursor == 0 || l.isFull() {
			return cursor, err
		}
	}
}

// listSome adds the entries that one SCAN finds. After an error it has added none or a part of them.
func (s *Store) listSome(ctx context.Context, l *lister, cursor uint64) (next uint64, err error) {
	names, next, err := s.scan(ctx, l, cursor)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(names, maxListedValues) {
		if err := s.addEntries(ctx, l, some); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// scan returns names that match the list, and the next cursor.
func (s *Store) scan(ctx context.Context, l *lister, cursor uint64) (names []string, next uint64, err error) {
	conns := s.acquire()
	defer s.release(conns)
	waiting, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	count := l.scanCount()
	names, next, err = conns.Scan(waiting, cursor, l.names.Pattern(l.ID()), count).Result()
	l.scanned += int(count)
	if err != nil && isPermissionDenied(err.Error()) {
		err = fmt.Errorf("%w; lists need the command SCAN: allow it with +scan in the rules of the user", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, _, id, ok := l.names.Parse(name)
		_, isListed := l.Variant(id)
		if !ok || !isListed || l.listed[name] {
			return true
		}
		l.listed[name] = true
		return false
	})
	return names, next, err
}

// addEntries reads the values of names, and adds those that are in force.
func (s *Store) addEntries(ctx context.Context, l *lister, names []string) error {
	conns := s.acquire()
	defer s.release(conns)
	waiting, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	pipeline := conns.Pipeline()
	clock := pipeline.Time(waiting)
	values := make([]*redis.StringCmd, len(names))
	for i, name := range names {
		values[i] = pipeline.Get(waiting, name)
	}
	_, _ = pipeline.Exec(waiting)
	now, err := clock.Result()
	if err != nil {
		return err
	}
	for i, value := range values {
		text, err := value.Result()
		switch {
		case errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"), errors.As(nodes.AsRedirect(err), new(nodes.Redirect)):
			continue // it has ended, another program has written it, or it is on another node by now
		case err != nil:
			return err
		}
		if entry, ok := l.entry(names[i], text, now.UnixMicro()); ok {
			l.page.Entries = append(l.page.Entries, entry)
		}
	}
	return nil
}

// entry returns the entry with a name and a value. ok is false if the value is no ban that is in force.
func (l *lister) entry(name, value string, now algorithms.Micros) (entry store.Listed, ok bool) {
	key, hash, id, _ := l.names.Parse(name)
	entry = store.Listed{Key: key, Hash: hash}
	entry.Variant, _ = l.Variant(id)
	if l.Kind == store.Overrides {
		entry.Override = value
		return entry, true
	}
	state, ok := algorithms.ParseState(value)
	if ok {
		entry.Ban, ok = state.StandingBan(now)
	}
	return entry, ok
}

// List implements [store.Store], as [Store.List] does. It lists the nodes in turn. An entry whose hash slot moves to another
// node in between can be missing. If the nodes change, cursors of earlier pages are unknown.
//
// The first page queries the hash slots, because an instance that sends a node no requests doesn't notice that another node
// has taken over. Its list would fail at a dead node, or miss all entries of a node that is a replica now.
func (c *Cluster) List(ctx context.Context, l store.Listing) (store.Page, error) {
	if l.Cursor == "" {
		c.renewHashSlots(ctx, time.Now().Add(c.options.Timeout))
	}
	owners, err := c.hashSlotOwners(ctx)
	if err != nil {
		return store.Page{}, toStoreError(ctx, err)
	}
	return list(l, c.names(), slices.Sorted(maps.Keys(owners)), func(address string, page *lister, cursor uint64) (uint64, error) {
		n := owners[address]
		if n.breaker.Open() {
			return 0, &store.Error{Reason: store.ReasonOpen, Err: fmt.Errorf("node %s: %w", address, store.ErrOpen)}
		}
		next, err := n.list(ctx, page, cursor)
		if err != nil {
			c.refreshHashSlots() // another node may have replaced this one after the first page
			err = toStoreError(ctx, fmt.Errorf("node %s: %w", address, err))
		}
		return next, err
	})
}

// errUnservedHashSlots is the error of a list in a cluster in which some hash slots have no node.
var errUnservedHashSlots = errors.New("redisstore: some slots of the cluster have no node")

// hashSlotOwners returns the nodes that have hash slots, by address. It waits until the hash slots are known.
func (c *Cluster) hashSlotOwners(ctx context.Context) (map[string]*node, error) {
	if _, err := c.allNodes(ctx); err != nil {
		return nil, err
	}
	owners := make(map[string]*node)
	for hashSlot := range c.hashSlotNodes {
		n := c.hashSlotNodes[hashSlot].Load()
		if n == nil {
			return nil, errUnservedHashSlots
		}
		owners[n.options.Address] = n
	}
	return owners, nil
}

// formatCursor returns the cursor of a position in one of the nodes. It names all nodes, because with
// other nodes the order of the list is another.
func formatCursor(nodes []string, number int, cursor uint64) string {
	names := fnv.New32a()
	_, _ = io.WriteString(names, strings.Join(nodes, "\n"))
	return fmt.Sprintf("%08x-%d-%d", names.Sum32(), number, cursor)
}

func parseCursor(text string, nodes []string) (number int, cursor uint64, err error) {
	if text == "" {
		return 0, 0, nil
	}
	var names uint32
	_, err = fmt.Sscanf(text, "%x-%d-%d", &names, &number, &cursor)
	if err != nil || number < 0 || number >= len(nodes) || text != formatCursor(nodes, number, cursor) {
		return 0, 0, store.ErrCursor
	}
	return number, cursor, nil
}
