package propose

import (
	"encoding/binary"
	"errors"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// stream is the requests of many keys, in buckets by the number of the key. So each bucket can be put
// in order by keys in little memory, and buckets can be read by several goroutines.
type stream struct {
	spool   *spool
	withEnd bool // all requests have an end
	buckets [bucketCount]bucket

	requests int64
	usual    algorithms.Mode // the mode of the first request
	// limiting reports whether a request has a mode other than force.
	limiting bool
	// minCost and maxCost are the least cost above 0 and the largest cost, true costs included. They are 0
	// if no request costs anything.
	minCost, maxCost int64
}

const bucketCount = 64

// bucket is a part of a stream: encoded requests, in pieces with whole requests.
type bucket struct {
	pieces   []piece
	tail     []byte
	last     algorithms.Micros // the instant of the last request
	requests int64
}

func newStream(s *spool) *stream {
	s.tails += bucketCount
	return &stream{spool: s}
}

// newStreamWithEnds returns a stream that keeps the ends of all requests.
func newStreamWithEnds(s *spool) *stream {
	withEnds := newStream(s)
	withEnds.withEnd = true
	return withEnds
}

// A plain request has cost 1 and the usual mode, and is not settled. The first number of an encoded
// request is the number of its key in the bucket, times 2, and 1 more unless it is plain. Then come the
// time since the request before and, in a stream with ends, the duration. A request that is not plain
// also has its cost and its mode. A settled request has settledFlag in its mode, then its duration and
// its true cost.
const settledFlag = 0x80

// add adds a request. Requests of one key come in the order of their instants.
func (s *stream) add(key uint32, e *request) {
	if s.requests == 0 {
		s.usual = e.mode
	}
	s.requests++
	s.limiting = s.limiting || e.mode != algorithms.Force
	s.maxCost = max(s.maxCost, e.cost, e.cost+e.lateCharge())
	if e.cost > 0 && (s.minCost == 0 || e.cost < s.minCost) {
		s.minCost = e.cost
	}
	b := &s.buckets[key%bucketCount]
	b.requests++
	plain := e.cost == 1 && e.mode == s.usual && !e.settled
	head := uint64(key/bucketCount) << 1
	if !plain {
		head |= 1
	}
	t := binary.AppendUvarint(b.tail, head)
	t = binary.AppendVarint(t, e.at-b.last)
	b.last = e.at
	if s.withEnd {
		t = binary.AppendUvarint(t, uint64(e.end-e.at))
	}
	if !plain {
		t = binary.AppendUvarint(t, uint64(e.cost))
		if e.settled {
			t = append(t, byte(e.mode)|settledFlag)
			t = binary.AppendUvarint(t, uint64(e.end-e.at))
			t = binary.AppendUvarint(t, uint64(e.trueCost))
		} else {
			t = append(t, byte(e.mode))
		}
	}
	const longest = 6 * binary.MaxVarintLen64
	if b.tail = t; len(t)+longest <= s.spool.pieceSize() {
		return
	}
	p, kept := s.spool.keep(t)
	if b.pieces = append(b.pieces, p); kept {
		b.tail = make([]byte, 0, s.spool.pieceSize())
	} else {
		b.tail = t[:0]
	}
}

var errChanged = errors.New("the temporary file with the requests for the proposals was changed")

// each decodes the requests of a bucket. The number of a key is that in the bucket. e is valid during
// the call.
func (s *stream) each(number int, buffer []byte, yield func(key uint32, e *request)) error {
	b := &s.buckets[number]
	d := decoder{stream: s}
	for _, p := range b.pieces {
		bytes, err := s.spool.read(p, buffer)
		if err != nil {
			return err
		}
		if err := d.decode(bytes, yield); err != nil {
			return err
		}
	}
	return d.decode(b.tail, yield)
}

// decoder decodes the pieces of a bucket.
type decoder struct {
	stream *stream
	at     algorithms.Micros // of the last request
	last   request           // one for all requests, which is not allocated for each
	rest   []byte
	broken bool
}

func (d *decoder) decode(bytes []byte, yield func(key uint32, e *request)) error {
	d.rest = bytes
	for len(d.rest) > 0 {
		head := d.uvarint()
		delta, n := binary.Varint(d.rest)
		if n <= 0 {
			return errChanged
		}
		d.rest = d.rest[n:]
		d.at += delta
		e := &d.last
		*e = request{at: d.at, end: d.at, cost: 1, mode: d.stream.usual}
		if d.stream.withEnd {
			e.end += int64(d.uvarint())
		}
		if head&1 == 1 {
			d.readRest(e)
		}
		if d.broken {
			return errChanged
		}
		yield(uint32(head>>1), e)
	}
	return nil
}

// readRest reads the rest of a request that is not plain.
func (d *decoder) readRest(e *request) {
	e.cost = int64(d.uvarint())
	if len(d.rest) == 0 {
		d.broken = true
		return
	}
	flags := d.rest[0]
	d.rest = d.rest[1:]
	e.mode, e.settled = algorithms.Mode(flags&^settledFlag), flags&settledFlag != 0
	if e.settled {
		e.end = e.at + int64(d.uvarint())
		e.trueCost = int64(d.uvarint())
	}
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.broken = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// keyRequests is the requests of one key, in order. Very many requests are decoded for each use, instead
// of being kept in memory.
type keyRequests struct {
	key      uint32 // in the stream
	requests []request
	stream   *stream // instead of requests
	buffer   []byte
}

// maxGrouped is how many decoded requests a worker keeps in memory.
const maxGrouped = 1 << 17

// each calls yield with every request, in the order of their instants.
func (k *keyRequests) each(yield func(e *request)) error {
	if k.stream == nil {
		for i := range k.requests {
			yield(&k.requests[i])
		}
		return nil
	}
	last := algorithms.Micros(0)
	return k.stream.each(int(k.key%bucketCount), k.buffer, func(key uint32, e *request) {
		if key == k.key/bucketCount {
			last = e.notBefore(last)
			yield(e)
		}
	})
}

// notBefore moves a request behind the one before it, and returns its instant.
func (e *request) notBefore(last algorithms.Micros) algorithms.Micros {
	e.at = max(e.at, last)
	e.end = max(e.end, e.at)
	return e.at
}

// grouper puts buckets in order by keys. It keeps its memory from bucket to bucket.
type grouper struct {
	buffer   []byte
	counts   []int64 // requests, by the number of the key in the bucket
	places   []int64 // where the next request of a key goes
	requests []request
}

func newGrouper() *grouper { return &grouper{buffer: make([]byte, maxPiece+256)} }

// eachKey calls yield with every key that has requests in a bucket. The requests are valid during the
// call.
func (g *grouper) eachKey(s *stream, bucket int, yield func(k *keyRequests) error) error {
	clear(g.counts)
	err := s.each(bucket, g.buffer, func(key uint32, _ *request) {
		for int(key) >= len(g.counts) {
			g.counts = append(g.counts, 0)
		}
		g.counts[key]++
	})
	for low := 0; low < len(g.counts) && err == nil; {
		k := keyRequests{key: uint32(low*bucketCount + bucket), stream: s, buffer: g.buffer}
		if g.counts[low] > maxGrouped {
			err = yield(&k)
			low++
			continue
		}
		high, n := low, int64(0)
		for high < len(g.counts) && n+g.counts[high] <= maxGrouped {
			n += g.counts[high]
			high++
		}
		err = g.eachOf(s, bucket, low, high, yield)
		low = high
	}
	return err
}

// eachOf calls yield with the keys of a bucket from low up to high.
func (g *grouper) eachOf(s *stream, bucket, low, high int, yield func(k *keyRequests) error) error {
	g.places = g.places[:0]
	total := int64(0)
	for _, n := range g.counts[low:high] {
		g.places = append(g.places, total)
		total += n
	}
	if int64(cap(g.requests)) < total {
		g.requests = make([]request, total)
	}
	g.requests = g.requests[:total]
	err := s.each(bucket, g.buffer, func(key uint32, e *request) {
		if at := int(key) - low; at >= 0 && at < high-low {
			g.requests[g.places[at]] = *e
			g.places[at]++
		}
	})
	rest := g.requests
	for at, n := range g.counts[low:high] {
		if err != nil || n == 0 {
			continue
		}
		k := keyRequests{key: uint32((low+at)*bucketCount + bucket), requests: rest[:n]}
		rest = rest[n:]
		last := algorithms.Micros(0)
		for i := range k.requests {
			last = k.requests[i].notBefore(last)
		}
		err = yield(&k)
	}
	return err
}
