package bodies

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// An upstream may choose only codings that can be decoded, if a zone of the request needs the body.
func TestAcceptOnlyDecodable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		accepted []string
		want     string
	}{
		{[]string{"gzip, deflate, br, zstd"}, "gzip, zstd"},
		{[]string{"br;q=1.0, GZIP;q=0.8, *;q=0.1", "zstd ; q=0.5"}, "GZIP;q=0.8, zstd ; q=0.5"},
		{[]string{"identity;q=0.5, compress"}, "identity;q=0.5"},
		{[]string{"br"}, "identity"},
		{[]string{"*"}, "identity"},
		{[]string{""}, "identity"},
		{[]string{"gzip"}, "gzip"},
	} {
		before := slices.Clone(test.accepted)
		header := http.Header{"Accept-Encoding": test.accepted}
		if acceptOnlyDecodable(header); !slices.Equal(test.accepted, before) { // another request can share the values
			t.Errorf("%q has become %q", before, test.accepted)
		}
		if got := header.Values("Accept-Encoding"); len(got) != 1 || got[0] != test.want {
			t.Errorf("%q becomes %q, want %q", test.accepted, got, test.want)
		}
	}
	none := http.Header{}
	if acceptOnlyDecodable(none); len(none) > 0 {
		t.Errorf("no field becomes %q", none)
	}
}

// Each name of a format is read, whatever its case and its parameters.
func TestResponseKinds(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]responseKind{
		"application/json": oneJSONText, "text/json": oneJSONText, "Application/Problem+JSON; charset=utf-8": oneJSONText,
		"text/event-stream": eventStream, " Text/Event-Stream ;charset=utf-8": eventStream,
		"application/x-ndjson": jsonLines, "application/ndjson; charset=utf-8": jsonLines, "application/x-jsonl": jsonLines,
		"APPLICATION/JSONL": jsonLines, "application/x-jsonlines": jsonLines, "application/jsonlines": jsonLines,
		"": noJSON, "application/": noJSON, "ndjson": noJSON, "text/ndjson": noJSON, "application/x-json": noJSON, "text/plain": noJSON,
	} {
		if got := responseKindOf(contentType); got != want {
			t.Errorf("%q is of kind %d, want %d", contentType, got, want)
		}
	}
}

// The last event that is JSON and has the value counts, whatever the events before and behind it are, and in whatever
// parts they come.
func TestLastEventCounts(t *testing.T) {
	const placeholder = responseJSONPrefix + "usage.total"
	values := new(ResponseValues)
	errtest.None(t, values.Add(placeholder))
	random := rand.New(rand.NewPCG(2, 7))
	for range seedtest.Cases(t, 2000) {
		contentType, before, behind := "text/event-stream", "data: ", "\n\n"
		if random.IntN(2) == 0 {
			contentType, before, behind = "application/x-ndjson", "", "\n"
		}
		var stream strings.Builder
		want := ""
		for range 1 + random.IntN(5) {
			event := []string{
				`{"usage":{"total":%d}}`, `{"usage":{"total":%d}`, `{"usage":{"total":%d}}}`, `{"other":%d}`, `[DONE %d]`, `{"usage":`,
			}[random.IntN(6)]
			if strings.Contains(event, "%d") {
				n := random.IntN(1000)
				if event == `{"usage":{"total":%d}}` {
					want = fmt.Sprint(n)
				}
				event = fmt.Sprintf(event, n)
			}
			stream.WriteString(before + event + behind)
		}
		text := stream.String()
		if behind == "\n" && random.IntN(2) == 0 {
			text = text[:len(text)-1] // the last line needs no end
		}
		body := NewResponseBody(httptest.NewRequest("GET", "/", nil), values)
		body.ReadHeader(http.StatusOK, http.Header{"Content-Type": {contentType}})
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			body.See(rest[:n])
			rest = rest[n:]
		}
		body.End()
		if got, err := body.Replace(placeholder, "none"); got != want || err != nil {
			t.Fatalf("%q: %v, want %q, error %v", text, got, want, err)
		}
	}
}
