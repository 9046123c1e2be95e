package algorithms

import "testing"

func TestScaled(t *testing.T) {
	tests := []struct {
		burst, factor, want int64 // factor in millionths
	}{
		{5, 1_000_000, 5},
		{5, 2_000_000, 3},
		{5, 10_000_000, 1},
		{5, 500_000, 10},
		{7, 700_000, 10},
		{5, 1 << 50, 1},
		{10_000_000_000_000, 2_000_000, 5_000_000_000_000}, // whose product with a million is too large for 64 bits
		{10_000_000_000_001, 2_000_000, 5_000_000_000_001},
	}
	for _, test := range tests {
		l := mustLimit(t, Quota{Algorithm: "token_bucket", Events: 10_000_000_000_000, Window: 24 * 60 * minute, Burst: test.burst})
		scaled := l.Scaled(test.factor)
		if scaled.Burst != test.want || scaled.Fingerprint() != l.Fingerprint() {
			t.Errorf("burst %d with factor %d: %d, want %d", test.burst, test.factor, scaled.Burst, test.want)
		}
	}
	l := mustLimit(t, Quota{Algorithm: "gcra", Events: 1, Window: minute})
	if most := l.Scaled(1); most.Burst <= 1000 || most.prepare() != nil {
		t.Errorf("the smallest factor makes a burst of %d", most.Burst)
	}
}

// A budget is the same whatever the factor of the moment is.
func TestFactorsShareABudget(t *testing.T) {
	for _, name := range []string{"token_bucket", "gcra", "leaky_bucket", "smooth"} {
		l := mustLimit(t, Quota{Algorithm: name, Events: 1, Window: second, Burst: 5})
		h := &history{limit: l.Scaled(100_000), state: new(State), now: start} // a burst of 50
		h.take(h.now, 50)
		h.limit = l
		d := h.take(h.now, 1)
		if name == "smooth" { // what is used beyond the smaller burst does not make this one dearer
			if !d.Allowed || h.ask(h.now+second, 1).Allowed != true || h.ask(h.now+second-1, 1).Allowed {
				t.Errorf("%s: %+v, want it allowed, and the next one a second later", name, d)
			}
			continue
		}
		if d.Allowed || d.Remaining != 0 || d.RetryAfter != second { // the smaller burst is full, and owes nothing
			t.Errorf("%s: 50 used of what is now 5: %+v", name, d)
		}
	}
}

// RefillTime is the time in which an empty budget becomes full, to the microsecond.
func TestRefillTime(t *testing.T) {
	for _, a := range All() {
		if a.Calendar {
			continue
		}
		for _, q := range []Quota{
			{Events: 10, Window: second, Burst: 20},
			{Events: 10, Window: second, Burst: 15}, // a leaky_bucket needs two windows
			{Events: 3, Window: minute, Burst: 7},
			{Events: 7, Window: 13, Burst: 1},
			{Events: 1, Window: 24 * 60 * minute},
			{Events: 100_000, Window: second, Burst: 1},
		} {
			if q.Algorithm = a.Name; !a.Burst {
				q.Burst = 0
			}
			l := mustLimit(t, q)
			refill := l.RefillTime()
			if !a.Burst {
				if refill != 0 {
					t.Errorf("%v refills in %d, want 0: it counts in windows", l, refill)
				}
				continue
			}
			h := &history{limit: l, state: new(State), now: start}
			h.take(start, l.Burst)
			if early, full := h.ask(start+refill-1, 0).Remaining, h.ask(start+refill, 0).Remaining; early >= h.full() || full != h.full() {
				t.Errorf("%v refills in %d: %d remain then, and %d a microsecond earlier", l, refill, full, early)
			}
		}
	}
	warm := mustLimit(t, Quota{Algorithm: "smooth", Events: 10, Window: minute, WarmUp: second})
	if refill := warm.RefillTime(); refill != minute {
		t.Errorf("%v refills in %d, want a window", warm, refill)
	}
}

func TestPart(t *testing.T) {
	tests := []struct {
		quota    Quota
		num, den int64
		want     string
	}{
		{Quota{Algorithm: "token_bucket", Events: 10, Window: second, Burst: 50}, 1, 3, "token_bucket 3 1s 16"},
		{Quota{Algorithm: "gcra", Events: 2, Window: second}, 1, 3, "gcra 1 1s"},
		{Quota{Algorithm: "sliding_log", Events: 10, Window: second, MinInterval: 1000}, 1, 2, "sliding_log 5 1s at least 1ms apart"},
		{Quota{Algorithm: "fixed_window", Events: 10, Window: second, Align: "clock"}, 1, 1, "fixed_window 10 1s aligned to the clock"},
		{Quota{Algorithm: "token_bucket", Events: 6, Window: second, Initial: new(int64(4))}, 1, 3, "token_bucket 2 1s"},
		{Quota{Algorithm: "smooth", Events: 6, Window: second, WarmUp: second}, 1, 3, "smooth 2 1s warming up for 1s"},
		{Quota{Algorithm: "token_bucket", Events: 5000, Window: 30 * 24 * 60 * minute}, 1, 3, "token_bucket 1666 720h"},
		// Only multiples of what it has in common with the window can be counted.
		{Quota{Algorithm: "token_bucket", Events: 8_640_000_000_000, Window: 24 * 60 * minute}, 1, 7, "token_bucket 1209600000000 24h 1234285714285"},
	}
	for _, test := range tests {
		l := mustLimit(t, test.quota)
		part, err := l.Share(test.num, test.den)
		if err != nil || part.String() != test.want {
			t.Errorf("%d/%d of %v: %v, %v, want %s", test.num, test.den, l, part, err, test.want)
		}
	}
}
