package algorithms

import (
	"encoding/binary"
	"math"
	"testing"
)

// A budget is dropped one to two quanta after it is fully restored. With initial it is dropped
// after it would be full with any burst.
func TestExpires(t *testing.T) {
	const now = 1_700_000_000 * second
	none := int64(0)
	quotas := []Quota{
		{Algorithm: "token_bucket", Events: 10, Window: minute, Initial: &none},
		{Algorithm: "smooth", Events: 10, Window: minute, Initial: &none},
		{Algorithm: "smooth", Events: 10, Window: minute, WarmUp: minute},
		{Algorithm: "sliding_log", Events: 10, Window: minute, MinInterval: 2 * minute},
		{Algorithm: "sliding_log", Events: 10, Window: minute, Buckets: 5},
	}
	for _, a := range All() {
		quotas = append(quotas,
			quotaOf(a, 1, 1000), quotaOf(a, 5, minute), quotaOf(a, 7200, 60*minute))
	}
	for _, q := range quotas {
		l := mustLimit(t, q)
		quantum := max(min(16, q.Events)*q.Window/q.Events, second)
		if l.quantum != quantum {
			t.Errorf("%v has a quantum of %d, want %d", l, l.quantum, quantum)
		}
		for _, l := range []*Limit{l, l.Scaled(500_000), l.Scaled(7_000_000)} {
			var s State
			requests := []ZoneRequest{{Cost: 1, Checks: []Check{{Limit: l, State: &s}}}}
			Take(requests, now)
			untouched := now + requests[0].Checks[0].Decision.ResetAfter
			if q.Initial != nil {
				untouched += q.Window
			}
			expires := l.Expires(&s)
			if expires%quantum != 0 || expires <= untouched+quantum || expires > untouched+2*quantum {
				t.Errorf("%v is untouched at %d and dropped at %d, with a quantum of %d", l, untouched-now, expires-now, quantum)
			}
			message, _ := l.Message(now)
			if got := math.Float64frombits(binary.LittleEndian.Uint64([]byte(message[len(message)-8:]))); got != float64(quantum) {
				t.Errorf("the message of %v ends with %g, want the quantum %d", l, got, quantum)
			}
		}
	}
}

// A message begins with the number of its algorithm, which the script knows it by.
// Limits that differ only in the burst have one text.
func TestMessage(t *testing.T) {
	for i, a := range All() {
		l := mustLimit(t, quotaOf(a, 3, minute))
		if message, _ := l.Message(0); message[0] != byte(i+1) || len(message)%8 != 1 {
			t.Errorf("the message of %v is %v", l, message)
		}
		if !l.Scalable() {
			continue
		}
		more := l.Scaled(500_000)
		text, burst := more.Message(0)
		if own, _ := l.Message(0); text != own || text != messageOf(more) || burst != 6 {
			t.Errorf("the message of %v with a burst of 6 is %q and a burst of %d, want %q", l, text, burst, own)
		}
	}
}
