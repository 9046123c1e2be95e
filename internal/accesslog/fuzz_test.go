package accesslog

import (
	"bytes"
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

// Any line can be parsed. It isn't changed, and the outcome doesn't depend on the lines before it.
func FuzzParse(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	var used Parser
	f.Fuzz(func(t *testing.T, line []byte) {
		original := bytes.Clone(line)
		var r, again Request
		err, errAgain := used.Parse(line, &r), new(Parser).Parse(bytes.Clone(line), &again)
		if !bytes.Equal(line, original) {
			t.Fatal("the line was changed")
		}
		if err != errAgain || err == nil && !reflect.DeepEqual(r, again) {
			t.Fatalf("got %v and %s, then %v and %s", err, shown(&r), errAgain, shown(&again))
		}
		if err == nil && (r.End <= 0 || r.Start < 0 || r.Start > r.End || r.Status < 0 || r.Status > 999 || r.Size < 0 || r.BytesRead < 0 ||
			r.Instant < 0 || r.Header == nil || r.ResponseHeader == nil) {
			t.Fatalf("the request is %s", shown(&r))
		}
		used.timeOf(line, &again)
	})
}
