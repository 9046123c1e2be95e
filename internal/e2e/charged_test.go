package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// chargedSite has zones that charge requests in all ways. The zone tokens settles by the body, and has a key with a
// small budget. The zone tried is a shadow, and soon denies. The zone kept also charges denied requests. The other
// zones delay requests.
const chargedSite = `{
	admin {$ADMIN}
	metrics
	rate_limit {
		%s
		zone tokens {
			key {query.key}
			cost 10
			calendar 100000000 year
			calendar 100000000 month
			override small {
				fixed_window 100 365d
			}
			settle {
				match status 2xx
				cost {http.rate_limit.response.json.usage.total_tokens}
			}
		}
	}
}
{$SITE}
log {
	output file %s
}
log_append appended_tokens {http.rate_limit.tokens.charged}
log_append rate_limit_charged_kept {http.rate_limit.kept.charged}
@limited not path /ready
rate_limit @limited tokens {
	zone tried {
		key static
		cost 10
		shadow
		calendar 3000 year
		settle {
			match status 2xx
		}
	}
	zone kept {
		match query kept=1
		key static
		cost 3
		mode uniform
		calendar 100000000 year
	}
	zone slots {
		match query slots=1
		key static
		concurrency 1
		delay 10s
	}
	zone paced {
		match query paced=1
		key static
		gcra 100 1s 1
		delay 10s
	}
}
rate_limit /twice tokens
test_hold
respond /ready ok
reverse_proxy %s
`

// usageUpstream answers with the usage that the query of a request says, as JSON or as a stream, and can break off.
func usageUpstream(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		q, control := r.URL.Query(), http.NewResponseController(w)
		usage := "{}"
		if q.Has("tokens") {
			usage = `{"usage":{"total_tokens":` + q.Get("tokens") + `}}`
		}
		wait := func(when string) {
			if q.Get("leave") == when {
				select {
				case <-r.Context().Done():
				case <-time.After(caddytest.Patient): // a bound, if the client never leaves
				}
			}
		}
		wait("early")
		status, _ := strconv.Atoi(q.Get("status"))
		if q.Has("stream") {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(max(status, 200))
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = control.Flush()
			_, _ = io.WriteString(w, "data: "+usage+"\n\n")
			_ = control.Flush()
		} else {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(max(status, 200))
			_, _ = io.WriteString(w, usage)
		}
		wait("late")
		if q.Has("abort") {
			_ = control.Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // first
	return s.Listener.Addr().String()
}

// drawCharged returns the path and the query of a random request.
func drawCharged(r *rand.Rand) string {
	one := func(of int, text string) string {
		if r.IntN(of) > 0 {
			return ""
		}
		return "&" + text
	}
	path, most := "/?key="+[]string{"a", "b", "c"}[r.IntN(3)], 5000
	switch r.IntN(10) {
	case 0:
		path, most = "/?key=small", 10 // no response costs more than was reserved: there may be no room
	case 1:
		path = "/twice?key=a"
	}
	if r.IntN(4) > 0 {
		path += fmt.Sprint("&tokens=", r.IntN(most+1))
	}
	path += one(2, "stream=1") + one(6, "status=503") + one(8, "slots=1&hold=3ms") + one(20, "paced=1")
	switch r.IntN(10) {
	case 0:
		return path + "&abort=1"
	case 1:
		return path + "&leave=early"
	case 2:
		return path + "&stream=1&leave=late"
	case 3:
		return path + "&panic=1"
	case 4:
		return path + "&leave=soon" // before or after anything
	}
	return path + one(2, "kept=1")
}

// sendCharged sends a request. Its client leaves as its query says.
func sendCharged(c *caddytest.Caddy, query string, soon time.Duration) {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	switch {
	case strings.Contains(query, "leave=early"):
		soon += 20 * time.Millisecond
		fallthrough
	case strings.Contains(query, "leave=soon"):
		defer time.AfterFunc(soon, leave).Stop()
	}
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+c.Site+query, nil) // POST is not sent again
	if err != nil {
		panic(err)
	}
	answer, err := caddytest.Client.Do(r)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	if strings.Contains(query, "leave=late") && answer.StatusCode != 429 {
		_, _ = bufio.NewReader(answer.Body).ReadString('\n')
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
}

// readCharges returns the sums of the charges in an access log by zone. A line whose handler hasn't panicked has the same
// charge from log_append.
func readCharges(t *testing.T, file string) (sums map[string]int64, appended int) {
	t.Helper()
	sums = make(map[string]int64)
	for line := range strings.Lines(caddytest.ReadFile(t, file)) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) != nil {
			continue // it is being written
		}
		for name, value := range fields {
			zone, ok := strings.CutPrefix(name, accesslog.ChargedPrefix)
			if charged, isNumber := value.(float64); ok && isNumber {
				sums[zone] += int64(charged)
			}
		}
		if value, ok := fields["appended_tokens"].(float64); ok {
			appended++
			if field := fields[accesslog.ChargedPrefix+"tokens"]; field != value {
				t.Errorf("log_append writes %v, want %v:\n%s", value, field, line)
			}
		}
	}
	return sums, appended
}

// countOf returns how many events a limit of a zone has charged its keys.
func countOf(t *testing.T, c *caddytest.Caddy, zone string, keys ...string) (charged int64) {
	t.Helper()
	for _, key := range keys {
		of := seen[adminapi.Key](t, c, "zones/"+zone+"/keys/"+key)
		for i, l := range of.Budgets[0].Limits {
			var algorithm string
			var events int64
			if _, err := fmt.Sscan(l.Limit, &algorithm, &events); err != nil {
				t.Fatal(l.Limit, err)
			}
			if other := of.Budgets[0].Limits[0]; i > 0 && l.Remaining != other.Remaining {
				t.Errorf("the limits of %s have %d and %d left", key, other.Remaining, l.Remaining)
			} else if i == 0 {
				charged += events - l.Remaining
			}
		}
	}
	return charged
}

// delayCharged has a request wait for a slot, and another one for a limit.
func delayCharged(t *testing.T, c *caddytest.Caddy) {
	t.Helper()
	inUse := func() int64 { return seen[adminapi.Key](t, c, "zones/slots/keys/static").Budgets[0].Concurrency.InUse }
	caddytest.EventuallySees(t, "the slot is free", inUse, func(n int64) bool { return n == 0 })
	ctx, leave := context.WithCancel(t.Context())
	first := c.Hold(ctx, "/?key=a&slots=1&leave=early")
	caddytest.EventuallySees(t, "the slot is in use", inUse, func(n int64) bool { return n == 1 })
	second := c.Hold(t.Context(), "/?key=a&slots=1")
	c.WaitForWaiters(t, 1)
	leave()
	<-first
	if status := <-second; status != 200 {
		t.Errorf("a request that waited for a slot got %d", status)
	}
	const delayed = `caddy_rate_limit_requests_total{outcome="delayed",zone="paced"}`
	caddytest.EventuallySees(t, "a request waits for the limit", func() float64 {
		caddytest.Flood(t, 10, 10, "/?key=a&paced=1", c)
		return caddytest.Metrics(t, c, delayed)[delayed]
	}, func(n float64) bool { return n > 0 })
}

// The charges in the access log add up to what the budgets are charged, in whatever way requests end. The counters of settled
// events add up to the same.
func TestChargesInLog(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	caddytest.EachStore(t, func(t *testing.T, use string) {
		file := filepath.Join(t.TempDir(), "access.log")
		c := caddytest.Start(t, fmt.Sprintf(chargedSite, use, file, usageUpstream(t)))
		const requests, clients = 1000, 10
		var wg sync.WaitGroup
		for i := range clients {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			wg.Go(func() {
				for range requests / clients {
					sendCharged(c, drawCharged(random), time.Duration(random.IntN(5_000))*time.Microsecond)
				}
			})
		}
		wg.Wait()
		delayCharged(t, c)
		appended := 0
		caddytest.EventuallySees(t, fmt.Sprintf("the sums are equal (seed %d)", seed), func() (sums [][3]int64) {
			logged, n := readCharges(t, file)
			appended = n
			settled := caddytest.Metrics(t, c, "caddy_rate_limit_settled_events_total")
			for _, zone := range []struct {
				name string
				keys []string
			}{{"tokens", []string{"a", "b", "c", "small"}}, {"tried", []string{"static"}}, {"kept", []string{"static"}}} {
				in := countOf(t, c, zone.name, zone.keys...)
				counted := int64(settled[`caddy_rate_limit_settled_events_total{zone="`+zone.name+`"}`])
				if zone.name == "kept" { // it doesn't settle, and has no counter
					counted += in
				}
				sums = append(sums, [3]int64{in, logged[zone.name], counted})
			}
			return sums
		}, func(sums [][3]int64) bool {
			for _, s := range sums {
				if s[0] == 0 || s[0] != s[1] || s[0] != s[2] {
					return false
				}
			}
			return true
		})
		outcomes := caddytest.Metrics(t, c, "caddy_rate_limit_requests_total")
		for _, outcome := range []string{
			`{outcome="denied",zone="tokens"}`, `{outcome="shadow_denied",zone="tried"}`, `{outcome="delayed",zone="slots"}`,
			`{outcome="delayed",zone="paced"}`,
		} {
			if outcomes["caddy_rate_limit_requests_total"+outcome] == 0 {
				t.Errorf("no request is %s", outcome)
			}
		}
		reserved := caddytest.Metrics(t, c, "caddy_rate_limit_reserved_events_total")
		for _, zone := range []string{"tokens", "tried"} {
			if n := reserved[`caddy_rate_limit_reserved_events_total{zone="`+zone+`"}`]; n == 0 || int64(n)%10 != 0 {
				t.Errorf("%v events are reserved in zone %s", n, zone)
			}
		}
		if len(reserved) != 2 || appended < requests/4 {
			t.Errorf("%v, and %d lines of log_append", reserved, appended)
		}
	})
}

// A simulation takes the cost of a request from its charge in the log.
func TestSimulateLoggedCharges(t *testing.T) {
	t.Parallel()
	s := loadSimulation(t, caddytest.Site(`zone tokens {
	cost 10
	fixed_window 1000 1h
	settle {
		match status 2xx
		cost {http.rate_limit.response.json.usage.total_tokens} or {http.response.header.X-Tokens}
	}
}
zone exports {
	cost {http.rate_limit.request.json.rows}
	fixed_window 1000 1h
}
zone granted {
	cost 5
	mode nary
	fixed_window 1000 1h
}
zone free {
	fixed_window 1000 1h
	override "" unlimited
	concurrency 5
}`))
	charges := map[string]int64{"tokens": 4242, "exports": 77, "granted": 2, "free": 9}
	for _, test := range []struct {
		name, header string
		status       int
		charged      map[string]int64
		want         string
	}{
		{"charges", "", 200, charges, "exports 77, free 0, granted 5, tokens 10 settles 4242"},
		{"a charge goes before a header field", "3", 200, charges, "exports 77, free 0, granted 5, tokens 10 settles 4242"},
		{"charges of 0 say nothing", "3", 200, map[string]int64{"tokens": 0, "exports": 0}, "exports 1, free 0, granted 5, tokens 10 settles 3"},
		{"without charges, the tokens and rows are not known", "", 200, nil, "free 0, granted 5"},
		{"a huge charge", "", 200, map[string]int64{"tokens": 1 << 60}, "free 0, granted 5, tokens 10 settles 2147483647"},
		{"a denied request", "", 429, charges, "exports 77, free 0, granted 5, tokens 10"},
	} {
		r := loggedGet("/")
		r.Status, r.Charged = test.status, test.charged
		if test.header != "" {
			r.ResponseHeader.Set("X-Tokens", test.header)
		}
		var got []string
		for h, v := 0, s.visit(t, r); h < len(v.Handlers); h++ {
			for i, z := range v.Handlers[h].Zones {
				text := fmt.Sprint(s.Zones()[z.Zone].Name, " ", v.Handlers[h].Requests[i].Cost)
				if z.Settled {
					text += fmt.Sprint(" settles ", z.TrueCost)
				}
				got = append(got, text)
			}
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
