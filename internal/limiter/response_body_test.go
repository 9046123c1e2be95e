package limiter

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
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
		if err := l.ResponseValues.Add(tokens); err != nil {
			t.Fatal(err)
		}
		repl := caddy.NewReplacer()
		watched := &watchedWriter{ResponseRecorder: httptest.NewRecorder(), repl: repl}
		r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), repl, watched, nil)
		if err := l.Serve(watched, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			watched.body = w.(*responseWriter).body
			w.Header().Set("Content-Type", "application/json")
			for i := 0; i < len(test.header); i += 2 {
				w.Header().Set(test.header[i], test.header[i+1])
			}
			test.write(w)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
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
