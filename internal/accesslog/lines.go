package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxLine is the longest line without its line ending. Caddy's header fields have at most 1 MiB by default.
const maxLine = 1 << 20

// errTooLong reports a line that is not read.
var errTooLong = errors.New("the line has more than 1 MiB")

// byteOrderMark begins some files that were saved on Windows.
var byteOrderMark = []byte("\xef\xbb\xbf")

// buffers has the memory of chunks.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// block is some consecutive lines of a file.
type block struct {
	buffer *[]byte // the memory of data
	data   []byte  // whole lines, each with a newline
	first  int64   // the number of the first line
	broken error   // if not nil, another line follows the data, which can't be read
}

// release gives the memory of the block back.
func (b *block) release() {
	buffers.Put(b.buffer)
	b.buffer, b.data = nil, nil
}

// lineReader reads blocks from a decompressed file.
type lineReader struct {
	r    io.Reader
	size int // of a block
	// eager reports whether a block ends after each read, because the next read can take any time.
	eager bool

	number   int64  // of the next line
	rest     []byte // the beginning of the next line
	skipping bool   // the next bytes belong to a line that is too long
	err      error  // of the reader
}

// newLineReader returns a reader of the lines of r.
func newLineReader(r io.Reader, size int, eager bool) *lineReader {
	return &lineReader{r: r, size: size, eager: eager, number: 1}
}

// next returns the next block, and io.EOF after the last one. Other errors of the reader are broken lines: the lines
// before them count, but the line that they cut doesn't.
func (l *lineReader) next() (block, error) {
	if l.err == io.EOF && len(l.rest) == 0 {
		return block{}, io.EOF
	}
	b := block{buffer: buffers.Get().(*[]byte)}
	data := append((*b.buffer)[:0], l.rest...)
	l.rest = l.rest[:0]
	for hasLine := false; l.err == nil && len(data) <= maxLine && !(hasLine && (l.eager || len(data) >= l.size)); {
		before := len(data)
		data = l.read(data)
		if l.skipping {
			_, after, found := bytes.Cut(data, []byte("\n"))
			data = append(data[:0], after...)
			before, l.skipping = 0, !found
		}
		hasLine = hasLine || bytes.IndexByte(data[before:], '\n') >= 0
	}
	l.cut(&b, data)
	return b, nil
}

// read appends some bytes to data, so that it has at most maxLine bytes and a line ending.
func (l *lineReader) read(data []byte) []byte {
	if len(data) == cap(data) {
		grown := make([]byte, len(data), min(max(2*cap(data), l.size), maxLine+1))
		copy(grown, data)
		data = grown
	}
	n, err := l.r.Read(data[len(data):min(cap(data), maxLine+1)])
	l.err = err
	return data[:len(data)+n]
}

// cut makes a block of the whole lines in data. The rest is the beginning of the next block.
func (l *lineReader) cut(b *block, data []byte) {
	end := bytes.LastIndexByte(data, '\n') + 1
	switch {
	case end == 0 && len(data) > maxLine:
		b.broken, l.skipping = errTooLong, true
	case l.err == io.EOF && len(data) > end: // the last line has no newline
		data = append(data, '\n')
		end = len(data)
	case l.err != nil && l.err != io.EOF:
		b.broken = fmt.Errorf("the rest of the file can't be read, only the lines before it count: %w", l.err)
		l.err = io.EOF
	default:
		l.rest = append(l.rest, data[end:]...)
	}
	*b.buffer = data
	b.data, b.first = data[:end], l.number
	l.number += int64(bytes.Count(b.data, []byte("\n")))
	if b.broken != nil {
		l.number++
	}
	if b.first == 1 {
		b.data = bytes.TrimPrefix(b.data, byteOrderMark)
	}
}
