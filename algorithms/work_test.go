package algorithms

import "testing"

// Every limit that is legal leaves room in a script call for others, at any cost, and is
// charged and given back within its worst work.
func TestWork(t *testing.T) {
	largest := []Quota{
		{Algorithm: "sliding_log", Events: MaxLogged, Window: minute},
		{Algorithm: "sliding_log", Events: MaxLogged, Window: minute, MinInterval: 1},
		{Algorithm: "sliding_log", Events: 1 << 40, Window: minute, Buckets: maxBuckets},
		{Algorithm: "sliding_log", Events: 1, Window: minute},
		{Algorithm: "sliding_log", Events: 1, Window: minute, Buckets: 1},
	}
	for _, a := range All() {
		largest = append(largest, quotaOf(a, 1000, 1000))
	}
	for _, q := range largest {
		l := mustLimit(t, q)
		if worst := l.WorstWork(1<<31 - 1); worst > MaxWork*9/10 {
			t.Errorf("%v takes %d steps of %d", l, worst, MaxWork)
		}
		for _, cost := range []int64{0, 1, 1000, MaxLogged, 1<<31 - 1} {
			worst := l.WorstWork(cost)
			if work := l.Work(cost); work < 1 || work > worst || l.RefundWork() > worst || worst > l.WorstWork(cost+1) {
				t.Errorf("%v: cost %d takes %d steps, giving one back %d, and the worst %d", l, cost, work, l.RefundWork(), worst)
			}
		}
	}
	for _, q := range []Quota{
		{Algorithm: "sliding_log", Events: MaxLogged + 1, Window: minute},
		{Algorithm: "sliding_log", Events: 1, Window: minute, Buckets: maxBuckets + 1},
	} {
		if _, err := NewLimit(q); err == nil {
			t.Errorf("%+v is legal", q)
		}
	}
}

// A suggested limit is legal, light enough, and not much lighter than necessary.
func TestLighter(t *testing.T) {
	for _, q := range []Quota{
		{Algorithm: "sliding_log", Events: MaxLogged, Window: minute, MinInterval: 5},
		{Algorithm: "sliding_log", Events: 1 << 40, Window: minute, Buckets: maxBuckets},
	} {
		l := mustLimit(t, q)
		for _, by := range []int64{1, 26, 1000, 30_001} {
			for _, cost := range []int64{1, MaxLogged} {
				const jump = 150 // where a log has one doubling less
				want := l.WorstWork(cost) - by
				lighter := l.Lighter(cost, by)
				if want < 1000 {
					continue // no log is so light
				}
				if lighter == nil || lighter.WorstWork(cost) > want || lighter.WorstWork(cost) < want-jump || lighter.MinInterval != l.MinInterval {
					t.Errorf("%v, lighter by %d at cost %d: %v", l, by, cost, lighter)
				}
			}
		}
		if lighter := l.Lighter(1, MaxWork); lighter != nil {
			t.Errorf("%v instead of %v", lighter, l)
		}
	}
	if lighter := mustLimit(t, Quota{Algorithm: "gcra", Events: 5, Window: minute}).Lighter(1, 1); lighter != nil {
		t.Errorf("%v is lighter than one of two numbers", lighter)
	}
}
