// Package contentcoding decodes compressed content while it streams past. It never holds the content, and never changes it.
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
	// readWork is the work of a read of the decoder, in decoded bytes. With zstd, each field of a header and
	// the data of each block is a read. A block of one byte can move a window of 128 KiB, which takes about 6 µs.
	readWork = 320
)

// errWork reports content that takes too much work.
var errWork = errors.New("the content takes too much work to decode")

// CanDecode reports whether [NewWriter] knows a content coding, such as gzip.
func CanDecode(coding string) bool { return decoders[strings.ToLower(coding)] != nil }

// Writer decodes the content that is written to it. A goroutine decodes, so Write waits only while at least 32 KiB are
// to be decoded. Content that is malformed, or that takes too much work, is decoded up to that place, and the rest is
// dropped. A Writer must be closed.
type Writer struct {
	to    io.Writer
	ended chan struct{} // closed when the goroutine ends

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte // the content that the goroutine hasn't taken
	closed  bool   // no more content comes
	stopped bool   // nothing more is decoded; true after Close, too
	err     error  // nil or errWork; set when the goroutine ends
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
		for len(w.waiting) == maxWaiting/2 && !w.stopped {
			w.changed.Wait()
		}
		if w.stopped {
			break
		}
		n := min(len(rest), maxWaiting/2-len(w.waiting))
		w.waiting, rest = append(w.waiting, rest[:n]...), rest[n:]
		w.changed.Broadcast()
	}
	return len(p), nil
}

// Close ends the content, and waits until all of it is decoded. If the content takes too much work, its rest is
// not decoded, and Close returns an error.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closed = true
	w.changed.Broadcast()
	w.mu.Unlock()
	<-w.ended
	return w.err
}

// take waits for content, and exchanges it for an empty buffer. At the end of the content it returns no bytes.
func (w *Writer) take(empty []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) == 0 && !w.closed {
		w.changed.Wait()
	}
	taken := w.waiting
	w.waiting = empty
	w.changed.Broadcast()
	return taken
}

// decode decodes until the content ends, or can't be decoded.
func (w *Writer) decode(decode func(io.Writer, io.Reader) error) {
	c := &content{writer: w}
	defer close(w.ended)
	defer func() {
		// In a handler such a panic would end the request alone. Here it would end the process.
		_ = recover()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped, w.waiting, w.err = true, nil, c.err
		w.changed.Broadcast()
	}()
	_ = decode(c, c)
}

// content is the side of a [Writer] that its goroutine sees. The decoder reads the compressed content from it, and
// writes the decoded content to it.
type content struct {
	writer *Writer
	buffer []byte // from the Writer
	read   int    // how many bytes of the buffer have been read
	left   int64  // the work that is left, in decoded bytes, without freeExpansion
	err    error
}

// Read waits until p is full, or the content ends. So the number of reads doesn't depend on the pieces in which the
// content comes.
func (c *content) Read(p []byte) (n int, err error) {
	if err := c.work(readWork); err != nil {
		return 0, err
	}
	for n < len(p) && err == nil {
		if c.read == len(c.buffer) {
			c.buffer, c.read = c.writer.take(c.buffer[:0]), 0
		}
		if len(c.buffer) == 0 {
			err = io.EOF
		}
		copied := copy(p[n:], c.buffer[c.read:])
		n, c.read = n+copied, c.read+copied
	}
	c.left += int64(n) * maxExpansion
	return n, err
}

// Write passes decoded content on.
func (c *content) Write(p []byte) (int, error) {
	if err := c.work(len(p)); err != nil {
		return 0, err
	}
	return c.writer.to.Write(p)
}

// work counts work of the decoder. If this is too much, work returns errWork, now and in each further call.
func (c *content) work(n int) error {
	if c.left -= int64(n); c.left < -freeExpansion {
		c.err = errWork
	}
	return c.err
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
