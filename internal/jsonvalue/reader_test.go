package jsonvalue_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
)

// expected returns what encoding/json says about a text: whether it is valid, and the value at a path.
func expected(text []byte, path jsonvalue.Path) (value string, ok, valid bool) {
	if !json.Valid(text) {
		return "", false, false
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		panic(err)
	}
	for _, name := range path {
		switch container := v.(type) {
		case map[string]any:
			v = container[name]
		case []any:
			v = nil
			for i, element := range container {
				if number, _ := json.Marshal(i); string(number) == name {
					v = element
				}
			}
		default:
			v = nil
		}
	}
	switch v := v.(type) {
	case string:
		return v, true, true
	case json.Number:
		return v.String(), true, true
	case bool:
		return map[bool]string{true: "true", false: "false"}[v], true, true
	}
	return "", false, true
}

// write writes a text in random pieces, and ends it.
func write(r *jsonvalue.Reader, random *rand.Rand, text []byte) error {
	for len(text) > 0 {
		n := random.IntN(min(len(text), 1+random.IntN(20)) + 1)
		if _, err := r.Write(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return r.Close()
}

var texts = []string{
	``, ` `, `1`, `-`, `-0`, `01`, `1.`, `1.5e+3`, `1e`, `"a"`, `"a`, `tru`, `true`, `null `, `truex`, `1 2`, `{}`, `[]`, `[1,]`, `{"a":1,}`, `{"a"}`, `{,}`, `[,]`, `]`, `{]`, `[}`,
	`{"a":{"b":1},"a":{"c":2}}`, `{"a":{"b":1},"a":{"b":null}}`, `{"a":{"b":1},"a":[1,{"b":2}]}`, `{"a":[1,2,{"b":"x"}]}`, `[{"a":{"b":7}}]`,
	`{"\u0061":{"\u0062":"al\u0069ce"}}`, `{"a":{"b":"\ud83d\ude00 \ud83d x \ude00 \ud83d\ud83d\ude00"}}`, "{\"a\":{\"b\":\"\xff\xe2\x82\"}}", "{\"a\xff\":1}", "{\"a\":\"\x1f\"}",
	"\xef\xbb\xbf{}", `{"a":{"b":"\x"}}`, `{"a":{"b":"\u00g0"}}`, `{"a":{"b":1e5},"c":3}`, `{"0":{"b":1}}`, `[[1,[2,3]],4]`,
	strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001),
}

var paths = []jsonvalue.Path{{}, {"a"}, {"a", "b"}, {"a", "2", "b"}, {"0"}, {"0", "1", "0"}, {"0", "a", "b"}, {"0", "b"}, {"c"}, {"a\ufffd"}}

// check compares a Reader with encoding/json.
func check(t *testing.T, seed uint64, text []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	r := jsonvalue.NewReader(1000, paths...)
	for range 2 {
		err := write(r, random, text)
		if valid := json.Valid(text); valid != (err == nil) {
			t.Fatalf("%.200q: the error is %v, json.Valid says %v", text, err, valid)
		}
		if err == nil {
			for i, path := range paths {
				want, wantOK, _ := expected(text, path)
				if got, ok := r.Value(i); got != want || ok != wantOK {
					t.Fatalf("%.200q: the value at %q is %q, %v, want %q, %v", text, path, got, ok, want, wantOK)
				}
			}
		}
		r.Reset()
	}
}

func TestReaderAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range texts {
		for seed := range uint64(20) {
			check(t, seed, []byte(text))
		}
	}
}

func FuzzReader(f *testing.F) {
	for i, text := range texts {
		f.Add(uint64(i), []byte(text))
	}
	f.Fuzz(check)
}
