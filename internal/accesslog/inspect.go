package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// sampleSize and sampleLines say how much of the beginning of each file Open looks at.
	sampleSize  = 64 << 10
	sampleLines = 200
)

// inspection collects facts from the beginnings of all files.
type inspection struct {
	log         *Log
	hasStdin    bool
	hasFraction bool // a duration has a fraction of its unit
	leastWhole  int64
	bySize      map[int64][]*source // regular files
}

// inspect makes the sources of the log, with their first times. It detects the unit of durations.
func (l *Log) inspect(names []string) error {
	in := inspection{log: l, bySize: map[int64][]*source{}}
	for i, name := range names {
		s, err := newSource(name, i, l.stdin)
		if err != nil {
			return err
		}
		if err := in.checkTwice(s); err != nil {
			return err
		}
		if err := in.look(s); err == io.EOF {
			continue // it is empty
		} else if err != nil {
			return err
		}
		s.time = s.first
		l.sources = append(l.sources, s)
	}
	if len(l.sources) == 0 && len(names) == 1 {
		return fmt.Errorf("the log file %s is empty: name a log with requests", shownName(names[0]))
	} else if len(l.sources) == 0 {
		return fmt.Errorf("all log files are empty, such as %s: name a log with requests", shownName(names[0]))
	}
	if !in.hasFraction && in.leastWhole > 0 {
		l.unit = time.Nanosecond
		if in.leastWhole < 1000 {
			l.unit = time.Millisecond
		}
	}
	return nil
}

// checkTwice returns an error if the file was named before, also by another name.
func (in *inspection) checkTwice(s *source) error {
	if s.info == nil {
		if in.hasStdin {
			return errors.New("the standard input can be read only once: name - only once")
		}
		in.hasStdin = true
		return nil
	}
	size := s.info.Size()
	for _, other := range in.bySize[size] {
		if os.SameFile(s.info, other.info) {
			return fmt.Errorf("the log files %s and %s are the same file: name it once", other.name, s.name)
		}
	}
	in.bySize[size] = append(in.bySize[size], s)
	return nil
}

// look reads the first lines of a file, and closes files that can be opened again. It returns io.EOF if the file is empty.
func (in *inspection) look(s *source) error {
	l := in.log
	size := l.size
	if s.regular {
		size = sampleSize
	}
	if err := s.open(l.stdin, size); err != nil {
		return err
	}
	first, err := s.lines.next()
	if err == nil {
		err = in.lookAt(s, first)
	}
	if err != nil || s.regular {
		s.close()
		s.lines = nil
		return err
	}
	s.run = first
	return nil
}

// lookAt finds the first time in the first lines of a file, and durations. It returns an error if no line is in a known
// format.
func (in *inspection) lookAt(s *source, first run) error {
	if bytes.IndexByte(first.data, 0) >= 0 {
		return fmt.Errorf("the log file %s is not text, because it has null bytes: "+
			"name logs that are text, or text that is compressed with gzip or zstd", s.name)
	}
	if len(first.data) == 0 { // the first line can't be read
		return fmt.Errorf("the log file %s can't be read: line 1: %w", s.name, first.broken)
	}
	p, r := &in.log.parser, &in.log.request
	lines, isKnown := 0, false
	var firstProblem error
	first.broken = nil
	first.each(func(line Line) {
		if lines++; lines > sampleLines {
			return
		}
		if s.first == 0 {
			s.first, _ = p.timeOf(line.Text, r)
		}
		err := p.Parse(line.Text, r)
		in.addDuration(p.duration)
		isKnown = isKnown || err == nil || err == ErrNotAccess
		if firstProblem == nil {
			firstProblem = fmt.Errorf("line %d: %w", line.Number, err)
		}
	})
	// A stream can begin within a line, and its first lines can be few.
	if !isKnown && lines > 0 && (s.regular || lines >= 10) {
		return fmt.Errorf("the log file %s is in no known format: %w", s.name, firstProblem)
	}
	return nil
}

// addDuration notes a duration, as it is written.
func (in *inspection) addDuration(text []byte) {
	whole, ok := digits(text)
	switch {
	case !ok:
		in.hasFraction = true
	case whole > 0 && (in.leastWhole == 0 || whole < in.leastWhole):
		in.leastWhole = whole
	}
}

// shownName is the name of a file in messages.
func shownName(name string) string {
	if name == "-" {
		return "stdin"
	}
	return name
}
