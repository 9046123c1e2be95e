package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options says which logs are read, and how.
type Options struct {
	// Names are the names of the files. The name - stands for Stdin.
	Names []string
	Stdin io.Reader
	// Format is json for Caddy's encoders json and console, combined for the combined and the common
	// format, or empty to detect the format of each line.
	Format string
	// Duration is the duration_format of the log in Caddy: s, ms, ns or string, or one of their other names. It
	// matters for durations that are whole numbers. If Duration is empty, the first lines of the files
	// decide: whole numbers are milliseconds if one of them is less than 1000, else nanoseconds.
	Duration string
}

const (
	chunkSize = 256 << 10
	// maxOpen bounds the files that are open at the same time. Each needs about 1 MiB of memory, and the window if it
	// is compressed with zstd, which is 8 MiB or less by default.
	maxOpen = 128
)

// Log is one or more log files, merged by time. Next must not be called by several goroutines at once. All
// other methods are safe for concurrent use.
type Log struct {
	stdin    io.Reader
	format   string
	unit     time.Duration // of durations that are whole numbers; 0 if the log has none
	parser   Parser        // for the times of lines
	request  Request
	size     int       // of a chunk
	sources  []*source // that are not read to their end; the one with the next line comes first
	open     int       // how many files are open
	total    int64
	read     atomic.Int64
	done     chan struct{}
	closeLog sync.Once
}

// Open looks at the beginning of each file. An error names the file, and says what to do. Empty files are left out, unless
// all files are empty.
func Open(o Options) (*Log, error) {
	return open(o, chunkSize)
}

func open(o Options, size int) (*Log, error) {
	unit, ok := durationUnits[o.Duration]
	switch {
	case !ok:
		return nil, fmt.Errorf("unknown duration format %q: write s, ms, ns or string", o.Duration)
	case o.Format != "" && o.Format != formatJSON && o.Format != formatCombined:
		return nil, fmt.Errorf("unknown log format %q: write json or combined", o.Format)
	case len(o.Names) == 0:
		return nil, errors.New("no log is named: name log files, or - for the standard input")
	}
	l := &Log{stdin: o.Stdin, format: o.Format, unit: unit, size: size, done: make(chan struct{})}
	l.parser.format = o.Format
	if err := l.inspect(o.Names); err != nil {
		l.Close()
		return nil, err
	}
	l.parser.unit = l.unit
	slices.SortFunc(l.sources, compareSources)
	return l, nil
}

// NewParser returns a Parser for the lines of the log.
func (l *Log) NewParser() *Parser { return &Parser{format: l.format, unit: l.unit} }

// Progress returns how many bytes of the files are read, before decompression, and how many there are. The total is 0 if it
// is unknown, because one of the files is the standard input or another stream.
func (l *Log) Progress() (read, total int64) {
	read = l.read.Load()
	if l.total > 0 { // a file can grow while it is read
		read = min(read, l.total)
	}
	return read, l.total
}

// Close ends the reading. A Next that waits for a file returns [os.ErrClosed]. A goroutine that waits for the standard input
// ends with its next line.
func (l *Log) Close() {
	l.closeLog.Do(func() { close(l.done) })
}

// Next returns the next lines, and io.EOF at the end. Its other errors end the log: a file was replaced since
// Open, or too many files overlap in time. A file that is damaged further behind has a broken line there.
func (l *Log) Next() (*Chunk, error) {
	c, size := new(Chunk), 0
	for len(l.sources) > 0 && size < l.size {
		s := l.sources[0]
		if len(s.run.data) == 0 && s.run.broken == nil {
			if len(c.runs) > 0 && !s.regular {
				return c, nil // the next lines of a stream can take any time
			}
			switch err := l.fill(s); {
			case err == io.EOF:
				l.sources = l.sources[1:]
				l.open--
			case err != nil && len(c.runs) == 0:
				return nil, err
			case err != nil:
				return c, nil // the next call returns the error again
			}
			continue
		}
		r := l.takeLines(s)
		l.sortFirst()
		if len(r.data) > 0 || r.broken != nil {
			c.runs = append(c.runs, r)
			size += len(r.data)
		}
	}
	if len(c.runs) == 0 {
		return nil, io.EOF
	}
	return c, nil
}

// fill reads the next lines of a file. It opens the file before the first of them. It returns io.EOF after the last one.
func (l *Log) fill(s *source) error {
	if s.runs == nil {
		if l.open == maxOpen {
			return fmt.Errorf("more than %d of the log files overlap in time, such as %s: merge some of them first", maxOpen, s.name)
		}
		if s.lines == nil {
			if err := s.open(l.stdin, l.size, &l.read); err != nil {
				return err
			}
		}
		s.start(l.done)
		l.open++
	}
	select {
	case r, ok := <-s.runs:
		if ok {
			s.run = r
			return nil
		}
	case <-l.done:
	}
	select {
	case <-l.done:
		return os.ErrClosed
	default:
		return io.EOF
	}
}

// sortFirst moves the first file behind those whose next lines come before its next line.
func (l *Log) sortFirst() {
	first := l.sources[0]
	at, _ := slices.BinarySearchFunc(l.sources[1:], first, compareSources)
	copy(l.sources, l.sources[1:at+1])
	l.sources[at] = first
}

// takeLines returns the lines of the first file that come before those of all other files. If there is no other file, these
// are all lines.
func (l *Log) takeLines(s *source) run {
	taken, n := s.run, 0
	for len(l.sources) > 1 && n < len(taken.data) {
		line, _, _ := bytes.Cut(taken.data[n:], []byte("\n"))
		if t, ok := l.parser.timeOf(line, &l.request); ok {
			s.time = t
		}
		if compareSources(l.sources[1], s) < 0 {
			taken.data, taken.broken, taken.isPart = taken.data[:n], nil, true
			s.run.data, s.run.isPart = s.run.data[n:], true
			return taken
		}
		n += len(line) + 1
		s.run.first++
	}
	s.run = run{}
	return taken
}
