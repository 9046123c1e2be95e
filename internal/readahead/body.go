// Package readahead reads a request's body before the next handler does. The next handler then reads
// the same body from its first byte. It never holds more bodies than its memory has space for.
package readahead

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// The reasons why [Body.ReadAhead] returns no body, apart from errors of the source.
var (
	ErrTooLarge = errors.New("the body is larger than the limit")
	ErrMemory   = errors.New("the memory for bodies is full")
)

// firstBuffer is the capacity of a body's first buffer, if the body isn't known to be shorter. So
// most bodies take one read, and 10,000 slow ones fit into the memory. The capacity doubles whenever
// the buffer is full. So a slow body takes at most this, or twice the bytes that have arrived.
const firstBuffer = 4 << 10

// Body is a request's body that can be read ahead. ReadAhead returns the whole body if it is not
// larger than a limit. Read returns all bytes from the first one on, and then the error of the source. It
// doesn't matter how much was read ahead.
//
// ReadAhead must not be called after Read. Read, Close, Release and ReleaseUnread are safe for concurrent use.
type Body struct {
	source io.ReadCloser
	length int64 // Content-Length; -1 if unknown
	memory *Memory

	mu     sync.Mutex
	buffer []byte // what was read ahead; buffer[next:] is still to be read
	next   int
	err    error // of the source, after these bytes
	begun  bool  // Read was called
	lost   bool  // bytes that were not read are released
}

// New returns a body with this source. length is its Content-Length, or -1 if it is unknown.
func New(source io.ReadCloser, length int64, memory *Memory) *Body {
	return &Body{source: source, length: length, memory: memory}
}

// ReadAhead returns the body if it ends within limit bytes. It waits until the body ends, or until there is one byte
// more. The body must not be changed, and not be used after the first Read.
func (b *Body) ReadAhead(limit int) ([]byte, error) {
	if b.length > int64(limit) {
		return nil, ErrTooLarge
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.begun || b.lost {
		return nil, http.ErrBodyReadAfterClose
	}
	for b.err == nil && len(b.buffer) <= limit {
		if err := b.growLocked(limit); err != nil {
			return nil, err
		}
		n, err := b.source.Read(b.buffer[len(b.buffer):cap(b.buffer)])
		b.buffer, b.err = b.buffer[:len(b.buffer)+n], err
	}
	switch {
	case len(b.buffer) > limit:
		return nil, ErrTooLarge
	case b.err != io.EOF:
		return nil, b.err
	}
	return b.buffer, nil
}

// growLocked doubles the capacity of the buffer if it is full. One byte more than the body may have shows that it
// is too large, or that it has ended.
func (b *Body) growLocked(limit int) error {
	have := len(b.buffer)
	if have < cap(b.buffer) {
		return nil
	}
	most := limit
	if b.length >= int64(have) {
		most = int(b.length)
	}
	capacity := max(min(max(firstBuffer, 2*have), most+1), have+1)
	if !b.memory.Take(capacity) {
		return ErrMemory
	}
	larger := make([]byte, have, capacity)
	copy(larger, b.buffer)
	b.memory.GiveBack(cap(b.buffer))
	b.buffer = larger
	return nil
}

// Move makes the body take its memory from another Memory, for the bytes read ahead and for later ones. If the
// other Memory has no room, Move changes nothing and returns false.
func (b *Body) Move(to *Memory) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.memory == to {
		return true
	}
	if !to.Take(cap(b.buffer)) {
		return false
	}
	b.memory.GiveBack(cap(b.buffer))
	b.memory = to
	return true
}

// Ended reports whether the source has been read to its end.
func (b *Body) Ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == io.EOF
}

// Read implements [io.Reader]. It returns the error of the source with the last byte that was read ahead.
func (b *Body) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	b.begun = true
	n, err = copy(p, b.buffer[b.next:]), b.err
	b.next += n
	switch {
	case b.lost:
		err = http.ErrBodyReadAfterClose
	case b.next < len(b.buffer):
		err = nil
	default:
		b.freeLocked()
	}
	b.mu.Unlock()
	if n > 0 || err != nil || len(p) == 0 {
		return n, err
	}
	return b.source.Read(p)
}

// Close implements [io.Closer].
func (b *Body) Close() error {
	b.mu.Lock()
	b.freeLocked()
	b.lost = true
	b.mu.Unlock()
	return b.source.Close()
}

// Release gives the memory back. If not all that was read ahead has been read, Read returns an error
// from now on.
func (b *Body) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freeLocked()
}

// ReleaseUnread gives the memory back if nothing was read.
func (b *Body) ReleaseUnread() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.begun {
		b.freeLocked()
	}
}

func (b *Body) freeLocked() {
	b.lost = b.lost || b.next < len(b.buffer)
	b.memory.GiveBack(cap(b.buffer))
	b.buffer, b.next = nil, 0
}
