package telemetry

import (
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// keyHashes hashes the keys that this package remembers. Clients can make keys long, but a hash takes 16 bytes.
var keyHashes = keyhash.New()

// bansInForce counts the bans of a zone that began on this instance and are in force. The store has all
// bans, but to count them there would take a walk over all keys. So bansInForce doesn't notice if another
// instance ends a ban, or if Redis loses it. The zero value has no bans.
type bansInForce struct {
	mu       sync.Mutex
	ends     map[keyhash.Hash]time.Time // by the hash of the key
	earliest time.Time                  // no later than the first end
	swept    time.Time
}

const (
	// maxCountedBans is how many bans of a zone are counted.
	maxCountedBans = 100_000
	// banSweepPause is the shortest time between two sweeps by bans that begin. A sweep of a full
	// bansInForce takes about a millisecond.
	banSweepPause = time.Second
)

// begin counts a ban of a key. It replaces an earlier ban of the key. If maxCountedBans are in force
// already, the ban isn't counted.
func (b *bansInForce) begin(key string, lasts time.Duration) {
	hash, now := keyHashes.Sum(key), time.Now()
	ends := now.Add(lasts)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ends) >= maxCountedBans && now.Sub(b.swept) >= banSweepPause {
		b.sweepLocked(now)
	}
	if _, known := b.ends[hash]; !known && len(b.ends) >= maxCountedBans {
		return
	}
	if b.ends == nil {
		b.ends = make(map[keyhash.Hash]time.Time)
	}
	if len(b.ends) == 0 || ends.Before(b.earliest) {
		b.earliest = ends
	}
	b.ends[hash] = ends
}

// end uncounts the ban of a key.
func (b *bansInForce) end(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ends, keyHashes.Sum(key))
}

// count returns how many bans are in force.
func (b *bansInForce) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweepLocked(time.Now())
	return len(b.ends)
}

// sweepLocked forgets the bans that have ended.
func (b *bansInForce) sweepLocked(now time.Time) {
	b.swept = now
	if now.Before(b.earliest) {
		return
	}
	b.earliest = time.Time{}
	for hash, ends := range b.ends {
		switch {
		case !ends.After(now):
			delete(b.ends, hash)
		case b.earliest.IsZero() || ends.Before(b.earliest):
			b.earliest = ends
		}
	}
}
