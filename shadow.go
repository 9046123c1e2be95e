package ratelimit

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A zone that is tried out decides, charges, counts and reports, but refuses and
// holds nothing, and clients are told nothing of it: all of it with shadow, and
// with enforce for the keys that are not among those enforced.

// checkEnforce judges the share of keys that are enforced, in percent.
func checkEnforce(percent float64) error {
	if !(percent >= 0 && percent <= 100) {
		return fmt.Errorf("enforce must be from 0 to 100, not %v: write how many percent of the keys are refused anything, such as enforce 25", percent)
	}
	return nil
}

// enforces tells whether the zone refuses requests of a key. Which keys it does is
// the same in all instances and after restarts; a larger share adds keys and drops
// none.
func (z *zone) enforces(key string) bool {
	switch z.enforce {
	case 0:
		return false
	case 100:
		return true
	}
	sum := sha256.Sum256([]byte(z.name + "\x00" + key))
	const all = 1 << 53 // a float64 holds that many exactly
	return float64(binary.BigEndian.Uint64(sum[:])%all)/all*100 < z.enforce
}

// enforced tells whether any zone the request belongs to may refuse it.
func (state *requestState) enforced() bool {
	for i := range state.entries {
		if !state.entries[i].Shadow {
			return true
		}
	}
	return false
}
