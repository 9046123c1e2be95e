package redisstore

import "time"

// Batches share the way to Redis. With more of them in flight each has fewer calls, so a near Redis needs more time
// for all calls together. With fewer of them calls wait longer for a far Redis. So the number in flight follows from
// the distance of Redis: how long a batch takes there and back.
//
// The time of most batches says little about the distance, because Redis works on them one after the other. A busy
// Redis would look far away, so more batches would be sent, and Redis would be busier. So the distance is the
// least time of late. It becomes greater only by a probe: a batch with one take that is sent
// while nothing else is in flight that has not stalled.
//
// A connection can break without a sign. So a batch that gets no reply for some round trips has stalled: it doesn't
// count against this bound any more. All batches in flight count against maxInFlight until their end.

const (
	// maxInFlight is how many batches may be in flight to a Redis that is far away.
	maxInFlight = 32
	// maxStall is the time after which a batch has stalled, or less if the timeout is short. Redis works on a message
	// for less than half of it, and only a Redis at less than a third of it has a bound below maxInFlight. So the
	// messages that a slow Redis gets too early are few.
	maxStall = 25 * time.Millisecond
	// maxUnspaced is how many batches may be in flight without time between them.
	maxUnspaced = 4
	// sendInterval is the least time between two batches while maxUnspaced or more are in flight.
	sendInterval = 250 * time.Microsecond
	// probeInterval is the time from one probe to the next. Redis can move away meanwhile, by a failover.
	probeInterval = 2 * time.Second
)

// distance holds how far away Redis is, as a queue knows it. The zero value knows nothing.
type distance struct {
	known  time.Duration // there and back; 0: not known
	probed time.Time     // when the last probe was sent, or the distance became known
}

// bound returns how many batches may be in flight, if the maximum is most. While the distance isn't known, that is
// the maximum.
func (d *distance) bound(most int) int {
	if d.known == 0 {
		return most
	}
	return min(1+int(d.known/sendInterval), most)
}

// needsProbe reports whether the next message must be a probe. The bound for a Redis that is far away can't become
// greater, so no probe delays its messages.
func (d *distance) needsProbe(most int) bool {
	return d.bound(most) < most && time.Since(d.probed) >= probeInterval
}

// observeDistance records how long a message took.
func (s *Store) observeDistance(took time.Duration, isProbe bool) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	d := &s.queue.distance
	if d.known == 0 {
		d.probed = time.Now()
	}
	if isProbe || d.known == 0 || took < d.known {
		d.known = max(took, 1)
	}
}
