package propose

import (
	"encoding/binary"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// request is a request as a limit sees it.
type request struct {
	at   algorithms.Micros
	end  algorithms.Micros // of the response, if the request is settled
	cost int64
	mode algorithms.Mode
	// settled reports whether the charge becomes trueCost when the response ends.
	settled  bool
	trueCost int64
}

// lateCharge returns how many events are charged when the response ends, beyond the cost.
func (e *request) lateCharge() int64 {
	if !e.settled {
		return 0
	}
	return max(e.trueCost-e.cost, 0)
}

// encodedRequests are the requests of one key, in the order of their instants. A log can have many millions of requests,
// so each takes only 4 to 30 bytes.
//
// The first number of an encoded request has its set, its mode and its flags. Then come the time since the
// request before, and the numbers for which it has flags.
type encodedRequests struct {
	bytes []byte
	last  algorithms.Micros // the instant of the last request
}

const (
	costFlag    = 1 << iota // the cost is not 1
	settledFlag             // has an end and a true cost

	modeShift = 2
	modeMask  = 3
	setShift  = 4
)

// add adds a request to a set.
func (s *encodedRequests) add(set int, e *request) {
	head := uint64(set)<<setShift | uint64(e.mode)<<modeShift
	if e.cost != 1 {
		head |= costFlag
	}
	if e.settled {
		head |= settledFlag
	}
	b := binary.AppendUvarint(s.bytes, head)
	b = binary.AppendUvarint(b, uint64(e.at-s.last))
	if head&costFlag != 0 {
		b = binary.AppendUvarint(b, uint64(e.cost))
	}
	if head&settledFlag != 0 {
		b = binary.AppendUvarint(b, uint64(e.end-e.at))
		b = binary.AppendUvarint(b, uint64(e.trueCost))
	}
	s.bytes, s.last = b, e.at
}

// each calls yield with every request of a set.
func (s *encodedRequests) each(set int, yield func(e request)) {
	rest, at := s.bytes, algorithms.Micros(0)
	next := func() uint64 {
		v, n := binary.Uvarint(rest)
		rest = rest[n:]
		return v
	}
	for len(rest) > 0 {
		head := next()
		at += int64(next())
		e := request{at: at, end: at, cost: 1, mode: algorithms.Mode(head >> modeShift & modeMask)}
		if head&costFlag != 0 {
			e.cost = int64(next())
		}
		if head&settledFlag != 0 {
			e.end += int64(next())
			e.settled, e.trueCost = true, int64(next())
		}
		if set == int(head>>setShift) {
			yield(e)
		}
	}
}

// stream is the requests of a zone in one of its sets.
type stream struct {
	zone *recordedZone
	set  int

	requests int64
	buckets  [bucketCount]int64 // the requests of each bucket of keys
	usual    algorithms.Mode    // the mode of the first request
	// limiting reports whether a request has a mode other than force.
	limiting bool
	// minCost and maxCost are the least cost above 0 and the largest cost, true costs included. They are 0
	// if no request costs anything.
	minCost, maxCost int64
}

// bucketCount is the number of buckets of keys, which goroutines share among them. The number of a key, modulo
// bucketCount, is that of its bucket.
const bucketCount = 64

// count counts a request.
func (s *stream) count(key uint32, e *request) {
	if s.requests == 0 {
		s.usual = e.mode
	}
	s.requests++
	s.buckets[key%bucketCount]++
	s.limiting = s.limiting || e.mode != algorithms.Force
	s.maxCost = max(s.maxCost, e.cost, e.cost+e.lateCharge())
	if e.cost > 0 && (s.minCost == 0 || e.cost < s.minCost) {
		s.minCost = e.cost
	}
}

// each calls yield with every request of a key, in the order of their instants.
func (s *stream) each(key uint32, yield func(e request)) {
	s.zone.keys.At(key).requests.each(s.set, yield)
}
