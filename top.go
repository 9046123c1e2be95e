package ratelimit

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// top counts the refusals of a zone by key, lately: counts are halved every topHalfLife. It
// is the Space-Saving sketch of Metwally, Agrawal and El Abbadi (2005): when there is no
// place left, the key with the least count gives its own, count and all, to the new one. So
// counts can be too high, by what they tell, but a key that has more than its share of the
// refusals, one in topPlaces, is always there. The zero top is empty.
type top struct {
	mu      sync.Mutex
	places  map[topID]int // in counts
	counts  []topCount
	halving time.Time // the next one
}

// topID tells keys apart, however long they are.
type topID struct {
	key    keyhash.Hash
	hashed bool // it is shown as its HMAC
}

// topKey is a key as it may be shown.
type topKey struct {
	text   string
	hashed bool // the text is its HMAC,
	cut    bool // or what it begins with
}

// topCount says that a key was refused from count-over to count times.
type topCount struct {
	id          topID
	key         topKey
	count, over int64
}

const (
	// topPlaces is how many keys are counted.
	topPlaces = 100
	// topHalfLife is how long it takes until refusals count half as much.
	topHalfLife = time.Minute
)

// countDeniedKeys counts a refused request for the keys that were refused.
func (state *requestState) countDeniedKeys() {
	now := time.Now()
	for i := range state.entries {
		if e := &state.entries[i]; !e.Shadow && e.denies() {
			e.zone.deniedKeys.count(now, state.handler.hashKeys, e.Key)
		}
	}
}

// newTopKey is a key as it may be shown where keys are hashed with a secret, or with none.
func newTopKey(secret, key string) topKey {
	if secret != "" {
		return topKey{text: redisstore.HashedKey(secret, key), hashed: true}
	}
	shown, cut := shortenKey(key)
	return topKey{text: shown, cut: cut}
}

// count counts a denial of a key. The key is shown as its HMAC with the secret, or as it is
// if there is no secret.
func (t *top) count(now time.Time, secret, key string) {
	id := topID{keyHashes.Sum(key), secret != ""}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.halveLocked(now)
	place, there := t.places[id]
	if !there {
		place = t.placeLocked(id, newTopKey(secret, key))
	}
	t.counts[place].count++
}

// placeLocked makes a place for a key that has none.
func (t *top) placeLocked(id topID, key topKey) (place int) {
	if place = len(t.counts); place < topPlaces {
		t.counts = append(t.counts, topCount{id: id, key: key})
	} else {
		place = 0
		for i := range t.counts {
			if t.counts[i].count < t.counts[place].count {
				place = i
			}
		}
		least := &t.counts[place]
		delete(t.places, least.id)
		least.id, least.key, least.over = id, key, least.count
	}
	if t.places == nil {
		t.places = make(map[topID]int, topPlaces)
	}
	t.places[id] = place
	return place
}

// halveLocked halves the counts as often as it is time, and drops keys that don't count
// any more.
func (t *top) halveLocked(now time.Time) {
	if now.Before(t.halving) {
		return
	}
	if times := 1 + now.Sub(t.halving)/topHalfLife; len(t.counts) > 0 {
		for range min(times, 63) {
			for i := range t.counts {
				c := &t.counts[i]
				c.count, c.over = c.count/2, min((c.over+1)/2, c.count/2)
			}
		}
		t.counts = slices.DeleteFunc(t.counts, func(c topCount) bool { return c.count == 0 })
		clear(t.places)
		for i, c := range t.counts {
			t.places[c.id] = i
		}
	}
	t.halving = now.Add(topHalfLife)
}

// list returns the counts, the highest first.
func (t *top) list(now time.Time) []topCount {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.halveLocked(now)
	list := slices.Clone(t.counts)
	slices.SortFunc(list, func(a, b topCount) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.key.text, b.key.text))
	})
	return list
}
