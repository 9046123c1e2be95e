package accesslog

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// Lines come in the order of their times, whatever the sizes of files and chunks, their compression and their
// formats. Lines of one file keep their order, also lines without a time, and lines that are late.
func TestMerge(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range seedtest.Cases(t, 40) {
		type entry struct {
			time, file, number int
			text               string
			timed              bool
		}
		var want []entry
		var names []string
		files := 1 + r.IntN(6)
		for file := range files {
			var text strings.Builder
			at := r.IntN(1000)
			latest, step := -1, 1+r.IntN(20)
			count := 1 + r.IntN(100)
			for number := 1; number <= count; number++ {
				content, timed := "", true
				switch r.IntN(10) {
				case 0:
					content, timed = "broken "+strings.Repeat("x", r.IntN(100)), false
					if r.IntN(4) == 0 { // a damaged time doesn't hold back the lines behind it
						content = string(line(`ts:"9999-12-31T23:59:59Z"`))
					}
				case 1:
					late := max(0, at-r.IntN(20))
					content = lineAt(late, "late")
					latest = max(latest, late)
				case 2, 3, 4:
					at += r.IntN(step)
					content = string(line(`ts:"` + time.Date(2023, 1, 1, 0, 0, at, 0, time.UTC).Format(time.RFC3339) + `"`))
					latest = max(latest, at)
				default:
					at += r.IntN(step)
					content = lineAt(at, strings.Repeat("y", r.IntN(200)))
					latest = max(latest, at)
				}
				want = append(want, entry{latest, file, number, content, timed})
				text.WriteString(content + "\r\n"[r.IntN(2):])
			}
			first := slices.IndexFunc(want, func(e entry) bool { return e.file == file && e.timed })
			for i := range want { // lines before the first time
				if first < 0 && want[i].file == file {
					want[i].time = -1
				} else if first >= 0 && want[i].file == file && i < first {
					want[i].time = want[first].time
				}
			}
			if first < 0 { // such a file is in no known format
				want = slices.DeleteFunc(want, func(e entry) bool { return e.file == file })
				names = append(names, writeFile(t, fmt.Sprint(file), ""))
				continue
			}
			content := text.String()
			if r.IntN(3) == 0 {
				content = strings.TrimRight(content, "\r\n")
			}
			switch r.IntN(4) {
			case 0:
				content = gzipped(t, content, 1+r.IntN(5000))
			case 2: // its damage comes once, behind all lines that can be read
				content = gzipped(t, text.String(), 1+r.IntN(5000))
				content = content[:len(content)-4]
				want = append(want, entry{latest, file, count + 1, "error: the rest of the file can't be read, only the lines before it count: unexpected EOF", false})
			case 1:
				content = zstandard(t, content, 1+r.IntN(5000))
			}
			names = append(names, writeFile(t, fmt.Sprint(file), content))
		}
		if len(want) == 0 {
			continue
		}
		slices.SortFunc(want, func(a, b entry) int {
			return slices.Compare([]int{a.time, a.file, a.number}, []int{b.time, b.file, b.number})
		})
		l := openLog(t, Options{Names: names}, 1+r.IntN(5000))
		got := readAll(t, l)
		for i, w := range want {
			if text := fmt.Sprintf("%d:%d %s", w.file, w.number, w.text); i >= len(got) || got[i] != text {
				t.Fatalf("seed %d: the lines of %d files are in another order at %d:\n got %q\nwant %q", seed, files, i, got[min(i, len(got)-1)], text)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d lines, want %d", seed, len(got), len(want))
		}
		if l.open != 0 {
			t.Fatalf("at the end %d files are open", l.open)
		}
	}
}

// Rotated files are opened one after the other.
func TestMergeOpensFewFiles(t *testing.T) {
	var names []string
	for i := range 3 * maxOpen {
		names = append(names, writeFile(t, "access.log", lineAt(10*i, "")+"\n"+lineAt(10*i+9, "")+"\n"))
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	l := openLog(t, Options{Names: names}, chunkSize)
	lines, last := 0, ""
	for c, err := l.Next(); err != io.EOF; c, err = l.Next() {
		if err != nil || l.open > 2 {
			t.Fatalf("error %v, %d files are open", err, l.open)
		}
		c.Each(func(line Line) {
			lines++
			if at := string(line.Text[15:35]); at < last {
				t.Errorf("%s comes after %s", at, last)
			} else {
				last = at
			}
		})
	}
	if lines != 2*len(names) {
		t.Errorf("%d lines, want %d", lines, 2*len(names))
	}
}

func TestMergeBoundsOpenFiles(t *testing.T) {
	var names []string
	for range maxOpen + 1 {
		names = append(names, writeFile(t, "access.log", lineAt(0, "")+"\n"+lineAt(9, "")+"\n"))
	}
	l := openLog(t, Options{Names: names}, chunkSize)
	_, err := l.Next()
	for err == nil {
		_, err = l.Next()
	}
	if !strings.Contains(err.Error(), "more than 128 of the log files overlap in time") {
		t.Errorf("the error is %v", err)
	}
}
