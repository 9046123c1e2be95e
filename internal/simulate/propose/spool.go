package propose

import (
	"errors"
	"fmt"
	"os"
)

// spool keeps bytes in memory up to a bound, and further bytes in a temporary file. One goroutine
// writes. When all is written, any number of goroutines may read.
//
// A request takes 5 to 30 bytes, so the requests of a large log don't fit into the bound. The log itself can't be
// read again in place of the file: it may come from a pipe, and a search reads the requests 2 to 33 times.
type spool struct {
	maxMemory int64
	memory    int64 // in use
	tails     int64 // the number of buckets that are being written
	file      *os.File
	size      int64  // of the file
	remove    string // the name of the file, if it must be removed when it is closed
	err       error  // nothing is kept any more
}

func newSpool(maxMemory int64) *spool { return &spool{maxMemory: maxMemory} }

// piece is a part of a bucket, in memory or in the file.
type piece struct {
	memory     []byte
	offset     int64
	fileLength int32
}

const (
	minPiece = 256
	maxPiece = 32 << 10
)

// pieceSize returns the size from which on a tail becomes a piece. With many tails it is small, so
// that all tails together take about an eighth of the memory.
func (s *spool) pieceSize() int {
	return int(min(max(s.maxMemory/8/max(s.tails, 1), minPiece), maxPiece))
}

// keep returns a piece with a copy of some bytes. It reports whether the bytes themselves now belong
// to the piece.
func (s *spool) keep(b []byte) (p piece, kept bool) {
	if s.memory+int64(cap(b)) <= s.maxMemory {
		s.memory += int64(cap(b))
		return piece{memory: b}, true
	}
	if s.err != nil {
		return piece{}, false
	}
	if s.file == nil {
		s.err = s.create()
	}
	if s.err == nil {
		_, s.err = s.file.WriteAt(b, s.size)
	}
	if s.err != nil {
		s.err = fmt.Errorf("writing the requests for the proposals to a temporary file in %s: %w; "+
			"let the environment variable TMPDIR name a directory with more room, or leave out --propose", os.TempDir(), s.err)
		return piece{}, false
	}
	p = piece{offset: s.size, fileLength: int32(len(b))}
	s.size += int64(len(b))
	return p, false
}

// create creates the file. Where the system allows that, its name is removed at once. So the file is
// gone when the process ends, whatever ends it.
func (s *spool) create() (err error) {
	if s.file, err = os.CreateTemp("", "caddy-rate-limit-*"); err != nil {
		return err
	}
	if os.Remove(s.file.Name()) != nil {
		s.remove = s.file.Name()
	}
	return nil
}

// read returns the bytes of a piece. They are valid until the next call with the same buffer.
func (s *spool) read(p piece, buffer []byte) ([]byte, error) {
	if p.memory != nil {
		return p.memory, nil
	}
	buffer = buffer[:p.fileLength]
	if _, err := s.file.ReadAt(buffer, p.offset); err != nil {
		return nil, fmt.Errorf("reading the requests for the proposals from the temporary file %s: %w", s.file.Name(), err)
	}
	return buffer, nil
}

func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if s.remove != "" {
		err = errors.Join(err, os.Remove(s.remove))
	}
	s.file, s.err = nil, errors.New("the recorder is closed")
	return err
}
