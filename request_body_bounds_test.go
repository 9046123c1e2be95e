package ratelimit

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/readahead"
)

// serveInProcess starts a server with a handler in this process.
func serveInProcess(tb testing.TB, h *Handler, next caddyhttp.HandlerFunc) (address string) {
	tb.Helper()
	return caddytest.StartUpstream(tb, func(w http.ResponseWriter, r *http.Request) {
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil)
		if err := h.ServeHTTP(w, r, next); err != nil {
			w.WriteHeader(500)
		}
	})
}

// The memory of bodies is given back however a request ends, and no later than the next handler has
// read the body.
func TestBodyMemoryIsGivenBack(t *testing.T) {
	h := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}","limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
	body := `{"user":"alice"}`
	memory := bodies.NewMemory()
	h.limiter.BodyMemory, h.ReturnErrors = memory, true
	address := serveInProcess(t, h, func(w http.ResponseWriter, r *http.Request) error {
		if used := memory.Bodies.Used(); used < int64(len(body)) {
			t.Errorf("%d bytes taken while the body is kept", used)
		}
		switch r.URL.Path {
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/read":
			if got, err := io.ReadAll(r.Body); string(got) != body || err != nil {
				t.Errorf("read %q %v", got, err)
			}
			if used, values := memory.Bodies.Used(), memory.Values.Used(); used != 0 || values != int64(len("alice")) {
				t.Errorf("%d and %d bytes taken after the body is read", used, values)
			}
		case "/error":
			return caddyhttp.Error(502, nil)
		}
		return nil
	})
	given := func() bool { return memory.Bodies.Used() == 0 && memory.Values.Used() == 0 }
	for _, path := range []string{"/panic", "/read", "/error", "/denied"} {
		if r, err := caddytest.Client.Post("http://"+address+path, caddytest.JSONType, strings.NewReader(body)); err == nil {
			_ = r.Body.Close()
		}
		caddytest.Eventually(t, "the memory is given back after "+path, given)
	}
	for range 10 { // a client that disconnects
		conn, err := net.Dial("tcp", address)
		errtest.None(t, err)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n%500d", 1)
		caddytest.Eventually(t, "the body is being read", func() bool { return memory.Bodies.Used() >= 500 })
		_ = conn.Close()
		caddytest.Eventually(t, "the memory is given back after the client has disconnected", given)
	}
}

// postInProcess sends a body to a handler in this process, and returns the status of the response.
func postInProcess(ctx context.Context, t testing.TB, h *Handler, contentType, body string, next caddyhttp.HandlerFunc) (status int) {
	t.Helper()
	r, w := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(body)), httptest.NewRecorder()
	r.Header.Set("Content-Type", contentType)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil)
	errtest.Report(t, h.ServeHTTP(w, r, next))
	return w.Code
}

// readAll is a next handler that reads the body.
func readAll(_ http.ResponseWriter, r *http.Request) error {
	_, err := io.ReadAll(r.Body)
	return err
}

// smallMemory returns a memory with this many bytes of each kind.
func smallMemory(size int64) *bodies.Memory {
	return &bodies.Memory{
		Bodies: readahead.NewMemory(size), Delayed: readahead.NewMemory(size), Untimed: readahead.NewMemory(size), Values: readahead.NewMemory(size),
	}
}

// The values of slow responses leave room for other bodies, even if together they are larger than the memory. Later
// placeholders have the values that fit into a separate memory. A long key is not kept, and its slot
// is given back.
func TestSlowResponsesLeaveRoomForBodies(t *testing.T) {
	const values, requests = 4, 30
	memory := smallMemory(1 << 20) // for the values of 15 requests
	key, rest := "{http.rate_limit.request.json.user}", ""
	for i := range values {
		key += fmt.Sprintf("{http.rate_limit.request.json.v%d}", i)
		rest += fmt.Sprintf(`,"v%d":"%s"`, i, strings.Repeat("x", 16<<10))
	}
	h := loadHandler(t, `"z":{"key":"`+key+`","max_body":{"bytes":100000},"body_timeout":"1h","concurrency":1,
		"limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
	h.limiter.BodyMemory = memory
	type answer struct {
		status, key int
		value       string
	}
	answers, hold := make(chan answer, 1), make(chan struct{})
	var wg sync.WaitGroup
	statuses, kept, longest := make(map[int]int), 0, 0
	for user := range requests {
		wg.Go(func() {
			passed := false
			status := postInProcess(t.Context(), t, h, caddytest.JSONType, fmt.Sprintf(`{"user":"%d"%s}`, user, rest), func(w http.ResponseWriter, r *http.Request) error {
				passed = true
				if err := readAll(w, r); err != nil {
					return err
				}
				repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
				state, _ := repl.Get(limiter.PlaceholderPrefix)
				value, _ := repl.GetString("http.rate_limit.request.json.v0")
				answers <- answer{200, len(state.(*limiter.State).Entries[0].Key), value}
				<-hold
				return nil
			})
			if !passed {
				answers <- answer{status: status}
			}
		})
		a := <-answers
		statuses[a.status]++
		longest = max(longest, a.key)
		if a.value != "" {
			kept++
		}
	}
	if statuses[200] != requests || longest > 1200 {
		t.Errorf("statuses %v, %d bytes of a key are kept", statuses, longest)
	}
	if kept == 0 || kept == requests {
		t.Errorf("%d of %d requests keep their values", kept, requests)
	}
	close(hold)
	wg.Wait()
	for user := range 2 { // its slot is free again
		if status := postInProcess(t.Context(), t, h, caddytest.JSONType, fmt.Sprintf(`{"user":"%d"%s}`, user, rest), readAll); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if used, values := memory.Bodies.Used(), memory.Values.Used(); used != 0 || values != 0 {
		t.Errorf("%d and %d bytes taken in the end", used, values)
	}
}

// A value needs memory, too. A body whose value finds none is denied, and the body is given back.
func TestBodyValuesNeedMemory(t *testing.T) {
	h := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}","limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
	body := `{"user":"alice"}`
	for missing, status := range []int{200, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			h.limiter.BodyMemory = smallMemory(int64(len(body) + 1 + len("alice") - missing)) // one byte shows the end of the body
			if got := postInProcess(t.Context(), t, h, caddytest.JSONType, body, readAll); got != status {
				t.Errorf("status %d", got)
			}
			if used := h.limiter.BodyMemory.Bodies.Used(); used != 0 {
				t.Errorf("%d bytes are not given back", used)
			}
		})
	}
}

// withDeadlines counts the deadlines that are set for reading the body.
type withDeadlines struct {
	*httptest.ResponseRecorder
	set int
}

func (w *withDeadlines) SetReadDeadline(time.Time) error {
	w.set++
	return nil
}

// Only a zone that denies each late body sets a deadline for it, because the body could not be read on after it.
func TestBodyDeadlines(t *testing.T) {
	for options, set := range map[string]int{
		"": 2, `"enforce":100,`: 2, `"enforce":99,`: 0, `"shadow":true,`: 0, `"max_body":{"pass":true},`: 0,
	} {
		h := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}",`+options+`"limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
		w, r := &withDeadlines{httptest.NewRecorder(), 0}, httptest.NewRequest("POST", "/", strings.NewReader(`{"user":"alice"}`))
		r.Header.Set("Content-Type", caddytest.JSONType)
		err := h.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil), caddyhttp.HandlerFunc(readAll))
		if err != nil || w.set != set {
			t.Errorf("%s: %d deadlines, want %d, error %v", options, w.set, set, err)
		}
	}
}

// Bodies for which a zone waits without a timeout leave room for other bodies.
func TestUntimedBodiesLeaveRoomForBodies(t *testing.T) {
	const limits = `"limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]`
	shadow := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}","shadow":true,`+limits+`}`)
	enforcing := loadHandler(t, `"y":{"key":"{http.rate_limit.request.json.user}",`+limits+`}`)
	memory := smallMemory(5000) // for one buffer
	shadow.limiter.BodyMemory, enforcing.limiter.BodyMemory = memory, memory
	address := serveInProcess(t, shadow, readAll)
	slowBodies(t, address, 1, `{"user":`)
	caddytest.Eventually(t, "the body waits", func() bool { return memory.Untimed.Used() > 0 })
	for _, h := range []*Handler{enforcing, shadow} {
		if status := postInProcess(t.Context(), t, h, caddytest.JSONType, `{"user":"alice"}`, readAll); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if used := memory.Bodies.Used(); used != 0 {
		t.Errorf("%d bytes taken from other bodies", used)
	}
}

// A body that can't be read is denied, also if its factor would be 0.
func TestFactorOfUnreadableBody(t *testing.T) {
	h := loadHandler(t, `"z":{"factor":"0{http.rate_limit.request.json.factor}","limits":[{"algorithm":"token_bucket","events":3,"window":"1h"}]}`)
	for body, status := range map[string]int{`{"factor":2}`: 200, `{"factor":`: 400} {
		if got := postInProcess(t.Context(), t, h, caddytest.JSONType, body, readAll); got != status {
			t.Errorf("%s: status %d, want %d", body, got, status)
		}
	}
}

// Delayed requests leave room for other bodies. Without room in their own memory, a request isn't delayed.
func TestDelayedBodiesLeaveRoomForBodies(t *testing.T) {
	const length, room = 3000, 10_000
	memory := smallMemory(room)
	zone := func(name, delay string) *Handler {
		h := loadHandler(t, `"`+name+`":{"cost":"{http.rate_limit.request.form.cost}"`+delay+`,"limits":[{"algorithm":"token_bucket","events":1,"window":"1h"}]}`)
		h.limiter.BodyMemory = memory
		return h
	}
	slow, quick := zone("delaying", `,"delay":{"max":"9h"}`), zone("other", "")
	body := "cost=1&x="
	body += strings.Repeat("x", length-len(body))
	if status := postInProcess(t.Context(), t, slow, caddytest.FormType, body, readAll); status != 200 {
		t.Errorf("the first request has status %d", status)
	}
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for n := range room / length {
		wg.Go(func() {
			if status := postInProcess(ctx, t, slow, caddytest.FormType, body, readAll); status != 499 {
				t.Errorf("a delayed request has status %d", status)
			}
		})
		caddytest.Eventually(t, "a request is delayed", func() bool {
			return memory.Delayed.Used() == int64(n+1)*(length+1) && memory.Bodies.Used() == 0
		})
	}
	for h, want := range map[*Handler]int{slow: 429, quick: 200} {
		if status := postInProcess(t.Context(), t, h, caddytest.FormType, body, readAll); status != want {
			t.Errorf("status %d beside delayed requests, want %d", status, want)
		}
	}
	leave()
	wg.Wait()
	if used, delayed := memory.Bodies.Used(), memory.Delayed.Used(); used != 0 || delayed != 0 {
		t.Errorf("%d and %d bytes are not given back", used, delayed)
	}
}

// A slow response of a handler that doesn't read the body leaves room for other bodies. A handler that has begun to
// read gets all of the body.
func TestUnreadBodiesLeaveRoomForBodies(t *testing.T) {
	zone := `"limits":[{"algorithm":"token_bucket","events":100,"window":"1h"}]`
	body := `{"user":"alice","factor":0}`
	for _, options := range []string{`"key":"{http.rate_limit.request.json.user}",`, `"factor":"{http.rate_limit.request.json.factor}",`} {
		h := loadHandler(t, `"z":{`+options+zone+`}`)
		h.limiter.BodyMemory = bodies.NewMemory()
		for _, begins := range []int{0, 1} {
			postInProcess(t.Context(), t, h, caddytest.JSONType, body, func(w http.ResponseWriter, r *http.Request) error {
				_, _ = io.ReadFull(r.Body, make([]byte, begins))
				w.WriteHeader(http.StatusEarlyHints)
				if used := h.limiter.BodyMemory.Bodies.Used(); used != int64(len(body)+1) {
					t.Errorf("%d bytes taken before the response", used)
				}
				w.WriteHeader(http.StatusAccepted)
				used := h.limiter.BodyMemory.Bodies.Used()
				rest, err := io.ReadAll(r.Body)
				switch {
				case begins == 0 && (used != 0 || err != http.ErrBodyReadAfterClose):
					t.Errorf("%d bytes taken during the response, %q %v", used, rest, err)
				case begins > 0 && (string(rest) != body[begins:] || err != nil):
					t.Errorf("read %q %v", rest, err)
				}
				return nil
			})
		}
	}
}
