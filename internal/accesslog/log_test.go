package accesslog

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// writeFile writes a file of the test, and returns its name.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	errtest.None(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// gzipped compresses a text in members of the given size.
func gzipped(t testing.TB, text string, member int) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for len(text) > 0 {
		n := min(member, len(text))
		w.Reset(&b)
		errtest.None(t, errtest.Of(io.WriteString(w, text[:n])))
		errtest.None(t, w.Close())
		text = text[n:]
	}
	return b.String()
}

// zstandard compresses a text in frames of the given size, with a skippable frame before them.
func zstandard(t testing.TB, text string, frame int) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	errtest.None(t, err)
	b := []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd")
	for len(text) > 0 {
		n := min(frame, len(text))
		b = w.EncodeAll([]byte(text[:n]), b)
		text = text[n:]
	}
	return string(b)
}

// lineAt is a line in the combined format, at a second of 2023.
func lineAt(second int, rest string) string {
	at := time.Date(2023, 1, 1, 0, 0, second, 0, time.UTC)
	return `192.0.2.7 - - [` + at.Format(`02/Jan/2006:15:04:05 -0700`) + `] "GET /` + rest + ` HTTP/1.1" 200 5`
}

// readAll returns all lines of a log, each with the name of its file and its number: "name:number text".
func readAll(t testing.TB, l *Log) (lines []string) {
	t.Helper()
	for {
		c, err := l.Next()
		if err == io.EOF {
			return lines
		}
		errtest.None(t, err)
		for _, r := range c.runs {
			if cap(r.data) > 2*maxLine {
				t.Fatalf("%s: a run has %d bytes", r.file, cap(r.data))
			}
		}
		c.Each(func(line Line) {
			text := string(line.Text)
			if line.Err != nil {
				text = "error: " + line.Err.Error()
			}
			lines = append(lines, fmt.Sprintf("%s:%d %s", filepath.Base(line.File), line.Number, text))
		})
	}
}

// openLog opens a log, and closes it after the test.
func openLog(t testing.TB, o Options, size int) *Log {
	t.Helper()
	l, err := open(o, size)
	errtest.None(t, err)
	t.Cleanup(l.Close)
	return l
}

func TestLines(t *testing.T) {
	long, first := strings.Repeat("x", maxLine), lineAt(0, "")
	tests := []struct{ name, text, want string }{
		{"no newline at the end", first + "\nb", "1 " + first + "|2 b"},
		{"line endings of Windows", first + "\r\nb\r\n", "1 " + first + "|2 b"},
		{"empty lines", first + "\n\n\r\nb\n\n", "1 " + first + "|4 b"},
		{"a byte order mark", "\xef\xbb\xbf" + first + "\n\xef\xbb\xbfb\n", "1 " + first + "|2 \xef\xbb\xbfb"},
		{"the longest line", first + "\n" + long + "\nb", "1 " + first + "|2 " + long + "|3 b"},
		{"the longest line at the end", first + "\n" + long, "1 " + first + "|2 " + long},
		{"a line that is too long", first + "\n" + long + "x\nb", "1 " + first + "|2 error: " + errTooLong.Error() + "|3 b"},
		{"long lines", first + "\n" + long + "x\n" + long + long + "\n\nb\n" + long + long + long + "\n", "1 " + first +
			"|2 error: " + errTooLong.Error() + "|3 error: " + errTooLong.Error() + "|5 b|6 error: " + errTooLong.Error()},
		{"a long line at the end", first + "\n" + long + "x", "1 " + first + "|2 error: " + errTooLong.Error()},
	}
	for _, test := range tests {
		for _, size := range []int{0, 1, 100, chunkSize} {
			o, file := Options{Names: []string{writeFile(t, "access.log", test.text)}}, "access.log:"
			if size == 0 { // streams give any number of bytes at once
				size, file = chunkSize, "stdin:"
				r := strings.NewReader(test.text)
				o = Options{Names: []string{"-"}, Stdin: io.MultiReader(iotest.OneByteReader(io.LimitReader(r, 1000)), iotest.HalfReader(r))}
			}
			want := strings.Split(file+strings.ReplaceAll(test.want, "|", "|"+file), "|")
			if got := readAll(t, openLog(t, o, size)); !slices.Equal(got, want) {
				t.Errorf("%s, chunks of %d bytes of %s got %.300q, want %.300q", test.name, size, file, got, want)
			}
		}
	}
}

// The lines before a damaged part of a file count. The damage is one broken line, and other files continue.
func TestDamagedFiles(t *testing.T) {
	var text strings.Builder
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		text.WriteString(lineAt(i, fmt.Sprint(r.Uint64())) + "\n")
	}
	whole := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	damaged := func(text string) string {
		return text[:len(text)/2] + strings.Repeat("\x55", 1000) + text[len(text)/2+1000:]
	}
	gz, zst := gzipped(t, text.String(), 1<<30), zstandard(t, text.String(), 1<<30)
	for name, content := range map[string]string{
		"cut.gz": gz[:len(gz)/2], "cut.zst": zst[:len(zst)/2], "damaged.gz": damaged(gz), "damaged.zst": damaged(zst),
		"tail.gz": gz + "garbage",
	} {
		other := writeFile(t, "other.log", lineAt(100_000, "other")+"\n")
		got := readAll(t, openLog(t, Options{Names: []string{other, writeFile(t, name, content)}}, chunkSize))
		// Damaged lines can have any time, so the line of the other file can come before them.
		isOther := func(line string) bool { return line == "other.log:1 "+lineAt(100_000, "other") }
		if !slices.ContainsFunc(got, isOther) {
			t.Errorf("%s: the line of the other file is missing", name)
		}
		got = slices.DeleteFunc(got, isOther)
		last := len(got) - 1
		if last < 100 {
			t.Errorf("%s: only %d lines", name, len(got))
			continue
		}
		for i, line := range got[:last] {
			if strings.HasPrefix(name, "damaged") && i > len(whole)/4 {
				break // a decoder can find damage late, by a checksum
			}
			if want := fmt.Sprintf("%s:%d %s", name, i+1, whole[i]); line != want {
				t.Fatalf("%s: got %q, want %q", name, line, want)
			}
		}
		if want := fmt.Sprintf("%s:%d error: the rest of the file can't be read", name, last+1); !strings.HasPrefix(got[last], want) {
			t.Errorf("%s: the damage is %q, want %q", name, got[last], want)
		}
		if strings.HasPrefix(name, "tail") && last != len(whole) {
			t.Errorf("%s: %d lines, want %d", name, last, len(whole))
		}
	}
}

func TestOpenErrors(t *testing.T) {
	good := writeFile(t, "good.log", lineAt(0, "")+"\n")
	other := filepath.Join(t.TempDir(), "other.log")
	if err := os.Symlink(good, other); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	empty := writeFile(t, "empty.log", "")
	tests := []struct {
		name  string
		o     Options
		error string
	}{
		{"no name", Options{}, "no log is named"},
		{"a directory", Options{Names: []string{dir}}, dir + " is a directory: name the log files in it, as in " + filepath.Join(dir, "*.log")},
		{"a missing file", Options{Names: []string{"missing.log"}}, "there is no log file missing.log: check the name"},
		{"an empty file", Options{Names: []string{empty}}, "the log file " + empty + " is empty"},
		{"empty files", Options{Names: []string{empty, writeFile(t, "b", "")}}, "all log files are empty, such as " + empty},
		{"an empty compressed file", Options{Names: []string{writeFile(t, "a.gz", gzipped(t, "\n", 1)[:0]+emptyGzip(t))}}, "a.gz is empty"},
		{"an empty stdin", Options{Names: []string{"-"}, Stdin: strings.NewReader("")}, "the log file stdin is empty"},
		{"no stdin", Options{Names: []string{"-"}}, "there is no standard input"},
		{"stdin twice", Options{Names: []string{"-", "-"}, Stdin: strings.NewReader(lineAt(0, ""))}, "the standard input can be read only once"},
		{"a file with two names", Options{Names: []string{good, other}}, "the log files " + good + " and " + other + " are the same file"},
		{"a binary file", Options{Names: []string{writeFile(t, "caddy", "\x7fELF\x00\x01\n\n")}}, "is not text, because it has null bytes"},
		{"bzip2", Options{Names: []string{writeFile(t, "a.log", "BZh91AY&SY")}}, "pipe the output of bzip2 -dc"},
		{"xz", Options{Names: []string{writeFile(t, "a.log", "\xfd7zXZ\x00\x00")}}, "pipe the output of xz -dc"},
		{"zip", Options{Names: []string{writeFile(t, "a.log", "PK\x03\x04\x14\x00")}}, "extract the log files first"},
		{"a cut gzip header", Options{Names: []string{writeFile(t, "a.gz", "\x1f\x8b\x08")}}, "a.gz can't be decompressed"},
		{"gzip that isn't", Options{Names: []string{writeFile(t, "a.gz", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff")}}, "a.gz can't be read: line 1"},
		{"text", Options{Names: []string{writeFile(t, "README.md", "# Title\n\nThis is text.\n")}}, "README.md is in no known format: line 1: simulate reads the formats of Caddy, and combined"},
		{"a stream of text", Options{Names: []string{"-"}, Stdin: strings.NewReader(strings.Repeat("This is text.\n", 10))}, "stdin is in no known format: line 1: "},
		{"one long line", Options{Names: []string{writeFile(t, "a.log", strings.Repeat("x", 2*maxLine))}}, "line 1: the line is longer than 1 MiB"},
	}
	for _, test := range tests {
		l, err := Open(test.o)
		if err == nil {
			l.Close()
		}
		errtest.Says(t, err, test.error, test.name)
	}
	if os.Getuid() > 0 {
		errtest.None(t, os.Chmod(good, 0))
		errtest.Says(t, errtest.Of(Open(Options{Names: []string{good}})), "run the command as a user who can read it")
	}
}

// emptyGzip is a gzip file of an empty text.
func emptyGzip(t testing.TB) string {
	t.Helper()
	var b bytes.Buffer
	errtest.None(t, gzip.NewWriter(&b).Close())
	return b.String()
}

// An empty file among others is left out. A log that was just rotated is empty.
func TestOpenLeavesOutEmptyFiles(t *testing.T) {
	names := []string{writeFile(t, "a.log", ""), writeFile(t, "b.log", lineAt(0, "")), writeFile(t, "c.gz", emptyGzip(t))}
	if got, want := readAll(t, openLog(t, Options{Names: names}, chunkSize)), []string{"b.log:1 " + lineAt(0, "")}; !slices.Equal(got, want) {
		t.Errorf("the lines are %q, want %q", got, want)
	}
}

func TestNextReportsAReplacedFile(t *testing.T) {
	name := writeFile(t, "access.log", lineAt(0, ""))
	l := openLog(t, Options{Names: []string{name}}, chunkSize)
	errtest.None(t, os.Rename(name, name+".1"))
	errtest.None(t, os.WriteFile(name, []byte(lineAt(5, "")), 0o600))
	errtest.Says(t, errtest.Of(l.Next()), "another file has replaced the log file "+name)
}

// A named pipe, such as the shell's <(ssh host cat log), can't be opened twice.
func TestNamedPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no /dev/fd")
	}
	r, w, err := os.Pipe()
	errtest.None(t, err)
	defer r.Close()
	text := ""
	var want []string
	name := fmt.Sprintf("/dev/fd/%d", r.Fd())
	for i := range 2000 {
		text += lineAt(2*i, "") + "\n"
		want = append(want, fmt.Sprintf("%d:%d %s", r.Fd(), i+1, lineAt(2*i, "")))
	}
	go func() {
		io.WriteString(w, gzipped(t, text, 10_000))
		w.Close()
	}()
	file := writeFile(t, "access.log", lineAt(1, "")+"\n"+lineAt(5001, ""))
	want = slices.Insert(want, 1, "access.log:1 "+lineAt(1, ""))
	want = append(want, "access.log:2 "+lineAt(5001, ""))
	got := readAll(t, openLog(t, Options{Names: []string{name, file}}, chunkSize))
	slices.Sort(want)
	sorted := slices.Sorted(slices.Values(got))
	if !slices.Equal(sorted, want) || got[1] != "access.log:1 "+lineAt(1, "") {
		t.Errorf("got %d lines, want %d; the second is %s", len(got), len(want), got[1])
	}
}

// Whole numbers are milliseconds or nanoseconds. Caddy writes seconds with a fraction.
func TestDurationUnit(t *testing.T) {
	for durations, want := range map[string]int64{ // of the duration 2000
		"0.25 1.5 2000":   2_000_000_000,
		"0 3 2000 15000":  2_000_000,
		"0 31234 2000 15": 2_000_000,
		"31234 2000":      2,
		`"1.5s" 2000`:     2,
	} {
		text := ""
		for duration := range strings.FieldsSeq(durations) {
			text += string(line("duration:"+duration)) + "\n"
		}
		l := openLog(t, Options{Names: []string{writeFile(t, "access.log", text)}}, chunkSize)
		var r Request
		if err := l.NewParser().Parse(line("duration:2000"), &r); err != nil || min(r.End-r.Start, r.End) != min(want, r.End) {
			t.Errorf("durations %s: %v, 2000 is %d µs, want %d", durations, err, r.End-r.Start, want)
		}
	}
}
