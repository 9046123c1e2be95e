package docs_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// exampleLog is the access log that docs/simulate.md replays.
const exampleLog = "examples/simulate/access.log.gz"

// -update writes the example log: a day of a small shop. Two crawlers read products slowly, and a partner copies the
// catalog every hour. An office has one address for twelve people. A scraper reads all products at night, and an
// attacker guesses passwords.
func TestExampleLog(t *testing.T) {
	want := makeExampleLog()
	if *caddytest.Update {
		var file bytes.Buffer
		w, _ := gzip.NewWriterLevel(&file, gzip.BestCompression)
		if _, err := io.WriteString(w, want); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(exampleLog, file.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := gzip.NewReader(strings.NewReader(caddytest.ReadFile(t, exampleLog)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want {
		t.Errorf("%s is another log; -update writes it: %v", exampleLog, err)
	}
	if shown := caddytest.Fences(t, "docs/simulate.md", "caddyfile")[0]; shown != caddytest.ReadFile(t, "examples/simulate/Caddyfile") {
		t.Error("the first Caddyfile of docs/simulate.md is not examples/simulate/Caddyfile")
	}
	if info, err := os.Stat(exampleLog); err != nil || info.Size() > 70_000 {
		t.Error("the example log is too large:", info.Size(), err)
	}
}

// The limit in the widest gap denies the scraper and the attacker, and nobody else. So it lets customers, crawlers,
// the partner and the office pass.
func TestGapOfExampleLog(t *testing.T) {
	c := &caddytest.Caddy{File: "examples/simulate/Caddyfile"}
	simulate := func(args ...string) *report.Zone {
		t.Helper()
		var r report.Report
		out := c.RateLimit(t, append([]string{"simulate", "--json", "access.log.gz"}, args...)...).Succeeds(t).Out
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		return &r.Configurations[0].Zones[0]
	}
	const key = "key {client_ip} ; ipv6_prefix 64"
	for _, args := range [][]string{{"--zone", key}, {"--propose", "1%"}} {
		proposals := simulate(args...).Proposals
		at := slices.IndexFunc(proposals, func(p report.Proposal) bool {
			return p.Current == "token_bucket 10 1m 20" || strings.HasPrefix(p.Line, "sliding_window") && strings.HasSuffix(p.Line, " 1m")
		})
		if at < 0 || proposals[at].Gap == nil {
			t.Fatalf("%q: no gap in %+v", args, proposals)
		}
		middle := proposals[at].Gap.Middle.Line
		var denied []string
		for _, k := range simulate("--zone", key+" ; "+middle).TopKeys {
			denied = append(denied, k.Key)
		}
		if !slices.Equal(denied, []string{scraper, attacker}) {
			t.Errorf("%q: %s denies %q", args, middle, denied)
		}
	}
}

// shop collects the requests of the example log.
type shop struct {
	random   *rand.Rand
	requests []shopRequest
}

type shopRequest struct {
	start, duration time.Duration // since midnight
	client, line    string
	userAgent       string
	status, size    int
}

// The addresses that a limit should deny.
const (
	scraper  = "198.51.100.23"
	attacker = "192.0.2.99"
)

var browsers = []string{
	"Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/142.0.0.0", "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) Safari/604.1",
	"Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Firefox/145.0",
}

func makeExampleLog() string {
	s := &shop{random: rand.New(rand.NewPCG(7, 0))}
	for client := range 380 {
		s.visit(client)
	}
	for person := range 12 {
		s.visitFrom("203.0.113.80", time.Duration(9*60+40*person)*time.Minute, 5)
	}
	s.burst(13*time.Hour, 36, 1500*time.Millisecond, "203.0.113.80", browsers[0], "GET /product/%d", 200) // after lunch
	for hour := range 24 {
		at := time.Duration(hour) * time.Hour
		s.burst(at+2*time.Minute, 25, 200*time.Millisecond, "203.0.113.7", "catalog-sync/2.1", "GET /api/products?page=%d", 200)
		s.burst(at+20*time.Minute, 12, 5*time.Second, "66.249.66.1", "Mozilla/5.0 (compatible; Googlebot/2.1)", "GET /product/%d", 200)
		s.burst(at+40*time.Minute, 8, 7*time.Second, "157.55.39.1", "Mozilla/5.0 (compatible; bingbot/2.0)", "GET /product/%d", 200)
	}
	s.burst(3*time.Hour+11*time.Minute, 600, 400*time.Millisecond, scraper, "python-requests/2.32.3", "GET /product/%d", 200)
	s.burst(14*time.Hour+26*time.Minute, 150, 400*time.Millisecond, attacker, "Mozilla/5.0 (Hydra)", "POST /login", 401)

	slices.SortStableFunc(s.requests, func(a, b shopRequest) int { return cmp.Compare(a.start+a.duration, b.start+b.duration) })
	midnight := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	var b strings.Builder
	for i := range s.requests {
		b.WriteString(s.requests[i].logLine(midnight))
	}
	return b.String()
}

// visit lets a customer look at some products, mostly at daytime. Some customers log in, now and then with
// a mistake.
func (s *shop) visit(number int) {
	client := fmt.Sprintf("%d.%d.%d.%d", 20+number%90, s.random.IntN(256), s.random.IntN(256), 1+s.random.IntN(254))
	if number%5 == 4 {
		client = fmt.Sprintf("2001:db8:%x:%x::1", s.random.IntN(1<<16), s.random.IntN(1<<16))
	}
	at := time.Duration((14 + 4*s.random.NormFloat64()) * float64(time.Hour))
	at = min(max(at, 10*time.Minute), 23*time.Hour+30*time.Minute)
	pages := 1 + int(math.Exp(s.random.NormFloat64()*0.8))
	at = s.visitFrom(client, at, min(pages, 10))
	if number%4 == 0 {
		for range s.random.IntN(3) {
			s.add(at, client, browsers[0], "POST /login", 401)
			at += time.Duration(5000+s.random.IntN(9000)) * time.Millisecond
		}
		s.add(at, client, browsers[0], "POST /login", 303)
	}
}

// visitFrom lets somebody look at a number of pages, and returns when this ends.
func (s *shop) visitFrom(client string, at time.Duration, pages int) time.Duration {
	browser := browsers[s.random.IntN(len(browsers))]
	for range pages {
		s.add(at, client, browser, fmt.Sprintf("GET /product/%d", s.random.IntN(300)), 200)
		for i := range s.random.IntN(4) {
			loads := at + time.Duration(80+30*i)*time.Millisecond
			s.add(loads, client, browser, fmt.Sprintf("GET /api/products/%d", s.random.IntN(300)), 200)
		}
		at += time.Duration(4000+s.random.IntN(40000)) * time.Millisecond
	}
	return at
}

// burst lets a program send requests, about one in each interval.
func (s *shop) burst(at time.Duration, n int, interval time.Duration, client, userAgent, line string, status int) {
	for i := range n {
		text := line
		if strings.Contains(line, "%") {
			text = fmt.Sprintf(line, i+1)
		}
		s.add(at, client, userAgent, text, status)
		at += interval/2 + time.Duration(s.random.Int64N(int64(interval)))
	}
}

func (s *shop) add(at time.Duration, client, userAgent, line string, status int) {
	s.requests = append(s.requests, shopRequest{
		start: at.Truncate(time.Millisecond), duration: time.Duration(5+s.random.IntN(60)) * time.Millisecond,
		client: client, userAgent: userAgent, line: line, status: status, size: 1000 * (1 + s.random.IntN(9)),
	})
}

// logLine returns the line that Caddy would have written, with the fewest header fields.
func (q *shopRequest) logLine(midnight time.Time) string {
	method, uri, _ := strings.Cut(q.line, " ")
	ended := midnight.Add(q.start + q.duration)
	return fmt.Sprintf(`{"level":"info","ts":%d.%03d,"logger":"http.log.access.log0","msg":"handled request","request":{`+
		`"remote_ip":%[3]q,"remote_port":"50000","client_ip":%[3]q,"proto":"HTTP/2.0","method":%[4]q,"host":"shop.example.com","uri":%[5]q,`+
		`"headers":{"Accept":["*/*"],"User-Agent":[%[9]q]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"shop.example.com","ech":false}},`+
		`"bytes_read":0,"user_id":"","duration":%.3[6]f,"size":%[7]d,"status":%[8]d,"resp_headers":{"Server":["Caddy"],"Via":["1.1 Caddy"]}}`+"\n",
		ended.Unix(), ended.Nanosecond()/1e6, q.client, method, uri, q.duration.Seconds(), q.size, q.status, q.userAgent)
}
