package telemetry

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A history has a sample for each interval of the last three minutes, also if two configurations take them.
func TestHistory(t *testing.T) {
	var h history
	now := time.Now()
	counted := int64(0)
	counts := func() map[string]Counts {
		counted++
		return map[string]Counts{"api": {OutcomeAllowed: counted, OutcomeDenied: 2 * counted}}
	}
	for i := range 100 {
		at := now.Add(time.Duration(i) * HistoryInterval)
		h.add(at, counts)
		h.add(at.Add(time.Second), counts)
	}
	end := now.Add(99 * HistoryInterval)
	samples := h.since(end.Add(-historySpan))
	if want := int(historySpan/HistoryInterval) + 1; len(samples) != want || len(h.samples) > want+1 || counted != 100 {
		t.Fatalf("%d samples of %d are recent, and %d were taken; want %d", len(samples), len(h.samples), counted, want)
	}
	for i, s := range samples {
		if n := int64(100 - len(samples) + 1 + i); s.Zones["api"] != (Counts{OutcomeAllowed: n, OutcomeDenied: 2 * n}) {
			t.Errorf("sample %d has %v, want %d", i, s.Zones["api"], n)
		}
	}
	if first := samples[0].At; !first.Equal(end.Add(-historySpan)) {
		t.Errorf("the first sample is from %v before the end", end.Sub(first))
	}
}

// A timer may fire a little early or late. No sample is left out because of that.
func TestHistoryOfInexactTimer(t *testing.T) {
	var h history
	random, at, n := rand.New(rand.NewPCG(3, 1)), time.Now(), 0
	for range 30 {
		h.add(at, func() map[string]Counts { n++; return nil })
		at = at.Add(HistoryInterval + time.Duration(random.Int64N(int64(HistoryInterval/5))) - HistoryInterval/10)
	}
	if n != 30 {
		t.Errorf("%d samples of 30 were taken", n)
	}
}
