package jsonvalue_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
)

// benchmarkTexts are a login, a prompt with a long string, and a list with many small values.
var benchmarkTexts = []struct {
	name, text string
	path       jsonvalue.Path
}{
	{"login", `{"username": "alice@example.com", "password": "correct horse battery staple", "remember": true}`, jsonvalue.Path{"username"}},
	{"prompt", `{"messages": [{"role": "user", "content": "` + strings.Repeat(`How many budgets does one key have?\n`, 1000) + `"}], "user": "alice"}`, jsonvalue.Path{"user"}},
	{"list", `{"items": [` + strings.Repeat(`{"id": 1234567, "price": 12.50, "name": "pen", "tags": ["a", null]}, `, 500) + `{}], "user": "alice"}`, jsonvalue.Path{"user"}},
}

func BenchmarkReader(b *testing.B) {
	for _, text := range benchmarkTexts {
		data := []byte(text.text)
		run := func(name string, read func() bool) {
			b.Run(fmt.Sprintf("%s/%s", text.name, name), func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					if !read() {
						b.Fatal("the text is not read")
					}
				}
			})
		}
		r := jsonvalue.NewReader(256, text.path)
		run("reader", func() bool {
			r.Reset()
			_, err := r.Write(data)
			return err == nil && r.Close() == nil
		})
		run("json.Valid", func() bool { return json.Valid(data) })
		run("json.Unmarshal", func() bool {
			var v map[string]any
			return json.Unmarshal(data, &v) == nil
		})
	}
}
