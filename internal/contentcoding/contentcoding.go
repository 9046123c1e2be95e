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

// Writer decodes the content that is written to it. A goroutine decodes, and Write waits for it. Content that is
// malformed, or that takes too much work, is decoded up to that place, and the rest is dropped. A Writer must be closed.
type Writer struct {
	pipe    *io.PipeWriter
	content content
	ended   chan struct{} // closed when the goroutine ends
}

// NewWriter returns a Writer that decodes content of this coding. It writes the decoded content from
// another goroutine, until Close returns.
func NewWriter(coding string, to io.Writer) *Writer {
	from, pipe := io.Pipe()
	w := &Writer{pipe: pipe, content: content{from: from, to: to}, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		defer from.Close() // so that Write drops the rest
		// In a handler such a panic would end the request alone. Here it would end the process.
		defer func() { _ = recover() }()
		_ = decoders[strings.ToLower(coding)](&w.content, &w.content)
	}()
	return w
}

// Write takes compressed content. It returns no error: see [Writer].
func (w *Writer) Write(p []byte) (int, error) {
	_, _ = w.pipe.Write(p)
	return len(p), nil
}

// Close ends the content, and waits until all of it is decoded. If the content takes too much work, its rest is
// not decoded, and Close returns an error.
func (w *Writer) Close() error {
	_ = w.pipe.Close()
	<-w.ended
	return w.content.err
}

// content is the side of a [Writer] that its goroutine sees. The decoder reads the compressed content from it, and
// writes the decoded content to it.
type content struct {
	from io.Reader
	to   io.Writer
	left int64 // the work that is left, in decoded bytes, without freeExpansion
	err  error // nil or errWork
}

// Read waits until p is full, or the content ends. So the number of reads doesn't depend on the pieces in which the
// content comes.
func (c *content) Read(p []byte) (n int, err error) {
	if err := c.work(readWork); err != nil {
		return 0, err
	}
	if n, err = io.ReadFull(c.from, p); err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	c.left += int64(n) * maxExpansion
	return n, err
}

// Write passes decoded content on.
func (c *content) Write(p []byte) (int, error) {
	if err := c.work(len(p)); err != nil {
		return 0, err
	}
	return c.to.Write(p)
}

// work counts work of the decoder. If this is too much, work returns errWork, now and in each later call.
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
