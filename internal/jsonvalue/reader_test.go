package jsonvalue_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// expected returns what encoding/json says about the value at a path of a valid text.
func expected(text []byte, path jsonvalue.Path) (value string, ok bool) {
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
				if strconv.Itoa(i) == name {
					v = element
				}
			}
		default:
			v = nil
		}
	}
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return map[bool]string{true: "true", false: "false"}[v], true
	}
	return "", false
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

// check compares a Reader with encoding/json, for any text in any pieces. The Reader was used before.
func check(t *testing.T, seed uint64, text []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	maxValue := 1 + random.IntN(20)
	r := jsonvalue.NewReader(maxValue, paths...)
	_ = write(r, random, text[:random.IntN(len(text)+1)])
	r.Reset()
	if err := write(r, random, text); !json.Valid(text) {
		return
	} else if err != nil {
		t.Fatalf("%.200q: %v", text, err)
	}
	for i, path := range paths {
		want, wantOK := expected(text, path)
		tooLong := len(want) > maxValue
		if tooLong {
			want, wantOK = "", false
		}
		if got, ok := r.Value(i); got != want || ok != wantOK || r.TooLong(i) != tooLong {
			t.Fatalf("%.200q: the value at %q is %q, %v, too long %v, want %q, %v", text, path, got, ok, r.TooLong(i), want, wantOK)
		}
	}
}

func TestReaderAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range texts {
		cases := seedtest.Cases(t, uint64(20))
		if len(text) > 1000 { // which encoding/json reads once per path
			cases = max(cases/5, 1)
		}
		for seed := range cases {
			check(t, seed, []byte(text))
		}
	}
}

// TestReaderAgreesAboutRandomTexts makes texts in which the paths lead to values, are cut, and have duplicate names.
// A third of the texts is damaged.
func TestReaderAgreesAboutRandomTexts(t *testing.T) {
	valid, all := 0, seedtest.Cases(t, 5000)
	for seed := range uint64(all) {
		random := rand.New(rand.NewPCG(seed, 1))
		text := randomValue(random, nil, 4)
		if random.IntN(3) == 0 {
			const bytes = `{}[],:"\tu0-.e 1`
			text[random.IntN(len(text))] = bytes[random.IntN(len(bytes))]
		}
		if json.Valid(text) {
			valid++
		}
		check(t, seed, text)
	}
	if valid < all/2 || valid > all*49/50 {
		t.Errorf("%d of %d texts are valid", valid, all)
	}
}

// randomValue appends a value that nests at most depth objects and arrays.
func randomValue(random *rand.Rand, text []byte, depth int) []byte {
	space := func() { text = append(text, []string{"", "", "", " ", "\n\t", "\r "}[random.IntN(6)]...) }
	pick := func(choices ...string) { text = append(text, choices[random.IntN(len(choices))]...) }
	space()
	defer func() { space() }()
	kind := random.IntN(10)
	switch {
	case depth > 0 && kind < 5:
		text = append(text, '{')
		for i := range random.IntN(4) {
			if i > 0 {
				text = append(text, ',')
			}
			space()
			pick(`"a"`, `"a"`, `"\u0061"`, `"b"`, `"b"`, `"c"`, `"0"`, `""`, "\"a\xff\"", `"a\ud800"`, `"\ud800a"`, `"longer than every path"`)
			space()
			text = append(text, ':')
			text = randomValue(random, text, depth-1)
		}
		text = append(text, '}')
	case depth > 0 && kind < 7:
		text = append(text, '[')
		for i := range random.IntN(4) {
			if i > 0 {
				text = append(text, ',')
			}
			text = randomValue(random, text, depth-1)
		}
		text = append(text, ']')
	case kind < 9:
		pick("true", "false", "null", "0", "-0", "12", "-3.50", "1e5", "1.25E-3", "123456789012345678901")
	default:
		text = append(text, '"')
		for range random.IntN(6) {
			pick("x", "user", `\u0069`, `\n`, `\"`, `\\`, "é", "\xe9", "\xe2\x82", "\xac", `\ud83d`, `\ude00`, `\uD83D\uDE00`, "12345678", "\x7f")
		}
		text = append(text, '"')
	}
	return text
}

// TestReaderFindsRepeatedNames checks that only the names on the paths count.
func TestReaderFindsRepeatedNames(t *testing.T) {
	for _, test := range []struct {
		text, path string
		want       bool
	}{
		{`{"user":"rand","user":"alice"}`, "user", true},
		{`{"user":"alice","user":"alice"}`, "user", true},
		{`{"user":"rand","\u0075ser":"alice"}`, "user", true},
		{`{"user":null,"id":1,"user":"alice"}`, "user", true},
		{`{"user":{},"user":[]}`, "user", true},
		{`{"user":"1234567890","user":"alice"}`, "user", true},
		{`{"user":{"name":"rand"},"user":{"name":"alice"}}`, "user.name", true},
		{`{"user":{"name":"rand"},"user":1}`, "user.name", true},
		{`{"user":1,"user":{"name":"alice"}}`, "user.name", true},
		{`{"user":{"name":"rand","x":{"name":2},"name":"alice"}}`, "user.name", true},
		{`[{"name":"x"},{"name":"rand","name":"alice"}]`, "1.name", true},
		{"{\"u\xff\":1,\"u\\ud800\":2}", "u\ufffd", true},
		{`{"user":"alice","x":1,"x":2}`, "user", false},
		{`{"x":{"user":1},"user":"alice","y":{"user":2,"user":3}}`, "user", false},
		{`{"user":{"name":"alice","x":1,"x":2},"name":3}`, "user.name", false},
		{`{"user":"alice","User":"bob"}`, "user", false},
		{`[{"name":"x","name":"y"},{"name":"alice"}]`, "1.name", false},
		{`{"user":"user","x":["user","user"]}`, "user", false},
	} {
		path, err := jsonvalue.ParsePath(test.path)
		errtest.None(t, err)
		r := jsonvalue.NewReader(8, jsonvalue.Path{"other"}, path)
		for range 2 {
			errtest.None(t, write(r, rand.New(rand.NewPCG(1, 2)), []byte(test.text)), test.text)
			if got := r.Repeated(); got != test.want {
				t.Errorf("%s: a name on the path %s is repeated: %v, want %v", test.text, test.path, got, test.want)
			}
			r.Reset()
			if r.Repeated() {
				t.Errorf("%s: repeated after Reset", test.text)
			}
		}
	}
}

// TestReaderBeforeTheEnd checks that a value can be read while the text is incomplete.
func TestReaderBeforeTheEnd(t *testing.T) {
	r := jsonvalue.NewReader(10, jsonvalue.Path{"a"})
	for _, step := range []struct{ text, want string }{
		{`{"a":12`, ""}, {`3`, ""}, {`,`, "123"}, {`"b":"x"`, "123"}, {`,"a":`, ""}, {`"x"`, "x"},
	} {
		errtest.None(t, errtest.Of(r.Write([]byte(step.text))))
		if got, _ := r.Value(0); got != step.want {
			t.Errorf("after %s the value is %q, want %q", step.text, got, step.want)
		}
	}
	if err := r.Close(); err != io.ErrUnexpectedEOF {
		t.Errorf("closing an incomplete text: %v", err)
	}
}

// A text that was malformed stays so, until Reset.
func TestReaderErrorsAreSticky(t *testing.T) {
	r := jsonvalue.NewReader(10, jsonvalue.Path{"a"})
	for text, want := range map[string]string{`{"a":1}}`: "1", `{"a":1,"b":2} 3`: "1", `{"a":tru}`: "", `{"a":"\x"}`: ""} {
		_, err := r.Write([]byte(text))
		_, again := r.Write([]byte(" "))
		if value, _ := r.Value(0); err != jsonvalue.ErrSyntax || again != err || r.Close() != err || value != want {
			t.Errorf("%s: %v, %v, the value is %q", text, err, again, value)
		}
		r.Reset()
	}
}

// TestReaderMemoryIsBounded writes long names, values and nesting, in the places that a Reader examines.
func TestReaderMemoryIsBounded(t *testing.T) {
	long := []byte(strings.Repeat("x", 1<<16))
	r := jsonvalue.NewReader(100, jsonvalue.Path{"a"}, jsonvalue.Path{"a", "b"})
	write := func(text []byte) {
		errtest.None(t, errtest.Of(r.Write(text)))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, text := range []string{`{"`, `":"`, `","a":"`, `","a":"\ud83d`, `","a":{"`, `":"\`, `","b":"`} {
		if strings.HasSuffix(text, `\`) {
			text += "n"
		}
		write([]byte(text))
		for range 100 {
			write(long)
		}
	}
	write([]byte(`"}}`))
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<16 {
		t.Errorf("44 MiB of JSON cost %d bytes", allocated)
	}
	errtest.Report(t, r.Close())
}

func TestParsePath(t *testing.T) {
	for text, want := range map[string]jsonvalue.Path{
		"user": {"user"}, "usage.total_tokens": {"usage", "total_tokens"}, "items.0.id": {"items", "0", "id"}, "a b.ü": {"a b", "ü"},
		`user\.name.x`: {"user.name", "x"}, `a\\.b`: {`a\`, "b"}, `\$.\*.items\[0].\-1`: {"$", "*", "items[0]", "-1"}, `$schema.-`: {"$schema", "-"},
	} {
		if path, err := jsonvalue.ParsePath(text); err != nil || !slices.Equal(path, want) {
			t.Errorf("%s: got %q, %v", text, path, err)
		}
	}
	for _, text := range []string{"", ".", "a.", ".a", "a..b", "items[0].id", "$.user", "items.*.id", "items.-1", `"user.name"`, `a\`} {
		if path, err := jsonvalue.ParsePath(text); err == nil {
			t.Errorf("%q: got %q, want an error", text, path)
		}
	}
}

func FuzzReader(f *testing.F) {
	for i, text := range texts {
		f.Add(uint64(i), []byte(text))
	}
	for seed := range uint64(50) {
		f.Add(seed, randomValue(rand.New(rand.NewPCG(seed, 2)), nil, 4))
	}
	f.Fuzz(check)
}
