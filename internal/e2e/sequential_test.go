package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

func init() {
	caddy.RegisterModule(shaped{})
	httpcaddyfile.RegisterHandlerDirective("test_shaped", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return shaped{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("test_shaped", httpcaddyfile.Before, "respond")
}

// shaped responds in the shape that the request names. Where the client can know that the
// response is complete, it sends all of it, and returns a while after.
type shaped struct{}

func (shaped) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_shaped", New: func() caddy.Module { return new(shaped) }}
}

func (shaped) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	q := r.URL.Query()
	shape := q.Get("shape")
	if shape == "" {
		return next.ServeHTTP(w, r)
	}
	length := shapes[shape]
	if length >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	}
	switch shape {
	case "small":
		_, _ = w.Write([]byte("ok"))
	case "chunks":
		_, _ = w.Write(caddytest.LargeBody[:1000])
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(caddytest.LargeBody[:1000])
	case "trailer":
		w.Header().Set("Trailer", "X-Tokens")
		_, _ = w.Write(caddytest.LargeBody[:1000])
		w.Header().Set("X-Tokens", "0")
	case "length":
		_, _ = w.Write(caddytest.LargeBody[:length/2])
		_, _ = w.Write(caddytest.LargeBody[:length-length/2])
	case "empty", "HEAD":
		w.WriteHeader(http.StatusOK)
	case "204":
		w.Header().Del("Content-Length")
		w.WriteHeader(http.StatusNoContent)
	case "file":
		file, err := os.Open(filepath.Join(os.Getenv("HOME"), shapedFile))
		if err != nil {
			return err
		}
		defer file.Close()
		_, _ = io.CopyN(w, file, length)
	}
	if length >= 0 {
		_ = http.NewResponseController(w).Flush()
		time.Sleep(10 * time.Millisecond) // a client that has the whole body sends its next request meanwhile
	}
	return nil
}

// shapes are the shapes of a response, and the length of its body; -1: only its end tells.
var shapes = map[string]int64{"chunks": -1, "trailer": -1, "small": -1, "length": 5000, "empty": 0, "HEAD": 0, "204": 0, "file": 50_000}

const shapedFile = "test_shaped" // what to send in shape file; it is in the directory of the Caddy

// ask sends a request and reads the response until that is complete by what it has said, not
// by what becomes of its stream.
func ask(client *http.Client, url, shape string) (status int, err error) {
	method := "GET"
	if shape == "HEAD" {
		method = shape
	}
	ctx, cancel := context.WithTimeout(context.Background(), caddytest.Patient)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	if length := shapes[shape]; length >= 0 && answer.StatusCode < 300 {
		// The rest, the end of the stream, comes when the handler has returned.
		defer func() { go func() { _, _ = io.Copy(io.Discard, answer.Body); _ = answer.Body.Close() }() }()
		body := make([]byte, length)
		if _, err = io.ReadFull(answer.Body, body); err == nil && shape == "file" && !bytes.Equal(body, caddytest.LargeBody[:length]) {
			err = fmt.Errorf("the body of shape %s isn't what was sent", shape)
		}
		return answer.StatusCode, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// A client sends one request after the other to one instance. It is never denied by its own last
// request, also where Redis is far away. It can learn in any way that a response is complete.
func TestClientIsNotDeniedByItsLastRequest(t *testing.T) {
	t.Parallel()
	cert := redistest.NewCertificates(t)
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			use := ""
			if store == "redis" {
				relay := redistest.StartAudit(t, redistest.Start(t))
				relay.Delay(5 * time.Millisecond)
				use = "redis " + relay.Addr + " {\n timeout 30s\n}\non_store_error deny"
			}
			config := caddytest.Site(`zone one {
	match path /one
	key {query.key}
	concurrency 1
}
zone many {
	match path /many
	key static
	concurrency 16
}
zone settled {
	match path /settled
	key {query.key}
	token_bucket 1 1000h 1
	settle {
		match status 5xx
	}
}
zone trailer {
	match {
		path /settled
		query shape=trailer
	}
	key {query.key}
	token_bucket 1 1000h 1
	settle {
		cost {http.response.header.X-Tokens}
	}
}
` + use)
			config = strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tauto_https disable_redirects", 1)
			config = strings.Replace(config, "{$SITE}\n", "(all) {\n", 1) +
				"}\n{$SITE} {\n\timport all\n}\n{$TLS} {\n\ttls " + cert.Cert + " " + cert.Key + "\n\timport all\n}\n"
			c := caddytest.Start(t, strings.Replace(config, "respond ok", "test_shaped\nrespond ok", 1))
			for _, variable := range c.Env {
				if home, ok := strings.CutPrefix(variable, "HOME="); ok {
					caddytest.WriteFile(t, filepath.Join(home, shapedFile), string(caddytest.LargeBody), 0o600)
				}
			}
			insecure := &tls.Config{InsecureSkipVerify: true}
			h3 := &http3.Transport{TLSClientConfig: insecure}
			t.Cleanup(func() { _ = h3.Close() })
			for _, protocol := range []struct {
				name, url string
				transport http.RoundTripper
			}{
				// A connection of HTTP/1.1 takes a request when the one before has ended.
				{"HTTP/1.1", "http://" + c.Site, &http.Transport{DisableKeepAlives: true, DisableCompression: true}},
				{"HTTP/2", "https://" + c.TLS, &http.Transport{TLSClientConfig: insecure, ForceAttemptHTTP2: true, DisableCompression: true}},
				{"HTTP/3", "https://" + c.TLS, h3},
			} {
				client := &http.Client{Transport: protocol.transport}
				for _, path := range []string{"/one", "/many", "/settled"} {
					t.Run(protocol.name+path, func(t *testing.T) {
						checkSequentialClients(t, client, protocol.url+path)
					})
				}
			}
		})
	}
}

func checkSequentialClients(t *testing.T, client *http.Client, url string) {
	const clients, rounds = 16, 1
	var mu sync.Mutex
	all, denied := 0, make(map[string]int)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for range rounds {
				for shape := range shapes {
					address := fmt.Sprintf("%s?key=%s-%d&shape=%s", url, t.Name(), i, shape)
					status, err := ask(client, address, shape)
					for tries := 0; status == http.StatusServiceUnavailable && tries < 10; tries++ {
						status, err = ask(client, address, shape) // a slow machine sheds requests
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					all++
					if status >= 300 {
						denied[fmt.Sprint(shape, " ", status)]++
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if len(denied) > 0 {
		t.Errorf("of %d requests were denied, by shape: %v", all, denied)
	}
	if want := clients * rounds * len(shapes); all != want {
		t.Errorf("%d requests, want %d", all, want)
	}
}
