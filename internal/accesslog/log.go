package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Options says which logs are read, and how.
type Options struct {
	// Names are the names of the files. The name - stands for Stdin.
	Names []string
	Stdin io.Reader
}

const (
	chunkSize = 256 << 10
	// maxOpen bounds the files that are open at the same time. Each needs about 1 MiB of memory, and the window if it
	// is compressed with zstd, which is 8 MiB or less by default.
	maxOpen = 128
)

// Log is one or more log files, merged by time. Only NewParser is safe for concurrent use.
type Log struct {
	stdin   io.Reader
	unit    time.Duration // of durations that are whole numbers; 0 if the log has none
	parser  Parser        // for the times of lines
	request Request
	size    int       // of a chunk
	sources []*source // that are not read to their end; the one with the next line comes first
	open    int       // how many files are open
	done    chan struct{}
}

// Open looks at the beginning of each file. An error names the file, and says what to do. Empty files are left out, unless
// all files are empty.
func Open(o Options) (*Log, error) {
	return open(o, chunkSize)
}

func open(o Options, size int) (*Log, error) {
	if len(o.Names) == 0 {
		return nil, errors.New("no log is named: name log files, or - for the standard input")
	}
	l := &Log{stdin: o.Stdin, size: size, done: make(chan struct{})}
	if err := l.inspect(o.Names); err != nil {
		l.Close()
		return nil, err
	}
	l.parser.unit = l.unit
	slices.SortFunc(l.sources, compareSources)
	return l, nil
}

// NewParser returns a Parser for the lines of the log.
func (l *Log) NewParser() *Parser { return &Parser{unit: l.unit} }

// Close ends the goroutines that read the files. Next must not be called afterwards.
func (l *Log) Close() {
	close(l.done)
}

// Next returns the next lines, and io.EOF at the end. Its other errors end the log: a file was replaced since
// Open, or too many files overlap in time. A file that is damaged further behind has a broken line there.
func (l *Log) Next() (*Chunk, error) {
	c, size := new(Chunk), 0
	for len(l.sources) > 0 && size < l.size {
		s := l.sources[0]
		if len(s.run.data) == 0 && s.run.broken == nil {
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
			if err := s.open(l.stdin, l.size); err != nil {
				return err
			}
		}
		s.start(l.done)
		l.open++
	}
	r, ok := <-s.runs
	if !ok {
		return io.EOF
	}
	s.run = r
	return nil
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
			taken.data, taken.broken = taken.data[:n], nil
			s.run.data = s.run.data[n:]
			return taken
		}
		n += len(line) + 1
		s.run.first++
	}
	s.run = run{}
	return taken
}
