package slots_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
)

// A key whose operation is lost waits until the operation can no longer run, however long that takes and whatever becomes
// due by then. Then its count is set: that of a lost take at once, and that of a lost Set no sooner than after a second.
func TestLostOperationBlocks(t *testing.T) {
	const second, expiry = algorithms.Micros(1_000_000), 30 * algorithms.Micros(1_000_000)
	for _, lostSet := range []bool{false, true} {
		for _, blocked := range []algorithms.Micros{second / 10, second, 5 * second, expiry - 1, expiry, expiry + 1, 2 * expiry, 5 * expiry} {
			table, now := slots.New(expiry), algorithms.Micros(0)
			op := table.Prepare("k", true, now)
			if lostSet {
				table.Lost(op, now, now)
				op = table.Prepare("k", false, now)
			}
			if op.Set != lostSet {
				t.Fatalf("the operation is %+v", op)
			}
			table.Lost(op, blocked, now)
			due := blocked
			if lostSet {
				due = max(due, second)
			}
			if next := table.Next(); next != due {
				t.Errorf("lost Set %t, blocked for %d: the key is due at %d, want %d", lostSet, blocked, next, due)
			}
			for ; now < blocked; now += second / 10 {
				table.Due(now, 100)
				if wait := table.Wait("k", now); wait != blocked-now {
					t.Fatalf("lost Set %t, blocked for %d: at %d it waits for %d", lostSet, blocked, now, wait)
				}
			}
			if wait := table.Wait("k", blocked); wait != 0 {
				t.Errorf("blocked for %d: then it still waits for %d", blocked, wait)
			}
			if op := table.Prepare("k", true, blocked); !op.Set {
				t.Errorf("blocked for %d: then the operation is %+v, want that it sets the count", blocked, op)
			}
		}
	}
}
