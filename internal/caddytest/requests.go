package caddytest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Get asks for a path; header is pairs of name and value.
func (c *Caddy) Get(t testing.TB, path string, header ...string) Response {
	t.Helper()
	r, err := c.Do("GET", "http://"+c.Site+path, "", header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Do sends a request, also to the admin endpoint; header is pairs of name and value. A GET of the admin endpoint is sent again
// if Caddy closes its connection: it waits five seconds for a request, and then closes a connection without one.
func (c *Caddy) Do(method, url, body string, header ...string) (Response, error) {
	request, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	request.Close = request.URL.Host == c.Admin // which ends with the configuration, idle connections and all
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	r, err := Client.Do(request)
	for again := 3; again > 0 && request.Close && method == "GET" && errors.Is(err, io.EOF); again-- {
		r, err = Client.Do(request)
	}
	if err != nil {
		return Response{}, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return Response{r, string(text)}, err
}

// Flood sends a number of requests at once over several connections to one or
// more Caddys, and counts the statuses.
func Flood(t testing.TB, requests, connections int, path string, to ...*Caddy) map[int]int {
	t.Helper()
	var mu sync.Mutex
	statuses := make(map[int]int)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for n := i; n < requests; n += connections {
				c := to[n%len(to)]
				r, err := c.Do("GET", "http://"+c.Site+path, "")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				statuses[r.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return statuses
}

// Hold sends a request that stays in flight; what came of it arrives when it ends.
func (c *Caddy) Hold(ctx context.Context, path string) <-chan int {
	done := make(chan int, 1)
	go func() {
		request, err := http.NewRequestWithContext(ctx, "POST", "http://"+c.Site+path, nil)
		if err != nil {
			panic(err)
		}
		r, err := Client.Do(request)
		if err != nil {
			done <- 0
			return
		}
		_ = r.Body.Close()
		done <- r.StatusCode
	}()
	return done
}

// Remaining asks the admin endpoint what the first limit of a key has left.
func (c *Caddy) Remaining(t *testing.T, zone, key string) int64 {
	t.Helper()
	return c.firstLimit(t, zone, key).Remaining
}

// Content types of request bodies.
const JSONType, FormType = "application/json", "application/x-www-form-urlencoded"

// Post sends a body of a type.
func (c *Caddy) Post(t testing.TB, path, contentType, body string, header ...string) Response {
	t.Helper()
	r, err := c.Do("POST", "http://"+c.Site+path, body, append(header, "Content-Type", contentType)...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// SendRaw sends a request as it is written, with {host} replaced, and returns the connection.
func (c *Caddy) SendRaw(t testing.TB, request string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Site)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(Patient))
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "{host}", c.Site)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// ReadResponse reads a response from a connection.
func ReadResponse(t testing.TB, from *bufio.Reader) Response {
	t.Helper()
	r, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Response{r, string(body)}
}

// Compress compresses pieces, each of which can be decoded on its own arrival.
func Compress(t testing.TB, coding string, pieces ...string) (compressed []string) {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	}
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		encoder, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = encoder
	default:
		return pieces
	}
	for _, piece := range pieces {
		_, _ = io.WriteString(w, piece)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		compressed = append(compressed, b.String())
		b.Reset()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(compressed, b.String())
}
