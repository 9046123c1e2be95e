package adminclient

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// A caller waits for an answer for ten seconds, and not for longer. Then it learns whether a change may have been made.
func TestPatience(t *testing.T) {
	t.Cleanup(func() { dial = new(net.Dialer).DialContext })
	for _, test := range []struct {
		takes  time.Duration
		method string
		want   string // the error
	}{
		{0, "PUT", ""},
		{patience - 1, "GET", ""},
		{patience - 1, "PUT", ""},
		{patience + 1, "GET", "no Caddy answers at a:1 (no answer within 10s): start Caddy"},
		{patience + 1, "PUT", "no Caddy answers at a:1 (no answer within 10s, so it is unknown whether a change was made): start Caddy"},
		{1000 * time.Hour, "DELETE", "no answer within 10s, so it is unknown"},
	} {
		synctest.Test(t, func(t *testing.T) {
			dial = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() {
					defer far.Close()
					_, _ = http.ReadRequest(bufio.NewReader(far))
					time.Sleep(test.takes) // virtual time
					_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				}()
				return near, nil
			}
			began := time.Now()
			_, body, err := Instance("a:1").Send(t.Context(), test.method, "zones", nil)
			took := time.Since(began)
			time.Sleep(test.takes) // virtual time: the server ends
			switch {
			case test.want == "":
				if string(body) != "{}" || err != nil || took != test.takes {
					t.Errorf("an answer after %v: %s, %v after %v", test.takes, body, err, took)
				}
			case err == nil || !strings.Contains(err.Error(), test.want) || took != patience:
				t.Errorf("an answer after %v: %v after %v, want %s", test.takes, err, took, test.want)
			}
		})
	}
}

// Only a part is read of an answer that has no end.
func TestLongAnswer(t *testing.T) {
	t.Cleanup(func() { dial = new(net.Dialer).DialContext })
	synctest.Test(t, func(t *testing.T) {
		dial = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				_, _ = http.ReadRequest(bufio.NewReader(far))
				_, err := io.WriteString(far, "HTTP/1.1 200 OK\r\n\r\n")
				for part := strings.Repeat("0", 1<<20); err == nil; {
					_, err = io.WriteString(far, part)
				}
			}()
			return near, nil
		}
		_, _, err := Instance("a:1").Send(t.Context(), "GET", "zones", nil)
		if want := "the answer of a:1 is longer than 67108864 bytes: is it the admin endpoint of Caddy?"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// The endpoint can be a socket, and can have a list of origins. Only answers of an admin API are returned.
func TestSend(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.None(t, err)
	address := tcp.Addr().String()
	listeners, accepted := map[Instance]net.Listener{Instance(address): tcp}, map[string]string{address: "http://" + address}
	if runtime.GOOS != "windows" {
		t.Chdir(t.TempDir())       // the path of a socket must be short
		accepted["127.0.0.1"] = "" // as Caddy's own commands have it
		for name, permissions := range map[string]string{"a.sock": "", "b.sock": "|0222"} {
			socket, err := net.Listen("unix", name)
			errtest.None(t, err)
			listeners[Instance("unix/"+filepath.ToSlash(name)+permissions)] = socket
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/rate_limit/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if origin, known := accepted[r.Host]; !known || r.Header.Get("Origin") != origin || string(body) != "{}" {
			t.Errorf("host %s, origin %s, body %s", r.Host, r.Header.Get("Origin"), body)
		}
		switch r.URL.Path {
		case "/rate_limit/zones":
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "{}")
		case "/rate_limit/ban":
			w.WriteHeader(http.StatusNoContent)
		case "/rate_limit/moved":
			http.Redirect(w, r, "/config/", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	})
	mux.HandleFunc("/config/", func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	for i, listener := range listeners {
		server := &http.Server{Handler: mux}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		for path, want := range map[string]string{
			"zones": "409 {}", "ban": "204 ", "moved": "answers with status 302", "nothing": "has no admin API for rate limits",
		} {
			status, answer, err := i.Send(t.Context(), "PUT", path, []byte("{}"))
			got := fmt.Sprintf("%d %s", status, answer)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) {
				t.Errorf("%s at %s: %s, want %s", path, i, got, want)
			}
		}
	}
}
