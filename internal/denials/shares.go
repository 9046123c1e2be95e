package denials

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// The log has a message when a zone begins to deny a share of its requests, and another one when the
// zone stops. So an operator without metrics notices both. The counters of the metrics are read at
// intervals, which costs the requests nothing.

const (
	// shareInterval is the time between two looks at the counters.
	shareInterval = 10 * time.Second
	// shareWindow is the time over which a share is measured. A zone that has begun to deny a share
	// stops after this time at the earliest, so it has at most two messages in this time.
	shareWindow = 60 * time.Second
	// minSharedDenials is how many requests a zone denies in this time before it begins.
	minSharedDenials = 10
	// A zone begins with a share of beginShare, and stops below endShare.
	beginShare, endShare = 0.10, 0.05
)

// processShares watches the zones of all configurations of this process. So a reload neither repeats
// nor loses a message.
var processShares = newShareWatch()

// Counts are the requests of a zone since the process began.
type Counts struct {
	Requests  int64
	Denied    int64
	WouldDeny int64 // denied in shadow mode, so they passed
}

// WatchShares starts to log the zones of a configuration that begin or stop to deny a share of their requests. The log
// ends with ctx. counts returns the counts of the zones by name.
func WatchShares(ctx context.Context, zones []string, counts func() map[string]Counts, logger *zap.Logger) {
	processShares.watch(ctx, zones, counts, logger)
}

// shareWatch finds the zones that begin or stop to deny a share of their requests. It is safe for
// concurrent use.
type shareWatch struct {
	mu       sync.Mutex
	joined   int              // how many configurations have joined
	zones    map[int][]string // the watched zones of each configuration in force
	shares   map[shareID]*deniedShare
	observed time.Time // the last time
}

// shareID identifies one share: the denied requests of a zone, or those that it would deny without
// shadow mode. A zone with the option enforce can have both.
type shareID struct {
	zone   string
	shadow bool
}

func newShareWatch() *shareWatch {
	return &shareWatch{zones: make(map[int][]string), shares: make(map[shareID]*deniedShare)}
}

// watch is [WatchShares].
func (w *shareWatch) watch(ctx context.Context, zones []string, counts func() map[string]Counts, logger *zap.Logger) {
	configuration := w.join(zones, counts, time.Now())
	go func() {
		defer w.leave(configuration)
		ticker := time.NewTicker(shareInterval)
		defer ticker.Stop()
		for {
			for _, c := range w.observe(counts, time.Now()) {
				c.log(logger)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// join begins to watch the zones of a configuration. Zones that are watched already go on.
func (w *shareWatch) join(zones []string, counts func() map[string]Counts, now time.Time) (configuration int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.joined++
	w.zones[w.joined] = zones
	current := counts()
	for _, zone := range zones {
		for _, id := range []shareID{{zone, false}, {zone, true}} {
			if w.shares[id] == nil {
				w.shares[id] = &deniedShare{samples: []shareSample{newShareSample(now, id, current[zone])}}
			}
		}
	}
	return w.joined
}

// leave forgets a configuration, and the zones that no other configuration has.
func (w *shareWatch) leave(configuration int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.zones, configuration)
	watched := make(map[string]bool)
	for _, zones := range w.zones {
		for _, zone := range zones {
			watched[zone] = true
		}
	}
	maps.DeleteFunc(w.shares, func(id shareID, _ *deniedShare) bool { return !watched[id.zone] })
}

// observe reads the counters, and returns the changes since the last call. After a reload two
// configurations can call observe for a moment. Then a call soon after another one does nothing.
func (w *shareWatch) observe(counts func() map[string]Counts, now time.Time) (changes []shareChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.observed) < shareInterval/2 {
		return nil
	}
	w.observed = now
	current := counts()
	for id, share := range w.shares {
		share.add(newShareSample(now, id, current[id.zone]), shareWindow-shareInterval/2)
		if c, ok := share.change(shareWindow); ok {
			c.shareID = id
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b shareChange) int { return cmp.Compare(a.zone, b.zone) })
	return changes
}

// shareSample holds the counts of a share at an instant, from the start of the process on.
type shareSample struct {
	at               time.Time
	requests, denied int64
}

// newShareSample returns the sample of a zone with these counts.
func newShareSample(now time.Time, id shareID, counts Counts) shareSample {
	if id.shadow {
		return shareSample{now, counts.Requests, counts.WouldDeny}
	}
	return shareSample{now, counts.Requests, counts.Denied}
}

// deniedShare is the share of its requests that a zone denies.
type deniedShare struct {
	samples []shareSample // of the last window, the oldest first; never empty
	// began is when the zone began to deny this share. It is zero if the zone doesn't.
	began time.Time
	// deniedBefore is how many requests the zone had denied before the window in which it began.
	deniedBefore int64
}

// add adds a sample, and drops the samples before the window. The first one remains, or the latest one
// that is older than the window.
func (s *deniedShare) add(sample shareSample, window time.Duration) {
	s.samples = append(s.samples, sample)
	for sample.at.Sub(s.samples[1].at) >= window {
		s.samples = slices.Delete(s.samples, 0, 1)
	}
}

// change reports whether the zone has begun or stopped to deny a share of its requests.
func (s *deniedShare) change(window time.Duration) (c shareChange, changed bool) {
	first, last := s.samples[0], s.samples[len(s.samples)-1]
	c.requests, c.denied = last.requests-first.requests, last.denied-first.denied
	switch {
	case s.began.IsZero() && c.denied >= minSharedDenials && c.share() >= beginShare:
		s.began, s.deniedBefore = last.at, first.denied
		return c, true
	case !s.began.IsZero() && last.at.Sub(s.began) >= window && c.share() < endShare:
		c.stopped, c.lasted, c.totalDenied = true, last.at.Sub(s.began), last.denied-s.deniedBefore
		s.began = time.Time{}
		return c, true
	}
	return c, false
}

// shareChange says that a zone begins or stops to deny a share of its requests.
type shareChange struct {
	shareID
	requests, denied int64 // of the last window
	stopped          bool
	lasted           time.Duration // if stopped: since it began
	totalDenied      int64         // if stopped: since the window in which it began
}

// share returns which part of the requests was denied. It is 0 if there were none.
func (c shareChange) share() float64 { return float64(c.denied) / float64(max(c.requests, 1)) }

// log logs the change.
func (c shareChange) log(logger *zap.Logger) {
	if c.stopped {
		c.logStop(logger)
	} else {
		c.logBegin(logger)
	}
}

func (c shareChange) logBegin(logger *zap.Logger) {
	message := logger.Check(zap.WarnLevel, "a zone denies a share of its requests: caddy rate-limit top names the keys")
	if c.shadow {
		message = logger.Check(zap.WarnLevel, "a zone in shadow mode would deny a share of its requests")
	}
	if message != nil {
		message.Write(zap.String("zone", c.zone), zap.Int64("denied", c.denied), zap.Int64("requests", c.requests),
			zap.Float64("share", roundShare(c.share())))
	}
}

func (c shareChange) logStop(logger *zap.Logger) {
	message := logger.Check(zap.WarnLevel, "a zone no longer denies a share of its requests")
	if c.shadow {
		message = logger.Check(zap.WarnLevel, "a zone in shadow mode would no longer deny a share of its requests")
	}
	if message != nil {
		message.Write(zap.String("zone", c.zone), zap.Int64("denied", c.denied), zap.Int64("requests", c.requests),
			zap.Float64("share", roundShare(c.share())), zap.Duration("lasted", c.lasted), zap.Int64("total_denied", c.totalDenied))
	}
}

func roundShare(share float64) float64 { return math.Round(share*1000) / 1000 }
