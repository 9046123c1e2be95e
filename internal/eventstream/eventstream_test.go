package eventstream

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// collector collects the data of all events.
type collector struct {
	current strings.Builder
	all     []string
}

func (c *collector) Data(piece []byte) { c.current.Write(piece) }

func (c *collector) End() {
	c.all = append(c.all, c.current.String())
	c.current.Reset()
}

// read returns the data of the events of a stream that is written in pieces.
func read(pieces ...string) []string {
	var c collector
	r := NewReader(&c)
	for _, piece := range pieces {
		n, err := r.Write([]byte(piece))
		if n != len(piece) || err != nil {
			panic("Write must take all")
		}
	}
	return c.all
}

// wantedEvents returns the data of the events of a whole stream, by the steps of the standard.
func wantedEvents(stream string) (all []string) {
	stream = strings.TrimPrefix(stream, "\uFEFF")
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream), "\n")
	data := ""
	for _, line := range lines[:len(lines)-1] {
		name, value, _ := strings.Cut(line, ":")
		switch {
		case line == "":
			if data != "" {
				all = append(all, strings.TrimSuffix(data, "\n"))
			}
			data = ""
		case name == "data":
			data += strings.TrimPrefix(value, " ") + "\n"
		}
	}
	return all
}

// split cuts a text into pieces of random sizes.
func split(text string, random *rand.Rand) (pieces []string) {
	for len(text) > 0 {
		n := 1 + random.IntN(min(len(text), 1+random.IntN(20)))
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return pieces
}

// A stream has the same events however it is divided, and these are the events of the standard.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		"data: {\"usage\":null}\n\ndata: [DONE]\n\n", "\uFEFFdata\r\rdata:x\r\n\r\n: c\n", "data: a\ndata: b\n\nid: 1\n\n",
		": a comment\ndata: x\nid: 7\n\n", ":\n\nevent: nothing\n\n\n\n", "data: not ended", "data: not ended\n", "data: a: b\n\ndata:  x\n\n",
		"data : x\n\ndatas: x\n\n data: x\n\nDATA: x\n\ndat: x\n\n", "data: a\ndata:\ndata\ndata: b\r\rdata\n\r\n", "data: \x00\xFF\r\n\n",
		"\uFEFFdata: x\n\n\uFEFFdata: y\n\n", "\xEF\xBBdata: x\n\ndata: y\n\n", "\xEF\ndata: y\n\n", "\n\r\n\rdata: x\n\n",
		"event: message_delta\r\ndata: {\"usage\":\r\ndata: {\"output_tokens\": 15}}\r\n\r\n",
	} {
		f.Add(seed, uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream string, seed uint64) {
		want := wantedEvents(stream)
		if got := read(stream); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", stream, got, want)
		}
		pieces := split(stream, rand.New(rand.NewPCG(seed, 0)))
		if got := read(pieces...); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", pieces, got, want)
		}
	})
}

// The memory doesn't depend on the lengths of lines and events.
func TestReaderKeepsNothing(t *testing.T) {
	r := NewReader(discard{})
	pieces := [][]byte{
		[]byte("data: "), []byte(strings.Repeat("x", 4096)), []byte("\n"),
		[]byte(": "), []byte(strings.Repeat("y", 4096)), []byte("\n"),
		[]byte(strings.Repeat("name", 1024)), []byte("\ndata\n"),
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, piece := range pieces {
			_, _ = r.Write(piece)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

type discard struct{}

func (discard) Data([]byte) {}
func (discard) End()        {}

// counter counts calls.
type counter struct{ calls int }

func (c *counter) Data([]byte) { c.calls++ }
func (c *counter) End()        { c.calls++ }

// No stream makes more than one call for each of its bytes, also if these come one by one.
func TestReaderWork(t *testing.T) {
	for _, part := range []string{"\n", "\r", "\r\n", "data\n", "data:\n\n", "data:x\n\n", "data: \r", "data:x\n", ":\n", "x"} {
		for _, begin := range []string{"", "data:", "data:x\n"} {
			stream, once, single := []byte(begin+strings.Repeat(part, 1000)), new(counter), new(counter)
			_, _ = NewReader(once).Write(stream)
			r := NewReader(single)
			for i := range stream {
				_, _ = r.Write(stream[i : i+1])
			}
			if most := max(once.calls, single.calls); most > len(stream) {
				t.Errorf("%q and then %q: %d calls for %d bytes", begin, part, most, len(stream))
			}
		}
	}
}
