package redisstore

import (
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// clockReading is a reading of the clock of Redis, and the local time at which it arrived.
type clockReading struct {
	redis algorithms.Micros
	local time.Time
}

// observeClock records a reading of the clock of Redis, in the reply to a message sent at an instant. It calls
// [Hooks.ClockStepped] if the clock has stepped back by more than a second. The comparison is safe from network delays.
// Redis took this reading after the message was sent. So at least the time from the last reply to sent has passed.
func (s *Store) observeClock(now algorithms.Micros, sent time.Time) {
	s.mu.Lock()
	last := s.lastReading
	// A reply from before a step back can arrive after a reply from behind the step. The former is
	// then ahead by more than the time between them, and is not recorded.
	ahead := time.Duration(now-last.redis)*time.Microsecond - time.Since(last.local)
	if sent.After(last.local) || now > last.redis && ahead < time.Second {
		s.lastReading = clockReading{redis: now, local: time.Now()}
	}
	s.mu.Unlock()
	if last.redis == 0 || s.hooks.ClockStepped == nil {
		return
	}
	back := time.Duration(last.redis-now)*time.Microsecond + sent.Sub(last.local)
	if sent.After(last.local) && back > time.Second {
		s.hooks.ClockStepped(back)
	}
}

// instants returns about when Redis runs a batch, in the time of Redis, and the deadline. If Redis runs a message
// later, nobody uses the reply, so the message must not charge. An inexact reading makes both too early rather
// than too late. The first call asks Redis for its time. At a given instant there is no deadline: then it is 0.
func (s *Store) instants(ctx context.Context, b *batch) (expected, notAfter algorithms.Micros, err error) {
	if now := b.now(); now != 0 {
		return now, 0, nil
	}
	s.mu.Lock()
	known := s.lastReading
	s.mu.Unlock()
	if known.redis == 0 {
		sent := time.Now()
		t, err := b.conns.Time(ctx).Result()
		if err != nil {
			return 0, 0, err
		}
		s.observeClock(t.UnixMicro(), sent)
		known = clockReading{redis: t.UnixMicro(), local: time.Now()}
	}
	return known.redis + time.Since(known.local).Microseconds(), known.redis + b.deadline.Sub(known.local).Microseconds(), nil
}
