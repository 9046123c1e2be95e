package jsonvalue

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// A Reader that is used again reads as a new one, whatever it has read before.
func TestReaderIsUsedAgain(t *testing.T) {
	texts := []string{
		`{"a":"x","b":{"c":1}}`, `{"a":"much too long","b":{"c":"much too long"}}`, `{"a":"x","a":"y"}`, `{"b":{"c":2,"c":3}}`, `{}`, `[`, `]`,
		`{"a":`, `{"a":"\u00`, `{"b":{"c":tru`, `{"b":{"c":null},"a":[]}`, `{"b":{"c":-1.5e`, `{"b":{"d":{"c":1}},"a":"é"}`, `7`, `"text`, ``,
	}
	var paths []Path
	for _, text := range []string{"a", "b.c"} {
		path, err := ParsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	read := func(r *Reader, text string) (found string) {
		_, err := r.Write([]byte(text))
		for i := range paths {
			value, ok := r.Value(i)
			found += fmt.Sprintf("%q %t, too long %t; ", value, ok, r.TooLong(i))
		}
		return found + fmt.Sprintf("repeated %t, errors %v and %v", r.Repeated(), err, r.Close())
	}
	random := rand.New(rand.NewPCG(6, 6))
	used := NewReader(8, paths...)
	for range seedtest.Cases(t, 2000) {
		text := texts[random.IntN(len(texts))]
		if got, want := read(used, text), read(NewReader(8, paths...), text); got != want {
			t.Fatalf("%s: used again %s; new %s", text, got, want)
		}
		used.Reset()
	}
}
