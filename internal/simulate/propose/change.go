package propose

import (
	"cmp"
	"context"
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
func (s *search) change(ctx context.Context, from, to *judged) (*report.Change, error) {
	c := &report.Change{}
	var newly []deniedKey
	var mu sync.Mutex
	err := s.eachBucket(ctx, 1, func(work *worker, bucket, _ int) error {
		return work.grouper.eachKey(s.stream, bucket, func(k *keyRequests) error {
			now, err := s.deniedBy(to, k, work)
			if err != nil {
				return err
			}
			before, err := s.deniedBy(from, k, work)
			if err != nil || (now == 0) == (before == 0) {
				return err
			}
			n := int64(0)
			err = k.each(func(*request) { n++ })
			mu.Lock()
			defer mu.Unlock()
			if now > 0 {
				newly = append(newly, deniedKey{key: k.key, requests: n, denied: now})
			} else {
				c.NoMoreDenied++
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	c.NewlyDenied = int64(len(newly))
	slices.SortFunc(newly, func(a, b deniedKey) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(a.key, b.key))
	})
	for _, k := range newly[:min(len(newly), shownKeys)] {
		shown, userAgent, err := s.name(k.key)
		if err != nil {
			return nil, err
		}
		c.Keys = append(c.Keys, report.DeniedKey{Key: shown, Requests: k.requests, Denied: k.denied, UserAgent: userAgent})
	}
	return c, nil
}

// deniedBy returns how many requests of a key a limit denies. Without a limit it is none.
func (s *search) deniedBy(j *judged, k *keyRequests, work *worker) (int64, error) {
	if j == nil || j.admits >= s.peaks[k.key] {
		return 0, nil
	}
	denied, err := deniedTo(k, work.replay(j.rung))
	return denied.requests, err
}
