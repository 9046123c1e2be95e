package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
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
		if q.Has("early") {
			w.Header().Set("X-Tokens", "1000")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("X-Tokens")
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

// shown returns the charges of all requests so far, by zone, as the access log has them. A line whose handler hasn't
// panicked has the charge of the zone spent from log_append, too.
func (s *settling) shown(t *testing.T) map[string]int {
	t.Helper()
	sums := make(map[string]int)
	for line := range strings.Lines(caddytest.ReadFile(t, s.log)) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) != nil {
			continue // it is being written
		}
		for _, z := range s.zones {
			n, _ := fields[accesslog.ChargedPrefix+z.name].(float64)
			sums[z.name] += int(n)
		}
		if value, ok := fields["appended"].(float64); ok && value != fields[accesslog.ChargedPrefix+"spent"] {
			t.Errorf("log_append writes %v:\n%s", value, line)
		}
	}
	return sums
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
			if n, err := strconv.ParseFloat(said, 64); err == nil && n >= 0 {
				return int(math.Ceil(n))
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
	said := []string{"0", "3", "7", "12", "20", "2.5", "many", "-1", ""}[random.IntN(9)]
	switch random.IntN(3) {
	case 0:
		d.query.Set("tokens", said)
	case 1:
		d.query.Set("trailer", said)
	}
	if random.IntN(4) == 0 {
		d.query.Set("early", "1")
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

// send sends a request. Its client may not learn what becomes of it.
func (d drawn) send(c *caddytest.Caddy) {
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
		return
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
}

// bounds are the least and the most that may have been charged.
type bounds struct{ least, most int }

// settling is a run of random requests whose charges must add up.
type settling struct {
	seed  uint64
	zones []settledZone
	log   string // the file of the access log
}

func newSettling(t *testing.T) *settling {
	t.Helper()
	s := &settling{seed: cmp.Or(*settleSeed, rand.Uint64()), zones: settledZones(), log: filepath.Join(t.TempDir(), "access.log")}
	t.Logf("-settle-seed %d", s.seed)
	return s
}

// config returns a site with all zones, whose budgets are in the store that use selects.
func (s *settling) config(use, upstream string) string {
	config, peek := "", ""
	for _, z := range s.zones {
		config += fmt.Sprintf("zone %s {\n match query %[1]s=*\n key static\n %[2]s\n cost {query.%[1]s}\n %[3]s\n}\n", z.name, z.limit, z.options)
		peek += fmt.Sprintf(" {http.rate_limit.%s.remaining}", z.name)
	}
	config += "zone scarce {\n match query scarce=1\n key static\n fixed_window 20 1000d\n}\n" + use
	config = strings.Replace(caddytest.Site(config), "@limited not", "log {\n output file "+s.log+"\n}\nlog_append appended {http.rate_limit.spent.charged}\n@limited not", 1)
	config = strings.Replace(config, "rate_limit @limited {", "route {\n test_witness\n rate_limit @limited {", 1)
	return strings.Replace(config, "respond ok", fmt.Sprintf("test_witness\n test_hold\n respond /ready ok\n respond /peek \"%s\"\n reverse_proxy %s\n}", strings.TrimSpace(peek), upstream), 1)
}

// ask asks the witness of a Caddy.
func (s *settling) ask(t *testing.T, c *caddytest.Caddy, path string) (said testimony) {
	t.Helper()
	if r := c.Get(t, path); json.Unmarshal([]byte(r.Text), &said) != nil {
		t.Fatalf("%d %s", r.StatusCode, r.Text)
	}
	return said
}

// play sends requests over several connections until all are over. It returns a function, which returns what the
// requests so far may have been charged.
func (s *settling) play(t *testing.T, c *caddytest.Caddy) func() []bounds {
	t.Helper()
	requests := min(seedtest.Cases(t, 400), 600) // more would use up the budgets
	s.ask(t, c, "/witness/new")
	var all []drawn
	random := rand.New(rand.NewPCG(s.seed, 1))
	for id := range requests {
		all = append(all, draw(random, id, s.zones))
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for n := i; n < len(all); n += 12 {
				all[n].send(c)
			}
		})
	}
	wg.Wait()
	// A request whose client has left can be served late. The server accepts it before the next one.
	c.CloseIdleConnections()
	s.ask(t, c, "/witness")
	c.CloseIdleConnections()
	caddytest.EventuallySees(t, "no connection to the site is served any more", func() int {
		r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=2", "")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(r.Text, "net/http.(*conn).serve(") - 1 // without the one that serves this
	}, func(served int) bool { return served == 0 })
	said := s.ask(t, c, "/witness")
	if said.InFlight > 0 {
		t.Errorf("%d requests are in flight", said.InFlight)
	}
	if len(said.Seen) < requests/3 {
		t.Errorf("%d of %d requests got through", len(said.Seen), requests)
	}
	t.Logf("%d requests, %d got through", requests, len(said.Seen))
	return func() []bounds { return s.sums(all, s.ask(t, c, "/witness")) }
}

// sums returns what the requests may have been charged, by zone.
func (s *settling) sums(all []drawn, said testimony) []bounds {
	sums := make([]bounds, len(s.zones))
	for _, d := range all {
		for i, z := range s.zones {
			reserved, asked := d.costs[z.name]
			if !asked {
				continue
			}
			seen := said.Seen[strconv.Itoa(d.id)]
			switch {
			case seen == nil && d.leave > 0 && len(d.costs) == 1 && z.options == "":
				sums[i].most += reserved // its client left while Redis was asked, and nothing settles
			case seen == nil: // denied, or its client left before it came
			case d.leave > 0 && !seen.Written: // a client that has left by then is charged
				worth := z.worth(seen, reserved)
				sums[i].least += min(worth, reserved)
				sums[i].most += max(worth, reserved)
			default:
				worth := z.worth(seen, reserved)
				sums[i].least += worth
				sums[i].most += worth
			}
		}
	}
	return sums
}

// check checks that the charges of a Caddy become what they may be.
func (s *settling) check(t *testing.T, c *caddytest.Caddy, sums func() []bounds) {
	t.Helper()
	all := url.Values{}
	for _, z := range s.zones {
		all.Set(z.name, "0")
	}
	var left []string
	// A correction can come long after the client has left.
	caddytest.EventuallySees(t, fmt.Sprintf("all charges are the sums (-settle-seed %d)", s.seed), func() (wrong []string) {
		sums, shown, settled := sums(), s.shown(t), caddytest.Metrics(t, c, "caddy_rate_limit_settled_events_total")
		r := c.Get(t, "/peek?"+all.Encode())
		if left = strings.Fields(r.Text); r.StatusCode != 200 || len(left) != len(s.zones) {
			t.Fatalf("%d %s", r.StatusCode, r.Text)
		}
		for i, z := range s.zones {
			n, err := strconv.Atoi(left[i])
			if z.name == "several" {
				n = remainingOf(t, r, z.name) // the slots are nearer to exhaustion
			}
			charged := settledBudget - n
			if err != nil || charged < sums[i].least || charged > sums[i].most {
				wrong = append(wrong, fmt.Sprintf("zone %s is charged %d, %v; want %+v", z.name, charged, err, sums[i]))
			}
			counted := int(settled[`caddy_rate_limit_settled_events_total{zone="`+z.name+`"}`])
			if z.options != "" && (shown[z.name] != charged || counted != charged) { // else the cost is fixed, and nobody counts it
				wrong = append(wrong, fmt.Sprintf("zone %s is charged %d, by the access log %d, by the metric %d", z.name, charged, shown[z.name], counted))
			}
		}
		return wrong
	}, func(wrong []string) bool { return wrong == nil })
	// Exactly the remaining events can be taken.
	last := slices.IndexFunc(s.zones, func(z settledZone) bool { return z.name == "nothing" })
	if n, _ := strconv.Atoi(left[last]); n == settledBudget {
		c.Get(t, "/peek?nothing="+strconv.Itoa(settledBudget+1)).Want(t, 429)
		takeAll(t, c, "/peek?plain=", left[slices.IndexFunc(s.zones, func(z settledZone) bool { return z.name == "plain" })])
	}
}

// Requests and responses can end in any way. In the end the charge is the sum of the responses. The access log and the
// metric say the same.
func TestSettleAddsUp(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := newSettling(t)
		c := caddytest.Start(t, s.config("", faulty(t)))
		s.check(t, c, s.play(t, c))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := newSettling(t)
		link := caddytest.StartLink(t, redistest.Start(t).Addr)
		c := caddytest.Start(t, s.config("redis "+link.Addr+" {\n timeout 30s\n}\n", faulty(t)))
		link.Set(relay.Fault{}, relay.Fault{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond}) // clients leave also while it is asked
		s.check(t, c, s.play(t, c))
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
