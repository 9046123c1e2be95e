// Package readahead reads a request's body before the next handler does. The next handler then reads
// the same body from its first byte. It never holds more bodies than its memory has space for.
package readahead

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// The reasons why [Body.ReadAhead] returns no body, apart from errors of the source.
var (
	ErrTooLarge = errors.New("the body is larger than the limit")
	ErrTimeout  = errors.New("the body was not complete in time")
	ErrMemory   = errors.New("the memory for bodies is full")
)

const (
	// firstBuffer is the capacity of a body's first buffer, if the body isn't known to be shorter. So
	// most bodies take one read, and 10,000 slow ones fit into the memory. The capacity doubles whenever
	// the buffer is full. So a slow body takes at most this, or twice the bytes that have arrived.
	firstBuffer = 4 << 10
	// interruptWait bounds the wait for a source that doesn't heed its deadline.
	interruptWait = time.Second
)

// Body is a request's body that can be read ahead. ReadAhead returns the whole body if it is not
// larger than a limit. Read returns all bytes as they arrive, from the first one on, and then the error
// of the source. It doesn't matter how much was read ahead.
//
// A goroutine reads the source, because a read can't be abandoned. Over HTTP/1.1 a deadline ends the
// request's context, and over HTTP/2 a deadline ends the body. If a body is not complete in time, Read
// continues where the goroutine is.
//
// ReadAhead and Interrupt must not be called after Read. Read, Close, Release and ReleaseUnread are safe
// for concurrent use.
type Body struct {
	source io.ReadCloser
	length int64 // Content-Length; -1 if unknown
	memory *Memory

	mu      sync.Mutex
	start   time.Time // of the first ReadAhead
	buffer  []byte    // what was read ahead; buffer[next:] is still to be read
	next    int
	probe   [1]byte       // one byte more than the limit shows that a body is too large
	probed  int           // how many bytes of the probe were read, after those of buffer
	err     error         // of the source, after these bytes
	filling chan struct{} // closed when the goroutine has ended; nil if there is none
	enough  bool          // the goroutine must end after its current read
	fillErr error         // why the goroutine has ended early
	failure any           // the value with which the source has panicked

	begun       bool // Read was called
	lost        bool // bytes that were not read are released
	closed      bool
	interrupted bool // Interrupt has set a deadline

	trailer, earlyTrailer http.Header // see [Body.DetachTrailer]
}

// New returns a body with this source. length is its Content-Length, or -1 if it is unknown.
func New(source io.ReadCloser, length int64, memory *Memory) *Body {
	return &Body{source: source, length: length, memory: memory}
}

// ReadAhead returns the body if it ends within limit bytes. It waits until the timeout, which counts
// from the first call. The body must not be changed, and not be used after the first Read.
func (b *Body) ReadAhead(limit int, timeout time.Duration) ([]byte, error) {
	if b.length > int64(limit) {
		return nil, ErrTooLarge
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.start.IsZero() {
		b.start = time.Now()
	}
	var timer *time.Timer
	b.fillErr = nil
	for {
		switch {
		case b.filling != nil: // wait for the goroutine
		case b.failure != nil:
			panic(b.failure)
		case b.begun || b.lost || b.closed:
			return nil, http.ErrBodyReadAfterClose
		case len(b.buffer)+b.probed > limit:
			return nil, ErrTooLarge
		case b.err == io.EOF:
			return b.buffer, nil
		case b.err != nil:
			return nil, b.err
		case b.fillErr != nil:
			return nil, b.fillErr
		default:
			b.filling, b.enough = make(chan struct{}), false
			go b.fill(limit)
		}
		if timer == nil {
			timer = time.NewTimer(timeout - time.Since(b.start))
			defer timer.Stop()
		}
		filling := b.filling
		b.mu.Unlock()
		timedOut := false
		select {
		case <-filling:
		case <-timer.C:
			timedOut = true
		}
		b.mu.Lock()
		if timedOut && b.filling != nil {
			b.enough = true
			return nil, ErrTimeout
		}
	}
}

// fill reads the source until its end, or until there is one byte more than the limit.
func (b *Body) fill(limit int) {
	var failure any
	func() {
		defer func() { failure = recover() }()
		for b.fillOnce(limit) {
		}
	}()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = failure
	close(b.filling)
	b.filling = nil
	if b.lost {
		b.freeLocked()
	}
}

// fillOnce reads the source once, and returns whether there is more to read.
func (b *Body) fillOnce(limit int) bool {
	b.mu.Lock()
	room, err := b.roomLocked(limit)
	b.fillErr = err
	b.mu.Unlock()
	if err != nil {
		return false
	}
	n, err := b.source.Read(room) // into the part of the buffer that Read doesn't use
	b.mu.Lock()
	defer b.mu.Unlock()
	if &room[0] == &b.probe[0] {
		b.probed = n
	} else {
		b.buffer = b.buffer[:len(b.buffer)+n]
	}
	b.err = err
	return err == nil && !b.enough && len(b.buffer)+b.probed <= limit
}

// roomLocked returns where the next bytes go: into the buffer, or into the probe if the buffer holds
// as many bytes as the limit allows.
func (b *Body) roomLocked(limit int) ([]byte, error) {
	most := limit
	if b.length >= int64(len(b.buffer)+b.probed) {
		most = min(most, int(b.length))
	}
	full := len(b.buffer) == cap(b.buffer)
	if full && (b.probed > 0 || len(b.buffer) < most) {
		if err := b.growLocked(most); err != nil {
			return nil, err
		}
	}
	b.buffer = append(b.buffer, b.probe[:b.probed]...) // of a lower limit
	b.probed = 0
	if len(b.buffer) == cap(b.buffer) {
		return b.probe[:], nil
	}
	return b.buffer[len(b.buffer):cap(b.buffer)], nil
}

// growLocked doubles the capacity of the buffer, up to most bytes.
func (b *Body) growLocked(most int) error {
	have := len(b.buffer)
	capacity := max(min(max(firstBuffer, 2*have), most), have+1)
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

// Interrupt ends a read of the source that is still under way. The deadline must be that of the
// source. Afterwards Read returns an error where the source was interrupted.
func (b *Body) Interrupt(setReadDeadline func(time.Time) error) {
	b.mu.Lock()
	filling := b.filling
	b.enough, b.interrupted = true, filling != nil
	b.mu.Unlock()
	if filling == nil || setReadDeadline(time.Unix(1, 0)) != nil {
		return // without deadlines, the read ends when the server closes the body
	}
	timer := time.NewTimer(interruptWait)
	defer timer.Stop()
	select {
	case <-filling:
	case <-timer.C:
	}
}

// DetachTrailer returns a copy of a request's trailer for the next handler. A server writes the
// trailer when it reads the end of the body. If the body was not complete in time, that can be
// while the next handler reads the trailer. The copy has the fields when Read has returned the end
// of the body.
func (b *Body) DetachTrailer(trailer http.Header) http.Header {
	if trailer == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earlyTrailer, b.trailer = trailer, make(http.Header, len(trailer))
	for name := range trailer { // the announced names; a server changes only the values
		b.trailer[name] = nil
	}
	return b.trailer
}

// Read implements [io.Reader].
func (b *Body) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if n, err = b.readBuffered(p); n == 0 && err == nil {
		n, err = b.source.Read(p)
	}
	if err == io.EOF && b.trailer != nil {
		maps.Copy(b.trailer, b.earlyTrailer)
	}
	return n, err
}

// readBuffered returns bytes that were read ahead. With the last of them it returns the error of the
// source. It returns nothing if all bytes are read, and the source has more.
func (b *Body) readBuffered(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun = true
	for {
		if b.closed || b.lost {
			return 0, http.ErrBodyReadAfterClose
		}
		n = copy(p, b.unreadLocked())
		b.next += n
		if n > 0 && (b.filling != nil || len(b.unreadLocked()) > 0) {
			return n, nil
		}
		if b.filling == nil {
			break
		}
		filling := b.filling
		b.mu.Unlock()
		<-filling
		b.mu.Lock()
	}
	if b.failure != nil {
		panic(b.failure)
	}
	b.freeLocked()
	return n, b.err
}

// unreadLocked returns bytes that were read ahead, and not yet read.
func (b *Body) unreadLocked() []byte {
	if b.next < len(b.buffer) {
		return b.buffer[b.next:]
	}
	return b.probe[min(b.next-len(b.buffer), b.probed):b.probed]
}

// Close implements [io.Closer].
func (b *Body) Close() error {
	b.mu.Lock()
	b.closed = true
	b.releaseLocked()
	busy := b.filling != nil
	interrupted := b.interrupted
	b.mu.Unlock()
	if busy || interrupted {
		// The server closes the source when the request ends. It takes a closed source for one that was read
		// to its end, so it would read the rest of the body as a request.
		return nil
	}
	return b.source.Close()
}

// Release gives the memory back. If not all that was read ahead has been read, Read returns an error
// from now on.
func (b *Body) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseLocked()
}

// ReleaseUnread gives the memory back if nothing was read.
func (b *Body) ReleaseUnread() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.begun {
		b.releaseLocked()
	}
}

func (b *Body) releaseLocked() {
	b.lost = b.lost || b.filling != nil || len(b.unreadLocked()) > 0
	if b.filling == nil { // otherwise the goroutine still reads into the buffer, and frees it
		b.freeLocked()
	}
}

func (b *Body) freeLocked() {
	b.memory.GiveBack(cap(b.buffer))
	b.buffer, b.probed, b.next = nil, 0, 0
}
