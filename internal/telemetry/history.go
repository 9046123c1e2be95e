package telemetry

import (
	"context"
	"sync"
	"time"
)

const (
	// HistoryInterval is the time between two samples of the history.
	HistoryInterval = 5 * time.Second
	// historySpan is how far the history goes back.
	historySpan = 3 * time.Minute
)

// Sample has the counts of requests by zone at an instant, from the start of the process on.
type Sample struct {
	At    time.Time
	Zones map[string]Counts
}

// processHistory is the history of all configurations of this process, so a reload loses no sample.
var processHistory history

// history keeps the samples of the last minutes. It is safe for concurrent use.
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

// History returns the samples of the last three minutes, the oldest first.
func History() []Sample { return processHistory.since(time.Now().Add(-historySpan)) }

// add takes a sample. After a reload two configurations can take samples for a moment. Then a sample soon after another
// one is left out.
func (h *history) add(now time.Time, counts func() map[string]Counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.samples); n > 0 && now.Sub(h.samples[n-1].At) < HistoryInterval/2 {
		return
	}
	h.samples = append(h.samples, Sample{now, counts()})
	if oldest := now.Add(-historySpan - HistoryInterval); h.samples[0].At.Before(oldest) {
		h.samples = h.samples[1:]
	}
}

// since returns the samples from an instant on.
func (h *history) since(from time.Time) (recent []Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.samples {
		if !s.At.Before(from) {
			recent = append(recent, s)
		}
	}
	return recent
}
