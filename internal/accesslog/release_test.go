package accesslog

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// The lines of a chunk keep their texts until it is released, whichever other chunks are released before.
func TestChunksKeepTheirTexts(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	for range seedtest.Cases(t, 20) {
		var names []string
		for file := range 2 + random.IntN(3) {
			var text strings.Builder
			for at := 0; at < 300; at += 1 + random.IntN(20) {
				text.WriteString(lineAt(at, fmt.Sprint("file ", file)) + "\n")
			}
			names = append(names, writeFile(t, fmt.Sprint(file), text.String()))
		}
		log, err := open(Options{Names: names}, 200+random.IntN(2000))
		if err != nil {
			t.Fatal(err)
		}
		type held struct {
			chunk *Chunk
			texts []string
		}
		var all []held
		for ended := false; !ended || len(all) > 0; {
			c, err := log.Next()
			if ended = err == io.EOF; err != nil && !ended {
				t.Fatal(err)
			}
			if !ended {
				h := held{chunk: c}
				c.Each(func(l Line) { h.texts = append(h.texts, string(l.Text)) })
				all = append(all, h)
			}
			for _, h := range all {
				n := 0
				h.chunk.Each(func(l Line) {
					if string(l.Text) != h.texts[n] {
						t.Fatalf("a line was %q, and has become %q", h.texts[n], l.Text)
					}
					n++
				})
			}
			if ended || len(all) > 4 { // any of them
				i := random.IntN(len(all))
				all[i].chunk.Release()
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
			}
		}
		log.Close()
	}
}

// A damaged file has one broken line, behind all of its lines that can be read, also if lines of other files come between.
func TestBrokenLineComesOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 1))
	for range seedtest.Cases(t, 20) {
		var damaged, other strings.Builder
		n := 1 + random.IntN(40)
		for at := range n {
			damaged.WriteString(lineAt(2*at, "damaged") + "\n")
			other.WriteString(lineAt(2*at+1, "other") + "\n")
		}
		content := gzipped(t, damaged.String(), 100)
		names := []string{writeFile(t, "damaged", content[:len(content)-4]), writeFile(t, "other", other.String())}
		var read []string
		for _, line := range readAll(t, openLog(t, Options{Names: names}, 1+random.IntN(5000))) {
			_, text, _ := strings.Cut(line, " ")
			if strings.HasPrefix(text, "error: ") {
				read = append(read, "broken")
			} else if strings.Contains(text, "damaged") {
				read = append(read, text)
			}
		}
		want := append(strings.Split(strings.TrimSpace(damaged.String()), "\n"), "broken")
		if !slices.Equal(read, want) {
			t.Fatalf("of %d lines were read: %q", n, read)
		}
	}
}
