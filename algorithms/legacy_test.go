package algorithms

import "testing"

func TestLegacy(t *testing.T) {
	tests := []struct {
		calls                 int64
		duration, minInterval Micros // ms
		drip                  int64
		rate                  Micros // ms
	}{
		{10, 10_000, 0, 1, 1000},
		{10, 5000, 1000, 2, 1000},
		{1, 1000, 0, 1, 1000},
		{4096, 2000, 0, 2, 1},
		{3, 10_000, 0, 1, 3333},
		{300, 3_600_000, 0, 1, 12_000},
		{100, 60_000, 3000, 5, 3000},
		{7, 1000, 100, 1, 143},
		{1, 1500, 0, 1, 1500}, // what min_interval alone says there
	}
	for _, test := range tests {
		q, err := Legacy(test.calls, test.duration*millisecond, test.minInterval*millisecond)
		want := Quota{Algorithm: "leaky_bucket", Events: test.drip, Window: test.rate * millisecond, Burst: test.calls}
		if err != nil || q != want {
			t.Errorf("%d per %d ms, min %d ms: %+v, %v; want %+v", test.calls, test.duration, test.minInterval, q, err, want)
		}
		if _, err := NewLimit(q); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][3]int64{{0, second, 0}, {-1, second, 0}, {1 << 40, second, 0}, {1, 999, 0}, {1, -1, 0}, {1, 1 << 60, 0}, {1, second, -1}, {1, second, 1 << 60}, {1, second, 400}, {1 << 31, 1 << 31 * millisecond, 0}} {
		if q, err := Legacy(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("Legacy%v = %+v", bad, q)
		}
	}
}
