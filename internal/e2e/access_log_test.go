package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// logTimeFormats are the time formats of Caddy's log encoders, and some layouts, each with its resolution.
var logTimeFormats = []struct {
	name       string
	resolution time.Duration
}{
	{"unix_seconds_float", time.Microsecond},
	{"unix_milli_float", time.Microsecond},
	{"unix_nano", time.Microsecond},
	{"iso8601", time.Millisecond},
	{"rfc3339", time.Second},
	{"rfc3339_nano", time.Microsecond},
	{"wall", time.Second},
	{"wall_milli", time.Millisecond},
	{"wall_nano", time.Microsecond},
	{"common_log", time.Second},
	{`"2006-01-02 15:04:05.000000 -0700"`, time.Microsecond},
}

// logDurationFormats are the duration formats of Caddy's log encoders, each with its resolution.
var logDurationFormats = []struct {
	name       string
	resolution time.Duration
}{{"seconds", time.Microsecond}, {"nano", time.Microsecond}, {"ms", time.Millisecond}, {"string", time.Microsecond}}

// sentRequest is a request of the test, and the answer of the application.
type sentRequest struct {
	request        *http.Request
	body           string
	status, size   int
	sent           time.Time
	instantWritten bool
	response       http.Header

	begin, end time.Time // as the first log has them
}

// readTimes reads when the requests began and ended from a log with seconds. A line has the same times in all logs.
func readTimes(t *testing.T, file string, sent map[string]*sentRequest) {
	t.Helper()
	for line := range strings.Lines(caddytest.ReadFile(t, file)) {
		var fields struct {
			Ts, Duration float64
			Msg          string
			Request      struct{ Headers http.Header }
		}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if s := sent[fields.Request.Headers.Get("X-Id")]; s != nil && fields.Msg == "handled request" {
			s.end = time.UnixMicro(int64(math.Round(fields.Ts * 1e6)))
			s.begin = s.end.Add(-time.Duration(fields.Duration * 1e9))
		}
	}
	for id, s := range sent {
		// The line is written a little after the response has ended.
		if s.begin.Add(time.Millisecond).Before(s.sent) || s.end.Before(s.begin) || s.end.After(time.Now().Add(time.Millisecond)) {
			t.Errorf("request %s ran from %v to %v, and was sent at %v", id, s.begin, s.end, s.sent)
		}
	}
}

// readLog reads the log files in dir. It returns the requests by their header field X-Id. Strings are cloned, because the
// parser reuses its memory.
func readLog(t *testing.T, o accesslog.Options) (requests map[string]*accesslog.Request, others int) {
	t.Helper()
	l, err := accesslog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	requests = map[string]*accesslog.Request{}
	for {
		c, err := l.Next()
		if err == io.EOF {
			return requests, others
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Each(func(line accesslog.Line) {
			r := new(accesslog.Request)
			switch err := l.NewParser().Parse(slices.Clone(line.Text), r); {
			case err == accesslog.ErrNotAccess:
				others++
			case err != nil || line.Err != nil:
				t.Errorf("%s:%d: %v, %v\n%s", line.File, line.Number, line.Err, err, line.Text)
			default:
				requests[r.Header.Get("X-Id")] = r
			}
		})
		c.Release()
	}
}

// A log of a real Caddy has each request as it was sent, in all formats of times and durations.
func TestAccessLogOfCaddy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var status int
		_, _ = fmt.Sscan(r.Header.Get("X-Status"), &status)
		w.WriteHeader(status)
		_, _ = w.Write(slices.Repeat(body, 2))
	}))
	defer application.Close()
	var logs strings.Builder
	file := func(i, j int) string { return filepath.Join(dir, fmt.Sprintf("%d-%d.log", i, j)) }
	addLog := func(name, path, format string) {
		fmt.Fprintf(&logs, "\tlog %s {\n\t\tinclude http.log.access http.log.error\n\t\toutput file %s\n\t\tformat %s\n\t}\n", name, path, format)
	}
	for i, at := range logTimeFormats {
		for j, duration := range logDurationFormats {
			addLog(fmt.Sprintf("l%d-%d", i, j), file(i, j), fmt.Sprintf("json {\n\t\t\ttime_format %s\n\t\t\tduration_format %s\n\t\t}", at.name, duration.name))
		}
	}
	console, filtered, renamed := filepath.Join(dir, "console.log"), filepath.Join(dir, "filtered.log"), filepath.Join(dir, "renamed.log")
	addLog("console", console, "console")
	addLog("filtered", filtered, `filter {
			wrap json
			fields {
				request>remote_ip ip_mask {
					ipv4 16
				}
				request>client_ip hash
				request>host replace example.com
				request>uri query {
					delete a
				}
				request>headers>X-Status delete
				request>tls delete
				resp_headers delete
				user_id replace someone
				duration delete
				size hash
			}
		}`)
	addLog("renamed", renamed, `append {
			fields {
				server_id one
			}
			wrap json {
				time_key timestamp
				level_key severity
				name_key component
				message_key message
			}
		}`)
	c := caddytest.Start(t, fmt.Sprintf(`{
	admin {$ADMIN}
	skip_install_trust
	auto_https disable_redirects
	servers {
		log_credentials
	}
%s}
(answers) {
	log
	log_skip /ready
	respond /ready ok
	basic_auth /private {
		alice $2a$04$HjcBkuF6FoLktX3voZ254ewrS5k7jzAuZDg.kesmma5GVZFxCZZ/O
	}
	log_append rate_limit_instant {header.X-Instant}
	error /fail "as the request wants" 500
	reverse_proxy %s
}
{$SITE} {
	import answers
}
{$TLS} {
	tls internal
	import answers
}`, logs.String(), strings.TrimPrefix(application.URL, "http://")))
	secure := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableCompression: true,
	}}
	caddytest.EventuallySees(t, "the certificate is there", func() error {
		answer, err := secure.Get("https://" + c.TLS + "/ready")
		if err == nil {
			answer.Body.Close()
		}
		return err
	}, func(err error) bool { return err == nil })
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	sent := map[string]*sentRequest{}
	for i := range 40 {
		id := fmt.Sprint(i)
		s := sendForLog(t, r, c, secure, id)
		sent[id] = s
	}
	waitForLog := func(i, j int) (requests map[string]*accesslog.Request) {
		caddytest.EventuallySees(t, fmt.Sprint("the log has all ", len(sent), " requests"), func() int {
			requests, _ = readLog(t, accesslog.Options{Names: []string{file(i, j)}})
			return len(requests)
		}, func(n int) bool { return n == len(sent) })
		return requests
	}
	waitForLog(0, 0)
	readTimes(t, file(0, 0), sent)
	for i, at := range logTimeFormats {
		for j, duration := range logDurationFormats {
			name := fmt.Sprintf("times %s, durations %s", at.name, duration.name)
			requests := waitForLog(i, j)
			for id, s := range sent {
				s.compare(t, name, requests[id], at.resolution, duration.resolution)
			}
		}
	}
	fromConsole, _ := readLog(t, accesslog.Options{Names: []string{console}})
	fromRenamed, errorLines := readLog(t, accesslog.Options{Names: []string{renamed}})
	fromFiltered, _ := readLog(t, accesslog.Options{Names: []string{filtered}})
	if errorLines == 0 {
		t.Error("the log has no line about an error")
	}
	for id, s := range sent {
		s.compare(t, "console", fromConsole[id], time.Millisecond, time.Microsecond)
		s.compare(t, "renamed keys", fromRenamed[id], time.Microsecond, time.Microsecond)
		got := fromFiltered[id]
		if got == nil {
			t.Fatalf("the filtered log doesn't have request %s", id)
		}
		if got.Start != got.End || got.RemoteIP != "127.0.0.0" || len(got.ClientIP) != 8 || got.Host != "example.com" || got.TLS != nil ||
			got.User != "someone" || len(got.ResponseHeader) != 0 || got.Header["X-Status"] != nil || got.Status != s.status {
			t.Errorf("the filtered request is %+v", got)
		}
	}
	if *caddytest.Update {
		seeds := ""
		for _, name := range []string{file(0, 0), file(3, 1), file(9, 3), console, filtered, renamed} {
			for i, line := range strings.SplitAfter(caddytest.ReadFile(t, name), "\n")[:6] {
				if i%2 == 1 {
					seeds += line
				}
			}
		}
		if err := os.WriteFile("internal/accesslog/testdata/caddy.log", []byte(seeds), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// sendForLog sends a random request.
func sendForLog(t *testing.T, r *rand.Rand, c *caddytest.Caddy, secure *http.Client, id string) *sentRequest {
	t.Helper()
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	s := &sentRequest{body: strings.Repeat("é", r.IntN(1000)), status: []int{200, 404, 503}[r.IntN(3)]}
	url, do := "http://"+c.Site, caddytest.Client.Do
	if r.IntN(2) == 0 {
		url, do = "https://"+c.TLS, secure.Do
	}
	path := pick("/", "/fail", "/private", "/%C3%A9%22%5C%00", "/a;b=c/../d")
	url += path + pick("", "?", `?a=1&b={"x":"\`, "?%00=\u20ac")
	request, err := http.NewRequest(pick("GET", "POST", "PUT", "PROPFIND"), url, strings.NewReader(s.body))
	if err != nil {
		t.Fatal(err)
	}
	if path == "/private" {
		request.SetBasicAuth("alice", "secret")
	}
	request.Header.Set("X-Id", id)
	request.Header.Set("X-Status", fmt.Sprint(s.status))
	if s.instantWritten = r.IntN(2) == 0; s.instantWritten {
		request.Header.Set("X-Instant", "1700000000123456")
	}
	request.Header.Add("X-Text", pick("", `"quoted" \ {"json":1}`, "tab\there", "\u20ac and \xff"))
	request.Header.Add("X-Text", "another")
	request.Header.Set("User-Agent", "test")
	s.request, s.sent = request, time.Now()
	answer, err := do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.status, s.size, s.response = answer.StatusCode, len(body), answer.Header
	return s
}

// compare compares a logged request with the one that was sent.
func (s *sentRequest) compare(t *testing.T, name string, got *accesslog.Request, timeResolution, durationResolution time.Duration) {
	t.Helper()
	if got == nil {
		t.Fatalf("%s: the log doesn't have request %s", name, s.request.Header.Get("X-Id"))
	}
	r := s.request
	for field, values := range r.Header {
		want := slices.Clone(values)
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], "\xff", "\ufffd")
		}
		if !slices.Equal(got.Header[field], want) {
			t.Errorf("%s: the header field %s is %q, want %q", name, field, got.Header[field], want)
		}
	}
	user, _, _ := r.BasicAuth()
	var instant int64
	if s.instantWritten {
		instant = 1_700_000_000_123_456
	}
	proto := "HTTP/1.1"
	if r.URL.Scheme == "https" {
		proto = "HTTP/2.0"
		if got.TLS == nil || got.TLS.ALPN != "h2" || got.TLS.Version != tls.VersionTLS13 {
			t.Errorf("%s: TLS is %+v", name, got.TLS)
		}
	} else if got.TLS != nil {
		t.Errorf("%s: TLS is %+v, want none", name, got.TLS)
	}
	read := int64(len(s.body))
	if r.URL.Path == "/fail" { // nothing reads the body
		read = 0
	}
	want := accesslog.Request{
		Start: got.Start, End: got.End, Instant: instant, Method: r.Method, Host: r.URL.Host, URI: r.URL.RequestURI(), Proto: proto,
		Header: got.Header, RemoteIP: "127.0.0.1", RemotePort: got.RemotePort, ClientIP: "127.0.0.1", User: user, TLS: got.TLS,
		Status: s.status, BytesRead: read, Size: int64(s.size), ResponseHeader: got.ResponseHeader,
	}
	if gotText, wantText := fmt.Sprintf("%+v", *got), fmt.Sprintf("%+v", want); gotText != wantText {
		t.Errorf("%s:\n got %s\nwant %s", name, gotText, wantText)
	}
	if got.RemotePort == "" || len(got.ResponseHeader) == 0 {
		t.Errorf("%s: the remote port is %q, the response header %q", name, got.RemotePort, got.ResponseHeader)
	}
	for field, values := range got.ResponseHeader {
		if !slices.Equal(values, s.response[field]) {
			t.Errorf("%s: the header field %s of the response is %q, want %q", name, field, values, s.response[field])
		}
	}
	// The logged times are rounded.
	begin, end := time.UnixMicro(got.Start), time.UnixMicro(got.End)
	rounding := timeResolution + durationResolution + 2*time.Microsecond
	if begin.Sub(s.begin).Abs() > rounding || end.Sub(s.end).Abs() > rounding {
		t.Errorf("%s: the request ran from %v to %v, want %v to %v", name, begin, end, s.begin, s.end)
	}
}
