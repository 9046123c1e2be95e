package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

var settleSeed = flag.Uint64("settle-seed", 0, "which requests TestSettleAddsUp draws (default: others each time)")

func init() {
	caddy.RegisterModule(witness{})
	httpcaddyfile.RegisterHandlerDirective("test_witness", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) { return witness{}, nil })
}

// witness stands before and behind rate_limit in a test's Caddy. Before it, it counts the
// requests that are not over; behind it, it notes what is answered to those that get there.
// It tells of both on the path /witness. On the path /witness/new it forgets all, for a new test.
type witness struct{}

// testimony has the known facts about all requests so far.
type testimony struct {
	InFlight int
	Seen     map[string]*sight // by the query parameter id
}

// sight is the answer to a request.
type sight struct {
	Status          int    // 0: nothing
	Written         bool   // by a handler; else an error tells it
	Tokens, Trailer string // what it costs
}

var witnessed = struct {
	sync.Mutex
	testimony
}{testimony: testimony{Seen: make(map[string]*sight)}}

func (witness) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_witness", New: func() caddy.Module { return new(witness) }}
}

func (witness) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	if strings.HasPrefix(r.URL.Path, "/witness") {
		witnessed.Lock()
		defer witnessed.Unlock()
		if r.URL.Path == "/witness/new" {
			witnessed.testimony = testimony{Seen: make(map[string]*sight)}
		}
		return json.NewEncoder(w).Encode(witnessed.testimony)
	}
	key := caddy.CtxKey("test_witness")
	if r.Context().Value(key) == nil { // before rate_limit
		count := func(n int) {
			witnessed.Lock()
			defer witnessed.Unlock()
			witnessed.InFlight += n
		}
		count(1)
		defer count(-1)
		return next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key, true)))
	}
	s, returned := new(sight), false
	defer func() {
		if s.Status == 0 && (!returned || err != nil) {
			s.Status = http.StatusInternalServerError
			var known caddyhttp.HandlerError
			if errors.As(err, &known) {
				s.Status = known.StatusCode
			}
		}
		if w.Header().Get("Trailer") != "" {
			s.Trailer = w.Header().Get("X-Tokens")
		}
		witnessed.Lock()
		defer witnessed.Unlock()
		witnessed.Seen[r.URL.Query().Get("id")] = s
	}()
	err = next.ServeHTTP(&witnessWriter{&caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, s}, r)
	returned = true
	return err
}

type witnessWriter struct {
	*caddyhttp.ResponseWriterWrapper
	sight *sight
}

func (w *witnessWriter) WriteHeader(status int) { // which reverse_proxy always calls
	if w.sight.Status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.sight.Status, w.sight.Tokens, w.sight.Written = status, w.Header().Get("X-Tokens"), true
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// faulty is an upstream that answers as the query of a request says, or doesn't.
func faulty(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		q := r.URL.Query()
		pause := func(of string) {
			d, _ := time.ParseDuration(q.Get(of))
			time.Sleep(d) // clients leave meanwhile
		}
		pause("think")
		if q.Has("close") {
			panic(http.ErrAbortHandler)
		}
		if q.Has("tokens") {
			w.Header().Set("X-Tokens", q.Get("tokens"))
		}
		if q.Has("trailer") {
			w.Header().Set("Trailer", "X-Tokens")
		}
		status, _ := strconv.Atoi(q.Get("status"))
		w.WriteHeader(status)
		if status == http.StatusNoContent {
			return
		}
		_, _ = io.WriteString(w, "the beginning")
		_ = http.NewResponseController(w).Flush()
		pause("write")
		if q.Has("abort") {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, " and the end")
		if q.Has("trailer") {
			w.Header().Set("X-Tokens", q.Get("trailer"))
		}
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // first
	return s.Listener.Addr().String()
}

// settledZone is a zone of the test, and by what rule its responses are charged.
type settledZone struct {
	name    string
	limit   string // of settledBudget, nothing of which comes back during the test
	options string
	charges func(status int) bool
	tokens  bool // what the response says it costs
}

const settledBudget = 10_000

func settledZones() []settledZone {
	tokens := "\n cost {http.response.header.X-Tokens}"
	every := func(int) bool { return true }
	return []settledZone{
		{"failures", "fixed_window 10000 1000d", "settle {\n match status 401 5xx\n }", func(s int) bool { return s == 401 || s/100 == 5 }, false},
		{"spent", "token_bucket 1 50h 10000", "settle {" + tokens + "\n }", every, true},
		{"answers", "sliding_log 10000 1000d", "settle {\n match status 2xx" + tokens + "\n }", func(s int) bool { return s/100 == 2 }, true},
		{"errors", "gcra 1 50h 10000", "settle {\n match status 4xx 5xx" + tokens + "\n }", func(s int) bool { return s/100 == 4 || s/100 == 5 }, true},
		{"drips", "leaky_bucket 1 50h 10000", "shadow\n settle {\n match status 200" + tokens + "\n }", func(s int) bool { return s == 200 }, true},
		{"slides", "sliding_window 10000 1000d", "settle {\n match status 404\n }", func(s int) bool { return s == 404 }, false},
		{"several", "fixed_window 10000 1000d\n token_bucket 1 50h 10000\n concurrency 1000", "settle {" + tokens + "\n }", every, true},
		{"plain", "gcra 1 50h 10000", "", every, false},
		// All of it is given back, which lifts no budget above untouched.
		{"nothing", "token_bucket 1 50h 10000\n leaky_bucket 1 50h 10000\n gcra 1 50h 10000", "settle {\n match status 299\n }", func(int) bool { return false }, false},
	}
}

// worth returns the right charge for a response, if its request reserved so much.
func (z settledZone) worth(s *sight, reserved int) int {
	if s.Status == 499 {
		return reserved
	}
	if !z.charges(s.Status) {
		return 0
	}
	if z.tokens {
		for _, said := range []string{s.Tokens, s.Trailer} {
			if n, err := strconv.Atoi(said); err == nil && n >= 0 {
				return n
			}
		}
	}
	return reserved
}

// drawn is a random request.
type drawn struct {
	id    int
	query url.Values
	costs map[string]int // by the zones it belongs to
	leave time.Duration  // when its client hangs up; 0: never
}

func draw(random *rand.Rand, id int, zones []settledZone) drawn {
	d := drawn{id: id, query: url.Values{"id": {strconv.Itoa(id)}}, costs: make(map[string]int)}
	for _, z := range zones {
		if random.IntN(3) > 0 {
			d.costs[z.name] = random.IntN(10)
			d.query.Set(z.name, strconv.Itoa(d.costs[z.name]))
		}
	}
	millis := func(most int) string { return fmt.Sprint(random.IntN(most+1), "ms") }
	d.query.Set("status", []string{"200", "200", "201", "204", "401", "403", "404", "500", "503"}[random.IntN(9)])
	said := []string{"0", "3", "7", "12", "20", "many", "-1", ""}[random.IntN(8)]
	switch random.IntN(3) {
	case 0:
		d.query.Set("tokens", said)
	case 1:
		d.query.Set("trailer", said)
	}
	switch random.IntN(8) {
	case 0:
		d.query.Set("panic", "1")
	case 1:
		d.query.Set("close", "1")
	case 2:
		d.query.Set("abort", "1")
	case 3:
		d.query.Set("scarce", "1") // a zone that soon denies
	case 4, 5:
		d.query.Set("hold", millis(5))
		d.query.Set("think", millis(10))
		d.query.Set("write", millis(10))
		d.leave = time.Duration(1+random.IntN(20_000)) * time.Microsecond
	}
	return d
}

// send sends a request; what becomes of it, the client may not know: then status is 0.
func (d drawn) send(c *caddytest.Caddy) (status int) {
	ctx := context.Background()
	if d.leave > 0 {
		some, cancel := context.WithTimeout(ctx, d.leave)
		defer cancel()
		ctx = some
	}
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+c.Site+"/?"+d.query.Encode(), nil) // POST is not sent again
	if err != nil {
		panic(err)
	}
	answer, err := caddytest.Client.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// bounds are the least and the most that may have been charged.
type bounds struct{ least, most int }

// Requests and responses can end in any way. In the end the charge is the sum of the responses. If
// Redis fails meanwhile, the charge is at least that sum, without the costs above the reservations.
// It is at most the sum that all sent requests can have asked for.
func TestSettleAddsUp(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	seed := cmp.Or(*settleSeed, rand.Uint64())
	t.Logf("-settle-seed %d", seed)
	zones := settledZones()
	requests := min(seedtest.Cases(t, 400), 600) // more would use up the budgets
	config := func(use, upstream string) string {
		config, peek := "", ""
		for _, z := range zones {
			config += fmt.Sprintf("zone %s {\n match query %[1]s=*\n key static\n %[2]s\n cost {query.%[1]s}\n %[3]s\n}\n", z.name, z.limit, z.options)
			peek += fmt.Sprintf(" {http.rate_limit.%s.remaining}", z.name)
		}
		config += "zone scarce {\n match query scarce=1\n key static\n fixed_window 20 1000d\n}\n" + use
		config = strings.Replace(caddytest.Site(config), "rate_limit @limited {", "route {\n test_witness\n rate_limit @limited {", 1)
		return strings.Replace(config, "respond ok", fmt.Sprintf("test_witness\n test_hold\n respond /ready ok\n respond /peek \"%s\"\n reverse_proxy %s\n}", strings.TrimSpace(peek), upstream), 1)
	}
	// play sends requests over several connections until all are over. It returns a function, which returns what the
	// requests so far may have been charged.
	play := func(t *testing.T, c *caddytest.Caddy, requests int, failures bool) func() []bounds {
		t.Helper()
		var all []drawn
		random := rand.New(rand.NewPCG(seed, 1))
		for id := range requests {
			all = append(all, draw(random, id, zones))
		}
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				for n := i; n < len(all); n += 12 {
					if all[n].send(c) == http.StatusServiceUnavailable && failures {
						time.Sleep(50 * time.Millisecond) // it may be left alone for a while
					}
				}
			})
		}
		wg.Wait()
		var said testimony
		ask := func() {
			if r := c.Get(t, "/witness"); json.Unmarshal([]byte(r.Text), &said) != nil {
				t.Fatalf("%d %s", r.StatusCode, r.Text)
			}
		}
		over := time.Now() // a request whose client has left can come to be served late
		caddytest.Eventually(t, "no request is under way any more", func() bool {
			seen := len(said.Seen)
			ask()
			if said.InFlight > 0 || len(said.Seen) != seen {
				over = time.Now()
			}
			return time.Since(over) > time.Second
		})
		if len(said.Seen) < requests/3 && !failures {
			t.Errorf("%d of %d requests got through", len(said.Seen), requests)
		}
		t.Logf("%d requests, %d got through", requests, len(said.Seen))
		return func() []bounds {
			ask()
			sums := make([]bounds, len(zones))
			for _, d := range all {
				for i, z := range zones {
					reserved, asked := d.costs[z.name]
					if !asked {
						continue
					}
					s := said.Seen[strconv.Itoa(d.id)]
					switch {
					case s == nil && failures: // Redis may have charged, and its answer be lost
						sums[i].most += reserved
					case s == nil && d.leave > 0 && len(d.costs) == 1 && z.options == "":
						sums[i].most += reserved // its client left while Redis was asked, and nothing settles
					case s == nil: // denied, or its client left before it came
					case failures, d.leave > 0 && !s.Written: // a client that has left by then is charged
						worth := z.worth(s, reserved)
						sums[i].least += min(worth, reserved)
						sums[i].most += max(worth, reserved)
					default:
						worth := z.worth(s, reserved)
						sums[i].least += worth
						sums[i].most += worth
					}
				}
			}
			return sums
		}
	}
	all := url.Values{}
	for _, z := range zones {
		all.Set(z.name, "0")
	}
	check := func(t *testing.T, c *caddytest.Caddy, sums func() []bounds) {
		t.Helper()
		var left []string
		// On a slow machine a request, or its correction, can come long after its client has left.
		caddytest.EventuallySees(t, fmt.Sprintf("all charges are the sums (-settle-seed %d)", seed), func() (wrong []string) {
			sums := sums()
			r := c.Get(t, "/peek?"+all.Encode())
			if left = strings.Fields(r.Text); r.StatusCode != 200 || len(left) != len(zones) {
				t.Fatalf("%d %s", r.StatusCode, r.Text)
			}
			for i, z := range zones {
				n, err := strconv.Atoi(left[i])
				if z.name == "several" {
					n = remainingOf(t, r, z.name) // the slots are nearer to exhaustion
				}
				charged := settledBudget - n
				if err != nil || charged < sums[i].least || charged > sums[i].most {
					wrong = append(wrong, fmt.Sprintf("zone %s is charged %d, %v; want %+v", z.name, charged, err, sums[i]))
				}
			}
			return wrong
		}, func(wrong []string) bool { return wrong == nil })
		// Exactly the remaining events can be taken.
		last := slices.IndexFunc(zones, func(z settledZone) bool { return z.name == "nothing" })
		if n, _ := strconv.Atoi(left[last]); n == settledBudget {
			c.Get(t, "/peek?nothing="+strconv.Itoa(settledBudget+1)).Want(t, 429)
			takeAll(t, c, "/peek?plain=", left[slices.IndexFunc(zones, func(z settledZone) bool { return z.name == "plain" })])
		}
	}
	t.Run("memory", func(t *testing.T) {
		c := caddytest.StartProcess(t, config("", faulty(t)))
		check(t, c, play(t, c, requests, false))
	})
	t.Run("redis", func(t *testing.T) {
		link := caddytest.StartLink(t, redistest.Start(t).Addr)
		c := caddytest.StartProcess(t, config("redis "+link.Addr+" {\n timeout 30s\n}\n", faulty(t)))
		link.Set(relay.Fault{}, relay.Fault{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond}) // clients leave also while it is asked
		check(t, c, play(t, c, requests, false))
	})
	t.Run("redis that fails", func(t *testing.T) {
		server := redistest.Start(t)
		link := caddytest.StartLink(t, server.Addr)
		upstream := faulty(t)
		site := func(timeout string) string {
			return config("redis "+link.Addr+" {\n timeout "+timeout+"\n}\non_store_error deny", upstream)
		}
		c := caddytest.StartProcess(t, site("300ms"))
		var end atomic.Bool
		var cuts sync.WaitGroup
		cuts.Go(func() {
			random := rand.New(rand.NewPCG(seed, 2))
			for !end.Load() {
				time.Sleep(time.Duration(20+random.IntN(80)) * time.Millisecond) // Redis works for a while
				var faults [2]relay.Fault
				faults[random.IntN(2)] = relay.Fault{Delay: time.Duration(random.IntN(10)) * time.Millisecond, Reset: true}
				link.Set(faults[0], faults[1])
				time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond) // it fails for a while
				link.Set(relay.Fault{}, relay.Fault{})
			}
		})
		sums := play(t, c, requests, true)
		end.Store(true)
		cuts.Wait()
		caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 0")
		if len(caddytest.Metrics(t, c, "caddy_rate_limit_store_errors_total")) == 0 {
			t.Error("nothing failed")
		}
		c.Reload(t, site("30s")) // a slow machine fails no check
		check(t, c, sums)
	})
}

// remainingOf returns the remaining events of a zone's first limit.
func remainingOf(t *testing.T, r caddytest.Response, zone string) int {
	t.Helper()
	_, rest, _ := strings.Cut(r.Field("RateLimit"), `"`+zone+`";r=`)
	rest, _, _ = strings.Cut(rest, ",")
	rest, _, _ = strings.Cut(rest, ";")
	n, err := strconv.Atoi(rest)
	if err != nil {
		t.Fatal(r.Field("RateLimit"))
	}
	return n
}

// takeAll takes what a budget has left at once, and finds nothing more.
func takeAll(t *testing.T, c *caddytest.Caddy, path, left string) {
	t.Helper()
	c.Get(t, path+left).Want(t, 200)
	c.Get(t, path+"1").Want(t, 429)
}
