package accesslog

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"testing"
)

// seeds are lines that a real Caddy has written, and lines of other programs.
func seeds(f *testing.F) [][]byte {
	f.Helper()
	text, err := os.ReadFile("testdata/caddy.log")
	if err != nil {
		f.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(lines) < 10 {
		f.Fatalf("only %d lines in testdata/caddy.log", len(lines))
	}
	for _, shape := range append(shapesOfCombined, shapesOfJSON...) {
		lines = append(lines, []byte(shape.line))
	}
	return append(
		lines, benchmarkLine,
		[]byte(`192.0.2.7 - alice [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326 "https://example.com/" "curl/8" "-" 0.005`),
		[]byte(`shop:443 2001:db8::7 - - [14/Nov/2023:22:13:20 +0100] "GET /\x22\"\u00e9 HTTP/1.0" 304 -`),
		[]byte(`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "\x16\x03\x01" 400 157 "-" "-"`),
	)
}

// checkParse parses a line, and checks everything that holds for all lines.
func checkParse(t *testing.T, used, fresh *Parser, line []byte) {
	t.Helper()
	original := bytes.Clone(line)
	var r, again Request
	err := used.Parse(line, &r)
	if !bytes.Equal(line, original) {
		t.Fatal("the line was changed")
	}
	// A Parser that has parsed other lines finds the same.
	if errAgain := fresh.Parse(bytes.Clone(line), &again); errAgain != err {
		t.Fatalf("the error is %v, then %v", err, errAgain)
	}
	used.timeOf(line, &Request{Header: again.Header})
	if err != nil {
		return
	}
	if r.End <= 0 || r.Start < 0 || r.Start > r.End || r.Status < 0 || r.Status > 999 || r.Size < 0 || r.BytesRead < 0 || r.Instant < 0 ||
		r.Header == nil || r.ResponseHeader == nil {
		t.Fatalf("the request is %s", shown(&r))
	}
}

// Any line can be parsed. The outcome doesn't depend on the lines before it.
func FuzzParse(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	var used Parser
	f.Fuzz(func(t *testing.T, line []byte) {
		checkParse(t, &used, new(Parser), line)
		var a, b Request
		errA, errB := used.Parse(line, &a), new(Parser).Parse(line, &b)
		if errA == nil && errB == nil && !reflect.DeepEqual(a, b) {
			t.Fatalf("got %s, then %s", shown(&a), shown(&b))
		}
	})
}

// Lines don't depend on how many bytes the reader gives at once.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n\xef\xbb\xbfc"), uint8(1), uint8(3))
	f.Add([]byte("\xef\xbb\xbf\n"), uint8(2), uint8(200))
	f.Fuzz(func(t *testing.T, text []byte, step, size uint8) {
		read := func(r io.Reader, size int) (all []Line) {
			lines := newLineReader("", r, size)
			for {
				b, err := lines.next()
				if err == io.EOF {
					return all
				}
				b.each(func(line Line) {
					line.Text = bytes.Clone(line.Text)
					all = append(all, line)
				})
			}
		}
		got := read(&stepReader{text, 1 + int(step)}, 1+int(size))
		want := read(bytes.NewReader(text), chunkSize)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// stepReader gives a number of bytes at once.
type stepReader struct {
	text []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.text[:min(r.step, len(r.text))])
	r.text = r.text[n:]
	return n, nil
}
