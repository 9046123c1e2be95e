package redisstore

import "time"

// Pretend makes the store believe that Redis' clock showed this a moment ago.
func Pretend(s *Store, shown time.Time) {
	s.clock = clock{redis: shown.UnixMicro(), seen: time.Now()}
}
