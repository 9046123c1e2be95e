package redisstore

import (
	"context"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// clock remembers one reading of the time of Redis.
type clock struct {
	redis algorithms.Micros
	seen  time.Time
}

// observeClock tells when Redis' time has stepped back by more than a second. Between
// the reply seen last and the reading now at least the time from that reply to
// this one's sending has passed, however long either was on its way.
func (s *Store) observeClock(now algorithms.Micros, sent time.Time) {
	s.mu.Lock()
	last := s.clock
	// A reply from before a step back can come after one from behind it. Then it is ahead by more
	// than the time between them, and not the latest reading.
	ahead := time.Duration(now-last.redis)*time.Microsecond - time.Since(last.seen)
	if sent.After(last.seen) || now > last.redis && ahead < time.Second {
		s.clock = clock{redis: now, seen: time.Now()}
	}
	s.mu.Unlock()
	if last.redis == 0 || s.stepped == nil {
		return
	}
	back := time.Duration(last.redis-now)*time.Microsecond + sent.Sub(last.seen)
	if sent.After(last.seen) && back > time.Second {
		s.stepped(back)
	}
}

// notAfter is a deadline in the time of Redis, rather too early than too late: a
// call that Redis comes to later is of no use to anybody, and must not charge. The
// first call asks Redis for its time. With an invented now there is none.
func (s *Store) notAfter(ctx context.Context, conns *connections, now algorithms.Micros, deadline time.Time) (algorithms.Micros, error) {
	if now != 0 {
		return 0, nil
	}
	s.mu.Lock()
	known := s.clock
	s.mu.Unlock()
	if known.redis == 0 {
		sent := time.Now()
		t, err := conns.Time(ctx).Result()
		if err != nil {
			return 0, err
		}
		s.observeClock(t.UnixMicro(), sent)
		known = clock{redis: t.UnixMicro(), seen: time.Now()}
	}
	return known.redis + deadline.Sub(known.seen).Microseconds(), nil
}
