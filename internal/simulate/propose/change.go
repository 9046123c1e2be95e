package propose

import (
	"cmp"
	"slices"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// shownKeys is how many of the newly denied keys a change names.
const shownKeys = 10

// deniedKey is a key that a limit newly denies.
type deniedKey struct {
	key              uint32
	requests, denied int64
}

// change returns how a limit would change which keys are denied. from is the present limit; nil if there is none.
func (s *search) change(from, to *judged) *report.Change {
	c := &report.Change{}
	var newly []deniedKey
	var mu sync.Mutex
	s.eachBucket(1, func(bucket, _ int) {
		for key := range s.keysOf(bucket) {
			now, before := s.deniedBy(to, key), s.deniedBy(from, key)
			if (now == 0) == (before == 0) {
				continue
			}
			n := int64(0)
			s.stream.each(key, func(request) { n++ })
			mu.Lock()
			if now > 0 {
				newly = append(newly, deniedKey{key: key, requests: n, denied: now})
			} else {
				c.NoMoreDenied++
			}
			mu.Unlock()
		}
	})
	c.NewlyDenied = int64(len(newly))
	slices.SortFunc(newly, func(a, b deniedKey) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(a.key, b.key))
	})
	for _, k := range newly[:min(len(newly), shownKeys)] {
		key := s.stream.zone.keys.At(k.key)
		c.Keys = append(c.Keys, report.DeniedKey{
			Key: key.shown, Requests: k.requests, Denied: k.denied, UserAgent: key.userAgent.Value(),
		})
	}
	return c
}

// deniedBy returns how many requests of a key a limit denies. Without a limit it is none.
func (s *search) deniedBy(j *judged, key uint32) int64 {
	if j == nil || j.largestPeak >= s.peaks[key] {
		return 0
	}
	return s.deniedTo(key, newLimitReplay(j.limit, s.candidates.maxWait)).requests
}
