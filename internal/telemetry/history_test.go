package telemetry

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A history has a sample for each interval of the last three minutes, and before that one for each minute of the last
// hour, also if two configurations take them.
func TestHistory(t *testing.T) {
	var h history
	now := time.Now()
	counted := int64(0)
	counts := func() map[string]Counts {
		counted++
		return map[string]Counts{"api": {OutcomeAllowed: counted, OutcomeDenied: 2 * counted}}
	}
	for range 1000 {
		now = now.Add(HistoryInterval)
		h.add(now, counts)
		h.add(now.Add(time.Second), counts)
	}
	for i, s := range h.samples {
		age := now.Sub(s.At)
		if n := 1000 - int64(age/HistoryInterval); s.Zones["api"] != (Counts{OutcomeAllowed: n, OutcomeDenied: 2 * n}) {
			t.Errorf("the sample of %v ago has %v, want %d", age, s.Zones["api"], n)
		}
		if i == 0 {
			if age <= historySpan-time.Minute || age > historySpan {
				t.Errorf("the first sample is from %v ago", age)
			}
			continue
		}
		want, gap := HistoryInterval, s.At.Sub(h.samples[i-1].At)
		if age > fineSpan {
			want = time.Minute
		}
		if gap != want && (age != fineSpan || gap > time.Minute) {
			t.Errorf("the sample of %v ago is %v after the one before, want %v", age, gap, want)
		}
	}
	if age := now.Sub(h.samples[len(h.samples)-1].At); age != 0 || counted != 1000 {
		t.Errorf("the last sample is from %v ago, and %d were taken", age, counted)
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
