package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// source is a log file, or the standard input.
type source struct {
	name  string
	index int         // among the names of the log
	info  fs.FileInfo // nil for the standard input
	// regular reports whether the file can be opened again.
	regular bool
	first   int64 // the first time in the file; 0 if its beginning has none

	lines *lineReader // nil if the file isn't open
	close func()
	runs  chan run // from the goroutine; nil if it isn't started

	run run // the next lines
	// time is the time of the next line. If the line has none, it is the time of the line before it.
	time int64
}

// readAhead is how many runs of a file are read before they are needed.
const readAhead = 2

// newSource returns the source with a name, of which "-" is the standard input. It opens files that can't be opened twice.
func newSource(name string, index int, stdin io.Reader) (*source, error) {
	s := &source{name: name, index: index}
	if name == "-" {
		s.name = "stdin"
		if stdin == nil {
			return nil, errors.New("there is no standard input: name a log file instead of -")
		}
		return s, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, explain(name, err)
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory: name the log files in it, as in %s", name, name+string(os.PathSeparator)+"*.log")
	}
	s.info, s.regular = info, info.Mode().IsRegular()
	return s, nil
}

// explain says what to do about an error of a file.
func explain(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no log file %s: check the name", name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the log file %s can't be read: %w: run the command as a user who can read it", name, err)
	}
	return fmt.Errorf("the log file %s can't be read: %w", name, err)
}

// open opens the file, or begins to read stdin.
func (s *source) open(stdin io.Reader, runSize int) error {
	file := io.NopCloser(stdin)
	if s.info != nil {
		f, err := os.Open(s.name)
		if err != nil {
			return explain(s.name, err)
		}
		if info, err := f.Stat(); err != nil || !os.SameFile(info, s.info) {
			f.Close()
			return fmt.Errorf("another file has replaced the log file %s since it was first opened, "+
				"probably because the logs were rotated: run the command again", s.name)
		}
		file = f
	}
	text, closeDecoder, err := decompress(file)
	if err != nil {
		file.Close()
		return fmt.Errorf("the log file %s can't be decompressed: %w", s.name, err)
	}
	s.lines = newLineReader(s.name, text, runSize)
	s.close = func() { closeDecoder(); file.Close() }
	return nil
}

// start lets a goroutine read and decompress the file. It ends when the file does, or when done is closed.
func (s *source) start(done <-chan struct{}) {
	s.runs = make(chan run, readAhead)
	go func() {
		defer close(s.runs)
		defer s.close()
		for {
			r, err := s.lines.next()
			if err != nil {
				return
			}
			select {
			case s.runs <- r:
			case <-done:
				return
			}
		}
	}()
}

// compareSources compares two files by their next lines.
func compareSources(a, b *source) int {
	return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.index, b.index))
}

// maxWindow bounds the memory of a zstd decoder. The level 22 and the option --long of zstd need as much.
const maxWindow = 128 << 20

// decompress returns the text in r. Its first bytes tell the compression.
func decompress(r io.Reader) (text io.Reader, closeDecoder func(), err error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	magic, err := buffered.Peek(6)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	hasPrefix := func(text string) bool { return bytes.HasPrefix(magic, []byte(text)) }
	switch {
	case hasPrefix("\x1f\x8b"):
		decoder, err := gzip.NewReader(buffered)
		if err != nil {
			err = fmt.Errorf("%w: check whether it is complete", err)
		}
		return decoder, func() {}, err
	case hasPrefix("\x28\xb5\x2f\xfd"), len(magic) >= 4 && magic[0]&0xf0 == 0x50 && string(magic[1:4]) == "\x2a\x4d\x18":
		decoder, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return decoder, decoder.Close, nil
	case hasPrefix("BZh"):
		return nil, nil, errors.New("it is compressed with bzip2: pipe the output of bzip2 -dc into the command, and name - as the log")
	case hasPrefix("\xfd7zXZ\x00"):
		return nil, nil, errors.New("it is compressed with xz: pipe the output of xz -dc into the command, and name - as the log")
	case hasPrefix("PK\x03\x04"):
		return nil, nil, errors.New("it is a zip archive: extract the log files first")
	}
	return buffered, func() {}, nil
}
