package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// HistoryInterval is the time between two samples of the history.
	HistoryInterval = 5 * time.Second
	// fineSpan is how long all samples are kept, and historySpan how long one of each minute is.
	fineSpan, historySpan = 3 * time.Minute, time.Hour
)

// Sample has the counts of requests by zone at an instant, from the start of the process on.
type Sample struct {
	At    time.Time
	Zones map[string]Counts
}

// processHistory is the history of all configurations of this process, so a reload loses no sample.
var processHistory history

// history keeps the samples of the last hour. It is safe for concurrent use.
type history struct {
	mu      sync.Mutex
	samples []Sample // the oldest first
}

func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples = nil
}

// KeepHistory takes samples until ctx is done.
func KeepHistory(ctx context.Context) {
	ticker := time.NewTicker(HistoryInterval)
	defer ticker.Stop()
	for {
		processHistory.add(time.Now(), RequestCounts)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// History returns the samples of the last hour, the oldest first.
func History() []Sample {
	processHistory.mu.Lock()
	defer processHistory.mu.Unlock()
	return slices.Clone(processHistory.samples)
}

// add takes a sample. After a reload two configurations can take samples for a moment. Then a sample soon after another
// one is left out.
func (h *history) add(now time.Time, counts func() map[string]Counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.samples); n > 0 && now.Sub(h.samples[n-1].At) < HistoryInterval/2 {
		return
	}
	h.samples = append(h.samples, Sample{now, counts()})
	var before time.Time // of the sample before
	h.samples = slices.DeleteFunc(h.samples, func(s Sample) bool {
		age := now.Sub(s.At)
		if age > historySpan || age > fineSpan && s.At.Sub(before) < time.Minute-HistoryInterval/2 {
			return true
		}
		before = s.At
		return false
	})
}
