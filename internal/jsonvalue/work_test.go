package jsonvalue

import (
	"strings"
	"testing"
)

// No text takes more than two steps for each of its bytes. Beside the bytes that it reads, a step looks only at the paths.
func TestReaderWork(t *testing.T) {
	paths := []Path{{"a", "b"}, {"a", "0"}, {"a"}}
	for _, part := range []string{"1,", "-0.0e+0,", "[],", "[", "{},", `{"a":`, `{"a":1},`, `"\u0061",`, `"\n\n\n",`, "\xff", "true,", " ", "\n"} {
		for _, begin := range []string{"", "[", `{"a":`, `{"a":[`, `"`, `["`} {
			r, rest, steps := NewReader(64, paths...), []byte(begin+strings.Repeat(part, 5000)), 0
			length := len(rest)
			for ; len(rest) > 0 && !r.failed; steps++ {
				rest = rest[r.read(rest):]
			}
			if steps > 2*length {
				t.Errorf("%q and then %q: %d steps for %d bytes", begin, part, steps, length)
			}
		}
	}
}
