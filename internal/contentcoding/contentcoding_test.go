package contentcoding

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

var codings = []string{"gzip", "X-GZIP", "zstd"}

// encode compresses parts of a content, and flushes after each.
func encode(t testing.TB, coding string, parts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	}
	if coding == "zstd" {
		var err error
		w, err = zstd.NewWriter(&b, zstd.WithWindowSize(maxWindow), zstd.WithEncoderLevel(zstd.SpeedFastest))
		errtest.None(t, err)
	} else {
		w, _ = gzip.NewWriterLevel(&b, gzip.BestSpeed)
	}
	for _, part := range parts {
		errtest.None(t, errtest.Of(w.Write(part)))
		errtest.None(t, w.Flush())
	}
	errtest.None(t, w.Close())
	return b.Bytes()
}

// decode writes a compressed content in pieces of random sizes, and returns what comes out.
func decode(coding string, compressed []byte, random *rand.Rand) []byte {
	decoded, _ := decodeAll(coding, compressed, random)
	return decoded
}

// decodeAll returns the error of Close, too.
func decodeAll(coding string, compressed []byte, random *rand.Rand) ([]byte, error) {
	var b bytes.Buffer
	w := NewWriter(coding, &b)
	for len(compressed) > 0 {
		n := min(len(compressed), 1+random.IntN(1+random.IntN(100_000)))
		_, _ = w.Write(compressed[:n])
		compressed = compressed[n:]
	}
	err := w.Close()
	return b.Bytes(), err
}

// text returns a content of this length that can be compressed a little.
func text(length int, random *rand.Rand) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = "abcdefgh"[random.IntN(8)]
	}
	return b
}

func TestWriter(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, coding := range codings {
		for range seedtest.Cases(t, 6) {
			one, two := text(random.IntN(1000), random), text(random.IntN(300_000), random)
			all := append(one[:len(one):len(one)], two...)
			name := strings.ToLower(coding)
			if got := decode(coding, encode(t, name, one, two), random); !bytes.Equal(got, all) {
				t.Errorf("%s: %d bytes come out, not the %d that went in", coding, len(got), len(all))
			}
			twice := append(encode(t, name, one), encode(t, name, two)...)
			if got := decode(coding, twice, random); !bytes.Equal(got, all) {
				t.Errorf("%s: of two members %d bytes come out, not the %d that went in", coding, len(got), len(all))
			}
		}
	}
}

// Content that is cut is decoded up to the last flush at least. Content that is no such coding gives nothing.
func TestWriterOfBrokenContent(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for _, coding := range []string{"gzip", "zstd"} {
		one, two := text(400, random), text(400, random)
		first := len(encode(t, coding, one)) // with an end, which is longer than a flush
		compressed := encode(t, coding, one, two)
		for cut := range len(compressed) {
			got := decode(coding, compressed[:cut], random)
			if !bytes.HasPrefix(append(one[:400:400], two...), got) || cut > first && len(got) < len(one) {
				t.Errorf("%s: the first %d of %d bytes become %d bytes", coding, cut, len(compressed), len(got))
			}
		}
		if got := decode(coding, text(200_000, random), random); len(got) > 0 {
			t.Errorf("%s: %d bytes come out of a content that is not compressed", coding, len(got))
		}
	}
}

// counter counts bytes.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// Content that expands too much is decoded only up to the bound, and takes bounded memory.
func TestWriterBoundsExpansion(t *testing.T) {
	for _, coding := range []string{"gzip", "zstd"} {
		compressed := encode(t, coding, make([]byte, 16<<20))
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var c counter
		w := NewWriter(coding, &c)
		_, _ = w.Write(compressed)
		_ = w.Close()
		runtime.ReadMemStats(&after)
		if most := int64(len(compressed))*maxExpansion + freeExpansion; c.n > most || c.n < freeExpansion/2 {
			t.Errorf("%s: %d bytes become %d, want at most %d", coding, len(compressed), c.n, most)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 5*maxWindow {
			t.Errorf("%s: %d bytes are allocated", coding, used)
		}
	}
}

// frame returns a frame of zstd with a window of 128 KiB, and these blocks before the last one, which is empty.
func frame(blocks ...byte) []byte {
	b := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3}, blocks...)
	return append(b, 1, 0, 0)
}

// Tiny frames and blocks cost work without content, or a move of the whole window for each byte. So each read of the
// decoder counts as work, and the work for each byte is bounded. How the content is cut into pieces makes no difference.
func TestWriterBoundsWork(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	one, empty := []byte{1 << 3, 0, 0, 'x'}, []byte{0, 0, 0}
	full := []byte{2, 0, 0x10, 'x'} // 128 KiB of one byte
	for name, unit := range map[string][]byte{
		"skippable frames":           {0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0},
		"skippable frames of a byte": {0x5f, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 'x'},
		"empty frames":               {0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0},
		"empty frames with checksum": {0x28, 0xb5, 0x2f, 0xfd, 0x24, 0, 1, 0, 0, 0x99, 0xe9, 0xd8, 0x51},
		"empty frames with a window": {0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3, 1, 0, 0},
		"blocks of a byte":           frame(append(full, bytes.Repeat(one, 25_000)...)...),
		"empty blocks":               frame(bytes.Repeat(empty, 60_000)...),
		"all":                        append(append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}, frame(one...)...), frame(empty...)...),
	} {
		compressed := append(bytes.Repeat(unit, 1+100_000/len(unit)), encode(t, "zstd", []byte("the end"))...)
		var want bytes.Buffer
		from := bytes.NewReader(compressed)
		c := &content{from: from, to: &want}
		_ = decodeZstd(c, c)
		if excess := -c.left - freeExpansion; c.err == nil || excess > 128<<10 || from.Len() == 0 {
			t.Errorf("%s: all but %d bytes are decoded, with %d units of work too many, %v", name, from.Len(), excess, c.err)
		}
		for range 2 {
			if got, err := decodeAll("zstd", compressed, random); err == nil || !bytes.Equal(got, want.Bytes()) {
				t.Errorf("%s: %d bytes come out, not %d as before, %v", name, len(got), want.Len(), err)
			}
		}
	}
}

// Content that servers send takes less work than the bound, also if each small event is flushed, or is a separate frame
// or member.
func TestWriterDecodesSmallParts(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	var parts [][]byte
	for i := range 5000 {
		parts = append(parts, fmt.Appendf(nil, "data: %d\n\n", i))
	}
	want := bytes.Join(parts, nil)
	encoder, err := zstd.NewWriter(nil)
	errtest.None(t, err)
	defer encoder.Close()
	var frames, members bytes.Buffer
	gzipWriter := gzip.NewWriter(&members)
	for _, part := range parts {
		frames.Write(encoder.EncodeAll(part, nil))
		_, _ = gzipWriter.Write(part)
		_ = gzipWriter.Close()
		gzipWriter.Reset(&members)
	}
	for _, test := range []struct {
		coding, what string
		compressed   []byte
	}{
		{"zstd", "frames", frames.Bytes()},
		{"zstd", "flushes", encode(t, "zstd", parts...)},
		{"gzip", "members", members.Bytes()},
		{"gzip", "flushes", encode(t, "gzip", parts...)},
	} {
		if got, err := decodeAll(test.coding, test.compressed, random); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s, %s: of %d bytes %d come out, %v", test.coding, test.what, len(want), len(got), err)
		}
	}
}

// A window of more than 8 MiB is not decoded.
func TestWriterBoundsWindow(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(2*maxWindow))
	errtest.None(t, err)
	_, _ = w.Write(text(1000, rand.New(rand.NewPCG(1, 1))))
	_ = w.Flush() // so that the header of the frame has the window instead of the size
	_ = w.Close()
	if got := decode("zstd", b.Bytes(), rand.New(rand.NewPCG(1, 1))); len(got) > 0 {
		t.Errorf("%d bytes come out", len(got))
	}
}

// faulty panics when it is written to.
type faulty struct{}

func (faulty) Write([]byte) (int, error) { panic("as the test wants") }

// Write and Close return though nothing is decoded any more, and a panic ends no process.
func TestWriterAfterPanic(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for _, coding := range codings {
		w := NewWriter(coding, faulty{})
		_, _ = w.Write(encode(t, strings.ToLower(coding), text(300_000, random)))
		_, _ = w.Write(text(300_000, random))
		_ = w.Close()
		if n, err := w.Write([]byte("late")); n != 4 || err != nil {
			t.Errorf("%s: a late Write returns %d, %v", coding, n, err)
		}
	}
}

func TestCanDecode(t *testing.T) {
	t.Parallel()
	for coding, want := range map[string]bool{"gzip": true, "GZip": true, "x-gzip": true, "zstd": true, "br": false, "deflate": false, "": false} {
		if CanDecode(coding) != want {
			t.Errorf("CanDecode(%q) is not %v", coding, want)
		}
	}
}
