package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// Listing asks for a page of the bans or of the run-time overrides that are in force in a zone.
type Listing struct {
	Zone string
	Kind ListingKind
	// Cursor is the Next of the page before. It is empty for the first page.
	Cursor string
	// Limit is about how many entries a page has at most; above 0.
	Limit int
}

// ListingKind says what a [Listing] lists.
type ListingKind uint8

// The kinds of a [Listing].
const (
	Bans ListingKind = iota
	Overrides
)

// Page is a part of a list.
type Page struct {
	Entries []Listed
	// Next is the cursor of the next page. It is empty if this is the last page. A page can be
	// empty and have a Next.
	Next string
}

// Listed is a ban or an override that is in force.
type Listed struct {
	// Key is the key. It is empty if the store only knows a hash of the key.
	Key string
	// Cut reports whether Key is only the beginning of the key.
	Cut bool
	// Hash is the name of the key in the store, if the store only knows a hash of the key.
	Hash string
	// Variant is the variant of the ban; see [BanID].
	Variant string
	// Ban is the ban. It is zero for an override.
	Ban algorithms.StandingBan
	// Override is the text of the override. It is empty for a ban.
	Override string
}

// ErrCursor is the error of List for a cursor that the store doesn't know.
var ErrCursor = errors.New("the store doesn't know this cursor: list again from the beginning")

// ID returns the beginning of the IDs that are listed. With a variant, ":" and the variant follow.
func (l Listing) ID() string {
	if l.Kind == Overrides {
		return OverrideID(l.Zone)
	}
	return BanID(l.Zone, "")
}

// Variant returns the variant in an ID. ok is false if the Listing doesn't list values with this ID.
func (l Listing) Variant(id string) (variant string, ok bool) {
	variant, ok = strings.CutPrefix(id, l.ID())
	if variant == "" || !ok {
		return "", ok
	}
	variant, ok = strings.CutPrefix(variant, ":")
	return variant, ok && l.Kind == Bans
}

// maxListedKey is the maximum number of bytes of a key that a ban in memory keeps.
const maxListedKey = 256

// banLabel says whose ban a state in memory is, because the name of a state is only a hash.
type banLabel struct {
	key string // at most maxListedKey bytes
	cut bool   // key is only the beginning
	id  string
}

func newBanLabel(key, id string) *banLabel {
	key, cut := cutShort(key)
	shown := key[:min(len(key), maxListedKey)]
	return &banLabel{key: strings.Clone(shown), cut: cut || len(shown) < len(key), id: id}
}

// cutShort returns the beginning of a key that was made short, and true. It returns any other key as it is.
func cutShort(key string) (beginning string, cut bool) {
	if beginning, _, cut = keyhash.SplitShort(key); cut {
		return beginning, true
	}
	return key, false
}

// weight returns how much a label counts against the bound: 1, and 1 more for every 64 bytes of the key.
func (l *banLabel) weight() int64 {
	if l == nil {
		return 0
	}
	return 1 + int64(len(l.key))/64
}

// List implements [Store]. Pages have an order that doesn't change. So each entry that is in force
// while a caller asks for all pages is on exactly one page. The only error is [ErrCursor].
func (m *Memory) List(ctx context.Context, l Listing) (Page, error) { return m.ListAt(ctx, 0, l) }

// ListAt is List at an instant of the caller's choice. 0 stands for the store's clock.
func (m *Memory) ListAt(_ context.Context, now algorithms.Micros, l Listing) (Page, error) {
	at, err := parseMemoryCursor(l.Cursor)
	if err != nil {
		return Page{}, err
	}
	var found []namedEntry // one more than Limit, to know whether there is a next page
	for ; at.shard < shardCount && len(found) <= l.Limit; at = (memoryCursor{shard: at.shard + 1}) {
		found = append(found, m.shared.listShard(at, now, l)...)
	}
	page := Page{}
	if len(found) > l.Limit {
		found = found[:l.Limit]
		page.Next = found[l.Limit-1].at.String()
	}
	for _, f := range found {
		page.Entries = append(page.Entries, f.Listed)
	}
	return page, nil
}

// namedEntry is an entry with the cursor behind it.
type namedEntry struct {
	at memoryCursor
	Listed
}

// listShard returns the entries behind a cursor in its shard, in the order of their names.
func (m *SharedMemory) listShard(behind memoryCursor, now algorithms.Micros, l Listing) (entries []namedEntry) {
	s := &m.shards[behind.shard].shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if now == 0 {
		now = m.Now()
	}
	add := func(name keyhash.Hash, e Listed) {
		if at := (memoryCursor{behind.shard, true, name}); !behind.within || compareHashes(name, behind.name) > 0 {
			entries = append(entries, namedEntry{at, e})
		}
	}
	switch l.Kind {
	case Bans:
		for name, label := range s.banLabels {
			variant, listed := l.Variant(label.id)
			if !listed {
				continue
			}
			state := s.loadLocked(name).state
			if ban, stands := state.StandingBan(now); stands {
				add(name, Listed{Key: label.key, Cut: label.cut, Variant: variant, Ban: ban})
			}
		}
	case Overrides:
		for key := range s.overrides {
			if text := s.overrideTextLocked(key, now); text != "" && key.zone == l.Zone {
				shown, cut := cutShort(key.key)
				add(m.names.key(key.key), Listed{Key: shown, Cut: cut, Override: text})
			}
		}
	}
	slices.SortFunc(entries, func(a, b namedEntry) int { return compareHashes(a.at.name, b.at.name) })
	return entries
}

func compareHashes(a, b keyhash.Hash) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
}

// memoryCursor is a position in the order of the entries of a [SharedMemory].
type memoryCursor struct {
	shard  int
	within bool // behind a name in the shard, not at the beginning of the shard
	name   keyhash.Hash
}

func (c memoryCursor) String() string {
	return fmt.Sprintf("%x-%x-%x", c.shard, c.name[0], c.name[1])
}

func parseMemoryCursor(text string) (c memoryCursor, err error) {
	if text == "" {
		return c, nil
	}
	c.within = true
	_, err = fmt.Sscanf(text, "%x-%x-%x", &c.shard, &c.name[0], &c.name[1])
	if err != nil || c.shard < 0 || c.shard >= shardCount || c.String() != text {
		return c, ErrCursor
	}
	return c, nil
}
