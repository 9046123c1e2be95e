package algorithms

import "testing"

// step is one request on a timeline.
type step struct {
	at        Micros // after the start, in ms
	cost      int64
	charged   int64 // -1: the request is denied
	remaining int64
	retry     Micros // ms
	reset     Micros // ms
}

type timeline struct {
	name  string
	quota Quota
	mode  Mode
	steps []step
}

// start is a whole number of hours since the epoch.
const start = 1_763_640_000 * second

func TestTimelines(t *testing.T) {
	const ms = millisecond
	tests := []timeline{
		{"token bucket: 3 at once, then one every 1.5 s", Quota{Algorithm: "token_bucket", Events: 2, Window: 3 * second, Burst: 3}, Binary, []step{
			{0, 1, 1, 2, 0, 1500},
			{0, 2, 2, 0, 0, 4500},
			{0, 1, -1, 0, 1500, 4500},
			{1499, 1, -1, 0, 1, 3001},
			{1500, 1, 1, 0, 0, 4500},
			{500, 1, -1, 0, 2500, 5500}, // the clock steps back
			{3000, 1, 1, 0, 0, 4500},
			{60_000, 4, -1, 3, Forever / ms, 0},
			{60_000, 3, 3, 0, 0, 4500},
		}},
		{"token bucket: nary", Quota{Algorithm: "token_bucket", Events: 1, Window: second, Burst: 5}, Nary, []step{
			{0, 3, 3, 2, 0, 3000},
			{0, 3, 2, 0, 0, 5000},
			{0, 3, -1, 0, 1000, 5000},
			{1000, 3, 1, 0, 0, 5000},
		}},
		{"token bucket: force drains and passes", Quota{Algorithm: "token_bucket", Events: 1, Window: second, Burst: 3}, Force, []step{
			{0, 2, 2, 1, 0, 2000},
			{0, 2, 1, 0, 0, 3000},
			{500, 5, 0, 0, 0, 2500},
			{1000, 5, 1, 0, 0, 3000},
		}},
		{"gcra: spacing of a third of a second", Quota{Algorithm: "gcra", Events: 3, Window: second, Burst: 1}, Binary, []step{
			{0, 1, 1, 0, 0, 334},
			{333, 1, -1, 0, 1, 1},
			{334, 1, 1, 0, 0, 334},
			{10_000, 2, -1, 1, Forever / ms, 0},
		}},
		{"fixed window: begins with the first charge", Quota{Algorithm: "fixed_window", Events: 2, Window: minute}, Binary, []step{
			{59_000, 0, 0, 2, 0, 0},
			{59_000, 1, 1, 1, 0, 60_000},
			{61_000, 1, 1, 0, 0, 58_000},
			{61_000, 1, -1, 0, 58_000, 58_000},
			{118_999, 1, -1, 0, 1, 1},
			{119_000, 1, 1, 1, 0, 60_000},
		}},
		{"fixed window: at the clock", Quota{Algorithm: "fixed_window", Events: 2, Window: minute, Align: "clock"}, Binary, []step{
			{59_000, 1, 1, 1, 0, 1000},
			{59_999, 1, 1, 0, 0, 1},
			{59_999, 1, -1, 0, 1, 1},
			{60_000, 1, 1, 1, 0, 60_000},
			{59_500, 1, 1, 0, 0, 60_500}, // the clock steps back over the border
			{59_500, 1, -1, 0, 60_500, 60_500},
			{120_000, 2, 2, 0, 0, 60_000},
		}},
		{"fixed window: a day is a day of UTC", Quota{Algorithm: "fixed_window", Events: 1, Window: 24 * 60 * minute, Align: "clock"}, Binary, []step{
			{0, 1, 1, 0, 0, 12 * 60 * 60_000}, // the start is noon
		}},
		{"fixed window: a charged denial restarts it", Quota{Algorithm: "fixed_window", Events: 2, Window: minute}, Uniform, []step{
			{0, 2, 2, 0, 0, 60_000},
			{30_000, 1, -1, 0, 60_000, 60_000},
			{89_999, 1, -1, 0, 60_000, 60_000},
			{149_999, 1, 1, 1, 0, 60_000},
			{149_999, 1, 1, 0, 0, 60_000},
			{148_999, 1, -1, 0, 61_000, 61_000}, // the clock is a second behind, and the window stays
			{209_999, 1, 1, 1, 0, 60_000},
		}},
		{"sliding log: never 3 in a minute", Quota{Algorithm: "sliding_log", Events: 2, Window: minute}, Binary, []step{
			{0, 1, 1, 1, 0, 60_000},
			{50_000, 1, 1, 0, 0, 60_000},
			{59_999, 1, -1, 0, 1, 50_001},
			{60_000, 1, 1, 0, 0, 60_000},
			{60_000, 1, -1, 0, 50_000, 60_000},
			{60_000, 2, -1, 0, 60_000, 60_000},
		}},
		{"sliding log: a client that keeps hammering stays out", Quota{Algorithm: "sliding_log", Events: 2, Window: 4 * second}, Uniform, []step{
			{0, 1, 1, 1, 0, 4000},
			{1000, 1, 1, 0, 0, 4000},
			{2000, 1, -1, 0, 3000, 4000},
			{3000, 1, -1, 0, 3000, 4000},
			{4000, 1, -1, 0, 3000, 4000},
			{7000, 1, 1, 0, 0, 4000},
		}},
		{"sliding window: the minute before counts by half", Quota{Algorithm: "sliding_window", Events: 10, Window: minute}, Binary, []step{
			{59_000, 10, 10, 0, 0, 61_000},
			{59_000, 1, -1, 0, 7000, 61_000}, // a tenth into the next window, one fits
			{66_000, 1, 1, 0, 0, 114_000},
			{90_000, 5, -1, 4, 6000, 90_000},
			{90_000, 4, 4, 0, 0, 90_000},
		}},
		{"leaky bucket: two leak every second", Quota{Algorithm: "leaky_bucket", Events: 2, Window: second, Burst: 4}, Binary, []step{
			{0, 4, 4, 0, 0, 2000},
			{999, 1, -1, 0, 1, 1001},
			{1000, 1, 1, 1, 0, 2000},
			{1500, 2, -1, 1, 500, 1500},
			{2500, 3, 3, 0, 0, 1500}, // the grid stays
			{4000, 0, 0, 4, 0, 0},
			{4700, 1, 1, 3, 0, 1000}, // and begins again when the bucket was empty
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := &history{limit: mustLimit(t, test.quota), mode: test.mode, state: new(State)}
			for i, s := range test.steps {
				d := h.take(start+s.at*ms, s.cost)
				charged := d.Charged
				if !d.Allowed {
					charged = -1
				}
				// Spans are given in ms and rounded up, except the one without end.
				got := step{s.at, s.cost, charged, d.Remaining, ceilDiv(d.RetryAfter, ms), ceilDiv(d.ResetAfter, ms)}
				if d.RetryAfter == Forever {
					got.retry = Forever / ms
				}
				if got != s {
					t.Errorf("step %d: got %+v, want %+v", i, got, s)
				}
			}
		})
	}
}
