package main

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// serve starts a server that counts the requests of each key.
func serve(t *testing.T, respond http.HandlerFunc) (addr string, counts map[string]int) {
	t.Helper()
	var mu sync.Mutex
	counts = make(map[string]int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		counts[r.Header.Get("X-Key")+" "+r.Header.Get("X-Plan")]++
		if inBody, _, _ := strings.Cut(strings.TrimPrefix(string(text), "key="), "&"); r.Method == "POST" {
			counts["in a body "+inBody]++
		}
		mu.Unlock()
		respond(w, r)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), counts
}

func TestFillSendsEachKeyOnce(t *testing.T) {
	addr, counts := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	const keys = 4096
	for depth, b := range map[int]body{1: {}, 16: {}, 2: {"application/x-www-form-urlencoded", "key=" + keyMark + "&x=1"}} {
		clear(counts)
		c, err := dial(addr, 8, depth, keys, nil, b)
		errtest.None(t, err)
		defer c.close()
		got, err := c.fill(keys)
		errtest.None(t, err)
		if len(got.waits) != keys || got.statuses[200] != keys {
			t.Errorf("depth %d: %d responses with statuses %v, want %d", depth, len(got.waits), got.statuses, keys)
		}
		if want := min(len(b.text), 1); counts["in a body 00000000"] != want || counts["in a body 00004095"] != want {
			t.Errorf("depth %d: the first and the last key were in %d and %d bodies", depth, counts["in a body 00000000"], counts["in a body 00004095"])
		}
		maps.DeleteFunc(counts, func(name string, _ int) bool { return strings.HasPrefix(name, "in a body") })
		if len(counts) != keys || counts["00000000 0001"] != 1 || counts["00004095 0096"] != 1 {
			t.Errorf("depth %d: %d keys of %d, and the last one came %d times", depth, len(counts), keys, counts["00004095 0096"])
		}
	}
}

func TestWrongAnswersAreFaults(t *testing.T) {
	var n int
	var mu sync.Mutex
	sometimes := func(do func(http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			n++
			now := n%50 == 0
			mu.Unlock()
			w.Header().Set("Ratelimit", `"bench";r=1;t=1`)
			if now {
				do(w)
			}
			_, _ = io.WriteString(w, "ok")
		}
	}
	right := sometimes(func(http.ResponseWriter) {})
	tests := map[string]struct {
		respond  http.HandlerFunc
		requests int
		want     string
	}{
		"none":                {right, fewest, ""},
		"another status":      {sometimes(func(w http.ResponseWriter) { w.WriteHeader(503) }), fewest, "503 to "},
		"a missing field":     {sometimes(func(w http.ResponseWriter) { w.Header().Del("Ratelimit") }), fewest, "lack one of the fields"},
		"no answer to most":   {right, fewest - 1, "responses, want at least"},
		"a closed connection": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, fewest, "closed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			addr, _ := serve(t, test.respond)
			s := &setup{directive: "rate_limit"}
			s.complete()
			c, err := dial(addr, 4, 1, s.keys, s.fields, s.body)
			errtest.None(t, err)
			defer c.close()
			// A turn of a benchmark ends by time. How many requests it has would depend on the machine.
			c.random = true
			got, err := c.send(func() bool { return c.requests < test.requests })
			err = errors.Join(err, s.check(got))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// A row of the summary that names no setup would silently be left out.
func TestEveryRowHasAValue(t *testing.T) {
	all := parts()
	m := make(measured)
	for _, p := range all {
		names := make(map[string]bool)
		for _, s := range p.setups {
			names[s.name] = true
			if s.reference != "" && !names[s.reference] {
				t.Errorf("%s: %s is compared with %q, which is not before it", p.name, s.name, s.reference)
			}
			s.rates, s.requests = []float64{1000, 2000, 3000}, 6000
			s.inCaddy, s.waits = 60*time.Millisecond, []time.Duration{time.Millisecond}
			s.inRedis = []time.Duration{20 * time.Millisecond, 10 * time.Millisecond}
			m[p.name+"/"+s.name] = s
		}
	}
	for _, r := range rows() {
		if value, ok := r.value(m); !ok && !strings.Contains(r.what, mholt) {
			t.Errorf("no value for %q", r.what)
		} else if strings.Contains(value, "NaN") {
			t.Errorf("%q is %s", r.what, value)
		}
	}
	all[2].setups[3].fault = errors.New("status 503")
	text := report(all, nil)
	for _, want := range []string{
		"| memory: requests/s | bare Caddy | 1.00 |", "| redis | failed: status 503 |",
		"| memory | 2000 | bare Caddy | 1.00 | 10.0 | | 1.0 ms |", ": capacity | one Redis | 1.50 |", "| 10.0 | 5.0, at most 3.3 in one | 1.0 ms |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "with one limit") {
		t.Error("a setup that failed is compared")
	}
	errtest.Report(t, xml.Unmarshal(plot(all), new(struct{})), "the plot")
}

func TestReplaceKeepsTheRest(t *testing.T) {
	page := "# Title\n" + begin + "old\n" + end + "below\n"
	got, err := replace(page, "new\n")
	if want := "# Title\n" + begin + "\nnew\n\n" + end + "below\n"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if again, _ := replace(got, "new\n"); again != got {
		t.Errorf("the second time it is %q, want %q", again, got)
	}
	if _, err := replace("# Title\n", "new\n"); err == nil {
		t.Error("no error without markers")
	}
}

func TestParseStat(t *testing.T) {
	ticks, err := parseStat("42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 123 45 0 0 20 0")
	if err != nil || ticks != 168 {
		t.Errorf("%d ticks, %v, want 168", ticks, err)
	}
	if _, err := parseStat("42 (a) S"); err == nil {
		t.Error("no error for too few fields")
	}
}
