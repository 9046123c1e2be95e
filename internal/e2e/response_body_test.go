package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// scripted is an upstream that answers each request as the test has said for the query parameter key.
type scripted struct {
	address string
	mu      sync.Mutex
	scripts map[string]http.HandlerFunc
}

func startScripted(t *testing.T) *scripted {
	t.Helper()
	u := &scripted{scripts: make(map[string]http.HandlerFunc)}
	u.address = caddytest.StartUpstream(t, u.ServeHTTP)
	return u
}

func (u *scripted) answer(key string, script http.HandlerFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.scripts[key] = script
}

func (u *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	u.mu.Lock()
	script := u.scripts[r.URL.Query().Get("key")]
	u.mu.Unlock()
	script(w, r)
}

// with returns a script that answers with a body; header is pairs of name and value. Between two
// pieces it flushes.
func with(header []string, pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		for i, piece := range pieces {
			if i > 0 {
				_ = http.NewResponseController(w).Flush()
			}
			if piece == "abort" {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, piece)
		}
	}
}

const bodyBudget = 1_000_000_000

// scriptedSite is a site over all versions of HTTP, whose zone api settles by this cost.
func scriptedSite(t *testing.T, u *scripted, settle, more string) string {
	t.Helper()
	cert := redistest.NewCertificates(t)
	return fmt.Sprintf(`{
	admin {$ADMIN}
	auto_https disable_redirects
}
(all) {
	@limited not path /ready
	rate_limit @limited {
		zone api {
			key {query.key}
			cost 10
			fixed_window %d 1000d
			settle {
				%s
			}
		}
		%s
	}
	respond /ready ok
	test_hold
	@encoded path /encoded
	encode @encoded
	reverse_proxy %s
}
{$SITE} {
	import all
}
{$TLS} {
	tls %s %s
	import all
}
`, bodyBudget, settle, more, u.address, cert.Cert, cert.Key)
}

// charged returns how many events a key of the zone api was charged.
func charged(t *testing.T, c *caddytest.Caddy, key string) int64 {
	t.Helper()
	return bodyBudget - seenKey(t, c, key).Budgets[0].Limits[0].Remaining
}

// wantCharge waits until a key is charged this number of events.
func wantCharge(t *testing.T, c *caddytest.Caddy, what, key string, want int64) {
	t.Helper()
	look := func() int64 { return charged(t, c, key) }
	caddytest.EventuallySees(t, fmt.Sprintf("%s is charged %d", what, want), look, func(got int64) bool { return got == want })
}

const totalTokens = "cost {http.rate_limit.response.json.usage.total_tokens}"

// The true cost comes from the body of a response, however it ends. Each request reserves 10. TestSettleByAnyBody has whole
// bodies.
func TestSettleByBody(t *testing.T) {
	t.Parallel()
	u := startScripted(t)
	bounded := fmt.Sprintf("zone bounded {\n key {query.key}\n cost 10\n fixed_window %d 1000d\n settle {\n %s max 30\n %s\n }\n}\n",
		bodyBudget, totalTokens, "match status 2xx 3xx")
	c := caddytest.Start(t, scriptedSite(t, u, "match status 2xx 3xx\n"+totalTokens, bounded))
	typed := func(contentType string, more ...string) []string {
		return append([]string{"Content-Type", contentType}, more...)
	}
	isJSON, isStream := typed("application/json"), typed("text/event-stream")
	usage := `{"id":"x","usage":{"prompt_tokens":5,"total_tokens":35}}`
	for i, test := range []struct {
		name, method string
		script       http.HandlerFunc
		want         int64
	}{
		{"a fraction", "POST", with(isJSON, `{"usage":{"total_tokens":34.5}}`), 35},
		{"two values", "POST", with(isJSON, `{"usage":{"total_tokens":12},"usage":{"total_tokens":35}}`), 35},
		{"a number that is too long", "POST", with(isJSON, `{"usage":{"total_tokens":35.`+strings.Repeat("0", 100)+`}}`), 10},
		{"no body", "POST", with(isJSON), 10},
		{"JSON with a brace too many", "POST", with(isJSON, usage+"}"), 35},
		{"HEAD", "HEAD", with(isJSON), 10},
		{"no content", "POST", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 10},
		{"not modified", "GET", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, 10},
		{"an error that match excludes", "POST", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			with(nil, usage)(w, r)
		}, 0},
		{"JSON cut after the value", "POST", with(isJSON, strings.TrimSuffix(usage, "}"), "abort"), 35},
		{"JSON cut in the value", "POST", with(isJSON, `{"usage":{"total_tokens":3`, "abort"), 10},
		{"JSON cut before the value", "POST", with(isJSON, `{"id":"x","usage":{`, "abort"), 10},

		{"a stream with malformed events", "POST", with(isStream, "data: [DONE]\n\ndata: "+usage+"\n\ndata: {\"usage\":{\"total_tokens\":99}}}\n\n"), 35},
		{"a stream whose last event doesn't end", "POST", with(isStream, "data: "+usage+"\n\ndata: {\"usage\":{\"total_tokens\":99}}\n"), 35},
		{"a stream that breaks", "POST", with(isStream, "data: "+usage+"\n\n", "data: {\"usage\"", "abort"), 35},
		{"a stream that breaks before the value", "POST", with(isStream, "data: {\"usage\":null}\n\n", "data: {\"usage\":{\"total_tokens\":3", "abort"), 10},

		{"gzip that breaks", "POST", with(append(isJSON, "Content-Encoding", "x-gzip"), append(caddytest.Compress(t, "gzip", usage)[:1], "abort")...), 35},
		{"gzip that is none", "POST", with(append(isJSON, "Content-Encoding", "gzip"), usage), 10},
		{"identity", "POST", with(append(isJSON, "Content-Encoding", "identity"), usage), 35},
		{"an unknown coding", "POST", with(append(isJSON, "Content-Encoding", "br"), usage), 10},
		{"two codings", "POST", with(append(isJSON, "Content-Encoding", "gzip, zstd"), usage), 10},
		{"a bomb", "POST", with(append(isJSON, "Content-Encoding", "gzip"), caddytest.Compress(t, "gzip", strings.Repeat(" ", 32<<20), usage)...), 10},
	} {
		key := strconv.Itoa(i)
		u.answer(key, test.script)
		// With the field, reverse_proxy passes compressed bodies on. Some responses break.
		_, _ = c.Do(test.method, fmt.Sprintf("http://%s/?key=%s", c.Site, key), "", "Accept-Encoding", "gzip, zstd, br")
		wantCharge(t, c, test.name, key, test.want)
		if charged := bodyBudget - c.Remaining(t, "bounded", key); charged != min(test.want, 30) {
			t.Errorf("%s is charged %d in a zone whose responses cost at most 30", test.name, charged)
		}
	}

	// A panic behind the handler, and a response that an outer handler writes.
	_, _ = c.Do("POST", fmt.Sprintf("http://%s/?key=broken&panic=1", c.Site), "")
	wantCharge(t, c, "a panic", "broken", 0) // its status is 500

	// A client that leaves in the middle of a stream is charged by what the stream has told so far.
	u.answer("leaves", func(w http.ResponseWriter, r *http.Request) {
		with(isStream, "data: "+usage+"\n\n", "data: {}\n\n")(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", fmt.Sprintf("http://%s/?key=leaves", c.Site), nil)
	errtest.None(t, err)
	answer, err := caddytest.Client.Do(r)
	errtest.None(t, err)
	errtest.Report(t, errtest.Of(io.ReadFull(answer.Body, make([]byte, len(usage)+8))))
	if got := charged(t, c, "leaves"); got != 10 {
		t.Errorf("a stream that continues is charged %d", got)
	}
	leave()
	wantCharge(t, c, "a client that leaves", "leaves", 35)
}

// The bytes of a body count as they are sent, and the seconds until its end. TestBytesOfOtherProtocols has switches of
// protocols.
func TestSettleByBytesAndSeconds(t *testing.T) {
	t.Parallel()
	u := startScripted(t)
	config := scriptedSite(t, u, "cost {http.rate_limit.response.bytes}", `zone seconds {
			key {query.key}
			cost 10
			fixed_window 1000 1000d
			settle {
				cost 30 + {http.rate_limit.response.seconds}
			}
		}
		zone kilobytes {
			key {query.key}
			fixed_window 1000 1000d
			settle {
				cost 0.001*{http.rate_limit.response.bytes} max 150
			}
		}
		`)
	// seconds is 3 followed by 0.001 or so, and rounded up.
	c := caddytest.Start(t, config)
	body := strings.Repeat("0123456789", 20_000)
	plain := []string{"Content-Type", "text/plain"}
	length := append(plain, "Content-Length", strconv.Itoa(len(body)))
	for _, test := range []struct {
		key, method, path string
		script            http.HandlerFunc
		want              int64
	}{
		{"chunks", "GET", "/", with(plain, body[:1234], body[1234:]), 200_000},
		{"length", "GET", "/", with(length, body), 200_000},
		{"none", "GET", "/", with(plain), 0},
		{"HEAD", "HEAD", "/", with(length), 0},
		{"cut", "GET", "/", with(plain, body[:1234], "abort"), 1234},
		{"broken", "GET", "/", nil, 0},
	} {
		u.answer(test.key, test.script)
		query := strings.ReplaceAll(test.key, " ", "+")
		if test.key == "broken" { // behind the handler
			query += "&panic=1"
		}
		_, _ = c.Do(test.method, "http://"+c.Site+test.path+"?key="+query, "", "Accept-Encoding", "gzip")
		wantCharge(t, c, test.key, test.key, test.want)
		if left := seen[adminapi.Key](t, c, "zones/seconds/keys?key="+url.QueryEscape(test.key)).Budgets[0].Limits[0].Remaining; test.key != "broken" && left > 1000-30 || left < 1000-30-120 { // it takes less than two minutes
			t.Errorf("%s: of 1000 seconds %d are left", test.key, left)
		}
		kilobytes := seen[adminapi.Key](t, c, "zones/kilobytes/keys?key="+url.QueryEscape(test.key)).Budgets[0].Limits[0].Remaining
		if want := 1000 - min((test.want+999)/1000, 150); kilobytes != want {
			t.Errorf("%s: of 1000 kilobytes %d are left, want %d", test.key, kilobytes, want)
		}
	}

	// encode compresses after rate_limit.
	u.answer("encoded", with(plain, body))
	r := c.Get(t, "/encoded?key=encoded", "Accept-Encoding", "gzip")
	if r.Field("Content-Encoding") != "gzip" || len(r.Text) > len(body)/10 {
		t.Errorf("%d bytes, Content-Encoding %q", len(r.Text), r.Field("Content-Encoding"))
	}
	wantCharge(t, c, "a compressed body", "encoded", int64(len(r.Text)))
}

// Only requests whose zones read the body lose codings.
func TestCodingsOfOtherRequests(t *testing.T) {
	t.Parallel()
	u := startScripted(t)
	zone := func(name, settle string) string {
		return fmt.Sprintf("zone %s {\n match path /%[1]s\n fixed_window 1000 1h\n settle {\n %s\n }\n}\n", name, settle)
	}
	c := caddytest.Start(t, strings.Replace(caddytest.Site(zone("tokens", totalTokens)+zone("bytes", "cost {http.rate_limit.response.bytes}")+
		zone("failed", "match status 401")), "respond ok", "respond /ready ok\nreverse_proxy "+u.address, 1))
	u.answer("", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Accept-Encoding")) })
	for path, want := range map[string]string{"/tokens": "gzip", "/bytes": "gzip, br", "/failed": "gzip, br", "/": "gzip, br"} {
		if got := c.Get(t, path, "Accept-Encoding", "gzip, br").Text; got != want {
			t.Errorf("%s: the upstream is asked for %q, want %q", path, got, want)
		}
	}
}
