package limiter

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// The true cost is known before the last part of a response is sent, and other parts are sent before they
// are read.
func TestBodyIsReadInTime(t *testing.T) {
	usage := `{"usage":{"total_tokens":35}}`
	for _, test := range []struct {
		name   string
		header []string
		write  func(http.ResponseWriter)
		want   string
	}{
		{"no length", nil, func(w http.ResponseWriter) { _, _ = io.WriteString(w, usage) }, "29 before 0"},
		{
			"a length",
			[]string{"Content-Length", "29"},
			func(w http.ResponseWriter) {
				_, _ = io.WriteString(w, usage[:20])
				_, _ = io.WriteString(w, usage[20:])
			},
			"20 before 0, 9 before 29 corrected",
		},
		{
			"a long write",
			[]string{"Content-Length", "100029"},
			func(w http.ResponseWriter) { _, _ = io.WriteString(w, usage+strings.Repeat(" ", 100_000)) },
			"95933 before 0, 4096 before 100029 corrected",
		},
	} {
		const tokens = "http.rate_limit.response.json.usage.total_tokens"
		l := newTestLimiter(t, &Zone{FixedCost: 10, Settle: NewSettlePolicy("z", nil, parseCost(t, "{"+tokens+"}"))})
		errtest.None(t, l.ResponseValues.Add(tokens))
		repl := caddy.NewReplacer()
		watched := &watchedWriter{ResponseRecorder: httptest.NewRecorder(), repl: repl}
		r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), repl, watched, nil)
		errtest.None(t, l.Serve(watched, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			watched.body = w.(*responseWriter).body
			w.Header().Set("Content-Type", "application/json")
			for i := 0; i < len(test.header); i += 2 {
				w.Header().Set(test.header[i], test.header[i+1])
			}
			test.write(w)
			return nil
		})))
		if got := strings.Join(watched.notes, ", "); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
}

// watchedWriter notes how much of a body has been read when it is asked to write.
type watchedWriter struct {
	*httptest.ResponseRecorder
	repl  *caddy.Replacer
	body  *bodies.ResponseBody
	notes []string
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	seen, _ := w.body.Replace("http.rate_limit.response.bytes", nil)
	note := fmt.Sprint(len(p), " before ", seen)
	state, _ := w.repl.Get(PlaceholderPrefix)
	if state.(*State).corrected {
		note += " corrected"
	}
	w.notes = append(w.notes, note)
	return w.ResponseRecorder.Write(p)
}

// parseCost returns the sum that a text describes.
func parseCost(t *testing.T, text string) *cost.Sum {
	t.Helper()
	sum, err := cost.Parse(text, nil)
	errtest.None(t, err)
	return sum
}

// tokenPrices is one sum for all vendors: output costs five times as much as input, and cached input a tenth. Vendors
// name one thing differently, and streams of a vendor nest it otherwise than its bodies.
const tokenPrices = `5*{usage.output_tokens} or {usage.completion_tokens} or {response.usage.output_tokens} or {usageMetadata.candidatesTokenCount} or {eval_count}
	+ 5*{usageMetadata.thoughtsTokenCount}
	+ {usage.input_tokens} or {message.usage.input_tokens} or {usage.prompt_tokens} or {response.usage.input_tokens} or {usageMetadata.promptTokenCount} or {prompt_eval_count}
	+ 1.25*{usage.cache_creation_input_tokens} or {message.usage.cache_creation_input_tokens}
	+ 0.1*{usage.cache_read_input_tokens} or {message.usage.cache_read_input_tokens}`

// The responses of language models cost what their tokens cost, as bodies and as streams.
func TestTokensOfVendors(t *testing.T) {
	t.Parallel()
	types := map[string]string{".json": "application/json", ".events": "text/event-stream; charset=utf-8", ".lines": "application/x-ndjson"}
	want := map[string]int64{
		"openai-chat":      5*10 + 19,
		"openai-responses": 5*87 + 36,
		"anthropic":        5*15 + 25 + 10 + 101, // 0.1*1001 is 100.1
		"gemini":           5*9 + 5*20 + 6,
		"ollama":           5*282 + 26,
	}
	files, err := filepath.Glob("testdata/usage/*")
	if err != nil || len(files) != 2*len(want) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	sum := parseCost(t, strings.ReplaceAll(tokenPrices, "{", "{http.rate_limit.response.json."))
	for _, file := range files {
		body, err := os.ReadFile(file)
		errtest.None(t, err)
		kind := filepath.Ext(file)
		for _, piece := range []int{1, 7, len(body)} {
			if got := settledCost(t, sum, types[kind], body, piece); got != want[strings.TrimSuffix(filepath.Base(file), kind)] {
				t.Errorf("%s in pieces of %d bytes costs %d", file, piece, got)
			}
		}
	}
}

// settledCost returns what a response costs that is written in pieces. A request reserves 1000 events.
func settledCost(t *testing.T, sum *cost.Sum, contentType string, body []byte, piece int) int64 {
	t.Helper()
	l := newTestLimiter(t, &Zone{FixedCost: 1000, Settle: NewSettlePolicy("z", nil, sum)})
	errtest.None(t, l.ResponseValues.Add(sum.Placeholders()...))
	repl := caddy.NewReplacer()
	r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), repl, httptest.NewRecorder(), nil)
	errtest.None(t, l.Serve(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", contentType)
		for ; len(body) > 0; body = body[min(piece, len(body)):] {
			_, _ = w.Write(body[:min(piece, len(body))])
		}
		return nil
	})))
	state, _ := repl.Get(PlaceholderPrefix)
	charged, _ := state.(*State).Entries[0].charged()
	return charged
}
