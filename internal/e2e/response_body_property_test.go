package e2e

import (
	"cmp"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

var bodySeed = flag.Uint64("body-seed", 0, "which bodies TestSettleByAnyBody draws (default: others each time)")

// path is a request's way to Caddy.
type path struct {
	client *http.Client
	url    string // of the site
	name   string // of the version of HTTP
}

// versions returns a client for each version of HTTP, with the address of the site.
func versions(t *testing.T, c *caddytest.Caddy) (all []path) {
	t.Helper()
	trusting := &tls.Config{InsecureSkipVerify: true}
	h1 := &http.Transport{DisableCompression: true}
	h2 := &http.Transport{DisableCompression: true, ForceAttemptHTTP2: true, TLSClientConfig: trusting}
	h3 := &http3.Transport{DisableCompression: true, TLSClientConfig: trusting.Clone()}
	t.Cleanup(h1.CloseIdleConnections)
	t.Cleanup(h2.CloseIdleConnections)
	t.Cleanup(func() { _ = h3.Close() })
	return []path{
		{client: &http.Client{Transport: h1, Timeout: caddytest.Patient}, url: "http://" + c.Site, name: "HTTP/1.1"},
		{client: &http.Client{Transport: h2, Timeout: caddytest.Patient}, url: "https://" + c.TLS, name: "HTTP/2.0"},
		{client: &http.Client{Transport: h3, Timeout: caddytest.Patient}, url: "https://" + c.TLS, name: "HTTP/3.0"},
	}
}

// ask sends a request for a key by this version of HTTP.
func (p path) ask(t *testing.T, key string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", p.url+"/?key="+key, nil)
	errtest.None(t, err)
	r.Header.Set("Accept-Encoding", "gzip, zstd")
	answer, err := p.client.Do(r)
	errtest.None(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.Proto != p.name {
		t.Errorf("Caddy answers by %s, not %s", answer.Proto, p.name)
	}
	return answer
}

// drawDocument returns a JSON text, and what it costs, if it has a value at the path. The tests of jsonvalue and of costs have all
// kinds of values.
func drawDocument(random *rand.Rand) (text string, cost int64, ok bool) {
	padding := strings.Repeat([]string{"a", `\"`, "é", "😀"}[random.IntN(4)], random.IntN(500))
	usage := "null"
	if ok = random.IntN(4) > 0; ok {
		cost = random.Int64N(100_000)
		usage = fmt.Sprintf(`{"prompt_tokens":7,"total_tokens":%d}`, cost)
	}
	format := `{"id":"%s","usage":%s,"choices":[{"usage":1}]}`
	if random.IntN(2) == 0 {
		format = "{\n  \"id\": \"%s\",\n  \"usage\": %s\n}"
	}
	return fmt.Sprintf(format, padding, usage), cost, ok
}

// cut divides a text into pieces of random sizes.
func cut(text string, random *rand.Rand) (pieces []string) {
	for most := 1 + random.IntN(len(text)+1); len(text) > 0; {
		n := min(len(text), 1+random.IntN(most))
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return pieces
}

// The client receives each byte of any response, however it is sent, and its request is charged as the
// document says. That is so as soon as the client has the whole response.
func TestSettleByAnyBody(t *testing.T) {
	t.Parallel()
	seed := cmp.Or(*bodySeed, rand.Uint64())
	t.Logf("-body-seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	u := startScripted(t)
	c := caddytest.Start(t, scriptedSite(t, u, totalTokens, ""))
	n := 0
	for _, version := range versions(t, c) {
		for range seedtest.Cases(t, 50) {
			n++
			key, want, last := strconv.Itoa(n), int64(10), ""
			header := []string{"Content-Type", "application/json"}
			body, cost, ok := drawDocument(random)
			if ok {
				want = cost
			}
			if random.IntN(2) == 0 {
				header, body = []string{"Content-Type", "text/event-stream"}, ""
				want = 10
				lineEnd := []string{"\n", "\r\n", "\r"}[random.IntN(3)]
				for range random.IntN(6) {
					document, cost, ok := drawDocument(random)
					if random.IntN(3) == 0 {
						document = "[DONE]"
					} else if ok {
						want, last = cost, document
					}
					for line := range strings.Lines(document) {
						body += "data: " + strings.TrimSuffix(line, "\n") + lineEnd
					}
					body += lineEnd
				}
			}
			coding := []string{"", "gzip", "zstd"}[random.IntN(3)]
			pieces := cut(body, random)
			if coding != "" {
				pieces = caddytest.Compress(t, coding, pieces...)
				header = append(header, "Content-Encoding", coding)
			}
			if random.IntN(2) == 0 {
				pieces = cut(strings.Join(pieces, ""), random)
			}
			sent := strings.Join(pieces, "")
			if random.IntN(2) == 0 {
				header = append(header, "Content-Length", strconv.Itoa(len(sent)))
			}
			u.answer(key, with(header, pieces...))
			answer := version.ask(t, key)
			received, err := io.ReadAll(answer.Body)
			if err != nil || string(received) != sent {
				t.Errorf("%s %q: %v, %d bytes arrive, not the %d that were sent (-body-seed %d)", version.name, header, err, len(received), len(sent), seed)
			}
			if got := charged(t, c, key); got != want {
				t.Errorf("%s %q in %d pieces is charged %d, want %d by %q (-body-seed %d)", version.name, header, len(pieces), got, want, last, seed)
			}
		}
	}
}

// No byte waits for the next one: the upstream sends a piece only when the client has the piece before.
func TestBodyIsNotDelayed(t *testing.T) {
	t.Parallel()
	u := startScripted(t)
	c := caddytest.Start(t, strings.ReplaceAll(scriptedSite(t, u, totalTokens, ""), "reverse_proxy "+u.address, "reverse_proxy "+u.address+" {\n\t\tflush_interval -1\n\t}"))
	events := []string{": hi", "\n\ndata: {\"usage\":", "null}\n", "\n", "data: {\"usage\":{\"total_tokens\":35}}\n\n", "data: [DONE]\n\n"}
	document := []string{"{", `"usage":{"total_`, `tokens":3`, `5}`, `,"x":"`, `"}`}
	n := 0
	for _, version := range versions(t, c) {
		for _, coding := range []string{"", "gzip", "zstd"} {
			for contentType, pieces := range map[string][]string{"application/json": document, "text/event-stream": events} {
				for _, hasLength := range []bool{false, true} {
					n++
					key := strconv.Itoa(n)
					pieces := caddytest.Compress(t, coding, pieces...)
					arrived := make(chan struct{})
					u.answer(key, func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Content-Type", contentType)
						if coding != "" {
							w.Header().Set("Content-Encoding", coding)
						}
						if hasLength {
							w.Header().Set("Content-Length", strconv.Itoa(len(strings.Join(pieces, ""))))
						}
						for _, piece := range pieces {
							_, _ = io.WriteString(w, piece)
							_ = http.NewResponseController(w).Flush()
							select {
							case <-arrived:
							case <-r.Context().Done():
								return
							}
						}
					})
					answer := version.ask(t, key)
					for i, piece := range pieces {
						received := make([]byte, len(piece))
						if _, err := io.ReadFull(answer.Body, received); err != nil || string(received) != piece {
							t.Fatalf("%s %s %q: of piece %d arrives %q, %v", version.name, contentType, coding, i, received, err)
						}
						arrived <- struct{}{}
					}
					if rest, err := io.ReadAll(answer.Body); err != nil || len(rest) > 0 {
						t.Errorf("at the end there is %q, %v", rest, err)
					}
					if got := charged(t, c, key); got != 35 {
						t.Errorf("%s %s %q is charged %d", version.name, contentType, coding, got)
					}
				}
			}
		}
	}
}
