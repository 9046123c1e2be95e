package ratelimit

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A zone with the option shadow decides, charges, counts and logs requests, but it never denies
// or delays one, and sends no header fields. With the option enforce this applies to a part of
// the keys.

// checkEnforce checks the option enforce: the share of keys that are not in shadow mode, in
// percent.
func checkEnforce(percent float64) error {
	if !(percent >= 0 && percent <= 100) {
		return fmt.Errorf("enforce must be from 0 to 100, not %v: write the percentage of keys whose requests can be denied, such as enforce 25",
			percent)
	}
	return nil
}

// enforces reports whether the zone can deny requests of a key. The answer is the same in all
// instances and after restarts. A larger share adds keys and drops none.
func (z *zone) enforces(key string) bool {
	switch z.enforce {
	case 0:
		return false
	case 100:
		return true
	}
	sum := sha256.Sum256([]byte(z.name + "\x00" + key))
	const steps = 1 << 53 // a float64 holds integers up to this one exactly
	return float64(binary.BigEndian.Uint64(sum[:])%steps)/steps*100 < z.enforce
}

// hasEnforcedZone reports whether any zone of the request can deny it.
func (state *requestState) hasEnforcedZone() bool {
	for i := range state.entries {
		if !state.entries[i].Shadow {
			return true
		}
	}
	return false
}
