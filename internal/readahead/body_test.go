package readahead

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

var errBroken = errors.New("the connection is broken")

// source is a body that arrives in parts, and then ends with an error. It notes whether it was
// closed.
type source struct {
	parts    [][]byte
	end      error
	withLast bool            // the error comes with the last part
	wait     <-chan struct{} // before each part
	closed   bool
}

func (s *source) Read(p []byte) (n int, err error) {
	if s.wait != nil {
		<-s.wait
	}
	if len(s.parts) == 0 {
		return 0, s.end
	}
	n = copy(p, s.parts[0])
	if s.parts[0] = s.parts[0][n:]; len(s.parts[0]) == 0 {
		s.parts = s.parts[1:]
		if len(s.parts) == 0 && s.withLast {
			return n, s.end
		}
	}
	return n, nil
}

func (s *source) Close() error {
	s.closed = true
	return nil
}

// cut cuts text into parts of random lengths. Some are empty, which a reader may return, too.
func cut(random *rand.Rand, text []byte) (parts [][]byte) {
	for len(text) > 0 {
		n := random.IntN(min(len(text), 1+random.IntN(3000)) + 1)
		parts, text = append(parts, text[:n]), text[n:]
	}
	return parts
}

// The next handler reads all bytes and the error of the source, however much was read ahead, by any
// number of calls. All memory is given back.
func TestReadsWhatWasSent(t *testing.T) {
	t.Parallel()
	for seed := range seedtest.Cases(t, uint64(1000)) {
		random := rand.New(rand.NewPCG(seed, 0))
		sent := make([]byte, random.IntN(1+random.IntN(20_000)))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		s := &source{parts: cut(random, sent), end: io.EOF, withLast: random.IntN(2) == 0}
		if random.IntN(4) == 0 {
			s.end = errBroken
		}
		length := int64(-1)
		if random.IntN(2) == 0 {
			length = int64(len(sent))
		}
		memory, other := NewMemory(int64(1+random.IntN(60_000))), NewMemory(int64(1+random.IntN(60_000)))
		b := New(s, length, memory)
		for range random.IntN(4) {
			limit := 1 + random.IntN(20_000)
			if random.IntN(4) == 0 {
				limit = len(sent)
			}
			got, err := b.ReadAhead(limit)
			switch {
			case err == nil && (!bytes.Equal(got, sent) || len(sent) > limit || s.end != io.EOF):
				t.Fatalf("seed %d: read %d bytes ahead, with limit %d, of %d with error %v", seed, len(got), limit, len(sent), s.end)
			case err == ErrTooLarge && len(sent) <= limit, err == errBroken && s.end != errBroken:
				t.Fatalf("seed %d: %v, with limit %d, of %d", seed, err, limit, len(sent))
			case err != nil && err != ErrTooLarge && err != ErrMemory && err != errBroken:
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		moved := random.IntN(2) == 0 && b.Move(other)
		if used, its := memory.Used(), other.Used(); used > memory.size || its > other.size || used+its < int64(cap(b.buffer)) || moved && used > 0 {
			t.Fatalf("seed %d: %d of %d and %d of %d bytes taken, for a buffer of %d", seed, used, memory.size, its, other.size, cap(b.buffer))
		}
		got, err := io.ReadAll(iotest.HalfReader(b))
		if s.end == io.EOF && err != nil || s.end != io.EOF && err != s.end || !bytes.Equal(got, sent) {
			t.Fatalf("seed %d: the next handler reads %d of %d bytes, and %v", seed, len(got), len(sent), err)
		}
		if used := memory.Used() + other.Used(); used != 0 {
			t.Fatalf("seed %d: %d bytes taken after all is read", seed, used)
		}
	}
}

// A body with a known length takes one byte more than it has, which shows its end. Without one, it takes at most
// twice what has arrived.
func TestMemoryGrowsWithWhatHasArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, memory := make(chan struct{}), NewMemory(1<<20)
		s := &source{wait: next, end: io.EOF}
		for range 100 {
			s.parts = append(s.parts, make([]byte, 100))
		}
		b := New(s, 10_000, memory)
		go func() { _, _ = b.ReadAhead(1 << 20) }()
		for n := range 100 {
			synctest.Wait()
			if used := memory.Used(); used > int64(max(firstBuffer, 2*100*n)) || used > 10_001 {
				t.Errorf("%d bytes taken after %d have arrived", used, 100*n)
			}
			next <- struct{}{}
		}
		close(next)
	})
}

// A closed body gives its memory back, and closes its source.
func TestClose(t *testing.T) {
	s, memory := &source{parts: [][]byte{make([]byte, 1000)}, end: io.EOF}, NewMemory(1<<20)
	b := New(s, -1, memory)
	errtest.None(t, errtest.Of(b.ReadAhead(2000)))
	errtest.None(t, errtest.Of(io.ReadFull(b, make([]byte, 10))))
	if err := b.Close(); err != nil || !s.closed || memory.Used() != 0 {
		t.Errorf("%v, closed %v, %d bytes taken", err, s.closed, memory.Used())
	}
	if _, err := b.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
		t.Error(err)
	}
}

// Bytes that are released are not read, neither by the next handler nor ahead.
func TestRelease(t *testing.T) {
	b := New(io.NopCloser(bytes.NewReader(make([]byte, 1000))), -1, NewMemory(1<<20))
	errtest.None(t, errtest.Of(b.ReadAhead(2000)))
	b.Release()
	b.Release()
	if _, err := b.ReadAhead(2000); err != http.ErrBodyReadAfterClose {
		t.Error(err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != http.ErrBodyReadAfterClose {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// Many bodies never take more than the memory has.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	memory := NewMemory(1 << 20)
	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := make(map[error]int)
	release := make(chan struct{})
	var ready sync.WaitGroup
	for range 200 {
		ready.Add(1)
		wg.Go(func() {
			b := New(io.NopCloser(bytes.NewReader(make([]byte, 30_000))), -1, memory)
			_, err := b.ReadAhead(1 << 16)
			if used := memory.Used(); used > memory.size {
				t.Errorf("%d bytes taken", used)
			}
			mu.Lock()
			outcomes[err]++
			mu.Unlock()
			ready.Done()
			<-release
			b.Release()
		})
	}
	ready.Wait()
	close(release)
	wg.Wait()
	if outcomes[nil] == 0 || outcomes[ErrMemory] == 0 || len(outcomes) != 2 {
		t.Errorf("outcomes %v", outcomes)
	}
	if memory.Used() != 0 {
		t.Errorf("%d bytes taken", memory.Used())
	}
}
