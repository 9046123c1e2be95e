package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxLine is the longest line without its line ending. Caddy's header fields have at most 1 MiB by default.
const maxLine = 1 << 20

// usualLine is more than most lines have. A run has room for one more line than its size.
const usualLine = 4 << 10

// errTooLong reports a line that is not read.
var errTooLong = errors.New("the line is longer than 1 MiB")

// byteOrderMark begins some files that were saved on Windows.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Line is a line of a log file.
type Line struct {
	File   string
	Number int64  // in its file, counted from 1
	Text   []byte // without the line ending
	// Err says why the line can't be read: it is too long, or its file ends within compressed data.
	// Then Text is empty.
	Err error
}

// Chunk is some consecutive lines of a log.
type Chunk struct{ runs []run }

// run is consecutive lines of one file.
type run struct {
	file   string
	first  int64  // the number of the first line
	data   []byte // whole lines, each with a newline
	broken error  // if not nil, another line follows the data, which can't be read
}

// Each calls yield for each line, in their order. It skips empty lines.
func (c *Chunk) Each(yield func(Line)) {
	for _, r := range c.runs {
		r.each(yield)
	}
}

func (r run) each(yield func(Line)) {
	for ; len(r.data) > 0; r.first++ {
		var text []byte
		text, r.data, _ = bytes.Cut(r.data, []byte("\n"))
		if text = bytes.TrimSuffix(text, []byte("\r")); len(text) > 0 {
			yield(Line{File: r.file, Number: r.first, Text: text})
		}
	}
	if r.broken != nil {
		yield(Line{File: r.file, Number: r.first, Err: r.broken})
	}
}

// lineReader reads runs from a decompressed file.
type lineReader struct {
	file string
	r    *bufio.Reader
	size int // of a run

	number   int64 // of the next line
	skipping bool  // the next bytes belong to a line that is too long
	ended    bool
}

// newLineReader returns a reader of the lines of r.
func newLineReader(file string, r io.Reader, size int) *lineReader {
	return &lineReader{file: file, r: bufio.NewReaderSize(r, maxLine+1), size: size, number: 1}
}

// next returns the next run, and io.EOF after the last one. Other errors of the reader are broken lines: the lines
// before them count, but the line that they cut doesn't.
func (l *lineReader) next() (run, error) {
	r := run{file: l.file, first: l.number}
	for !l.ended && r.broken == nil && len(r.data) < l.size {
		line, err := l.r.ReadSlice('\n')
		if !l.skipping && len(line) > 0 && (err == nil || err == io.EOF) {
			l.add(&r, line)
		}
		switch {
		case err == bufio.ErrBufferFull && !l.skipping:
			r.broken, l.skipping = errTooLong, true
		case err == bufio.ErrBufferFull:
		case err != nil && err != io.EOF:
			r.broken = fmt.Errorf("the rest of the file can't be read, only the lines before it count: %w", err)
			l.ended = true
		default:
			l.ended, l.skipping = err == io.EOF, false
		}
	}
	if r.broken != nil {
		l.number++
	}
	if l.number == r.first {
		return run{}, io.EOF
	}
	if r.first == 1 {
		r.data = bytes.TrimPrefix(r.data, byteOrderMark)
	}
	return r, nil
}

// add adds a line to a run. The last line of a file can have no newline.
func (l *lineReader) add(r *run, line []byte) {
	if r.data == nil {
		r.data = make([]byte, 0, l.size+len(line)+usualLine)
	}
	r.data = append(r.data, line...)
	if line[len(line)-1] != '\n' {
		r.data = append(r.data, '\n')
	}
	l.number++
}
