// Package contentcoding decodes compressed content while it streams past.
package contentcoding

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxWaiting is how many bytes of compressed content can wait to be decoded.
	maxWaiting = 64 << 10
	// maxWindow is the most memory that content compressed with zstd can ask for. RFC 9659 allows
	// HTTP no more.
	maxWindow = 8 << 20
	// maxExpansion and freeExpansion bound the work of content that is made to expand: each
	// compressed byte can become maxExpansion bytes, and freeExpansion more in total. Text rarely
	// becomes 30 times as large.
	maxExpansion  = 100
	freeExpansion = 1 << 20
)

// errExpansion reports content that expands to too many bytes.
var errExpansion = errors.New("the content expands too much")

// CanDecode reports whether [NewWriter] knows a content coding, such as gzip.
func CanDecode(coding string) bool { return decoders[strings.ToLower(coding)] != nil }

// Writer decodes the content that is written to it. A goroutine decodes, so Write only waits while
// more than 64 KiB are to be decoded. Content that is malformed, or that expands too much, is decoded
// up to that place, and the rest is dropped. A Writer must be closed.
type Writer struct {
	to    io.Writer
	ended chan struct{} // closed when the goroutine ends

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte // the content that is to be decoded
	taken   int64  // how many bytes of content have been decoded
	closed  bool   // no more content comes
	stopped bool   // nothing more is decoded; so it is after Close, too
}

// NewWriter returns a Writer that decodes content of this coding. It writes the decoded content from
// another goroutine, until Close returns.
func NewWriter(coding string, to io.Writer) *Writer {
	w := &Writer{to: to, ended: make(chan struct{})}
	w.changed.L = &w.mu
	go w.decode(decoders[strings.ToLower(coding)])
	return w
}

// Write takes compressed content. It returns no error: see [Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := p; len(rest) > 0; {
		for len(w.waiting) == maxWaiting && !w.stopped {
			w.changed.Wait()
		}
		if w.stopped {
			break
		}
		n := min(len(rest), maxWaiting-len(w.waiting))
		w.waiting, rest = append(w.waiting, rest[:n]...), rest[n:]
		w.changed.Broadcast()
	}
	return len(p), nil
}

// Close ends the content, and waits until all of it is decoded.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closed = true
	w.changed.Broadcast()
	w.mu.Unlock()
	<-w.ended
	return nil
}

// content is the side of a [Writer] from which its goroutine reads the compressed content.
type content struct{ *Writer }

// Read waits for compressed content.
func (c content) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) == 0 && !c.closed {
		c.changed.Wait()
	}
	if len(c.waiting) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.waiting)
	c.waiting = c.waiting[:copy(c.waiting, c.waiting[n:])]
	c.taken += int64(n)
	c.changed.Broadcast()
	return n, nil
}

// decode decodes until the content ends, or can't be decoded.
func (w *Writer) decode(decode func(io.Writer, io.Reader) error) {
	defer close(w.ended)
	defer func() {
		// In a handler such a panic would end the request alone. Here it would end the process.
		_ = recover()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped, w.waiting = true, nil
		w.changed.Broadcast()
	}()
	_ = decode(&bounded{writer: w}, content{w})
}

// bounded passes decoded content on, as long as it doesn't expand too much.
type bounded struct {
	writer  *Writer
	decoded int64
}

func (b *bounded) Write(p []byte) (int, error) {
	b.writer.mu.Lock()
	most := b.writer.taken*maxExpansion + freeExpansion
	b.writer.mu.Unlock()
	if b.decoded += int64(len(p)); b.decoded > most {
		return 0, errExpansion
	}
	return b.writer.to.Write(p)
}

// decoders decode content, by the name of its coding.
var decoders = map[string]func(to io.Writer, from io.Reader) error{
	"gzip": decodeGzip, "x-gzip": decodeGzip, "zstd": decodeZstd,
}

var (
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zstdReaders = sync.Pool{New: newZstdReader}
)

func decodeGzip(to io.Writer, from io.Reader) error {
	r := gzipReaders.Get().(*gzip.Reader)
	if err := r.Reset(from); err != nil {
		return err
	}
	_, err := r.WriteTo(to)
	if err == nil {
		gzipReaders.Put(r)
	}
	return err
}

// newZstdReader returns a decoder that starts no goroutines.
func newZstdReader() any {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		panic(fmt.Sprintf("contentcoding: %v", err)) // the options are constants
	}
	return r
}

func decodeZstd(to io.Writer, from io.Reader) error {
	r := zstdReaders.Get().(*zstd.Decoder)
	if err := r.Reset(from); err != nil {
		return err
	}
	_, err := r.WriteTo(to)
	if err == nil {
		_ = r.Reset(nil)
		zstdReaders.Put(r)
	}
	return err
}
