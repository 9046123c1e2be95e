package bodies

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// The last event that is JSON and has the value counts, whatever the events before and behind it are, and in whatever
// parts they come.
func TestLastEventCounts(t *testing.T) {
	const placeholder = responseJSONPrefix + "usage.total"
	values := new(ResponseValues)
	if err := values.Add(placeholder); err != nil {
		t.Fatal(err)
	}
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
