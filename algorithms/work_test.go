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
