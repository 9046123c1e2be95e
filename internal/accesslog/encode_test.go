package accesslog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// timeFormats are Caddy's time formats and some layouts, each with its resolution.
var timeFormats = map[string]time.Duration{
	"":                              time.Microsecond,
	"unix_seconds_float":            time.Microsecond,
	"unix_milli_float":              time.Microsecond,
	"unix_nano":                     time.Microsecond,
	"iso8601":                       time.Millisecond,
	"rfc3339":                       time.Second,
	"rfc3339_nano":                  time.Microsecond,
	"wall":                          time.Second,
	"wall_milli":                    time.Millisecond,
	"wall_nano":                     time.Microsecond,
	"common_log":                    time.Second,
	"2006-01-02 15:04:05.000 -0700": time.Millisecond,
	time.StampMicro + " 2006":       0, // which isn't recognized
}

// durationFormats are Caddy's duration formats, each with its resolution.
var durationFormats = map[string]time.Duration{
	"": time.Microsecond, "seconds": time.Microsecond, "nano": time.Microsecond, "ms": time.Millisecond, "string": time.Microsecond,
}

// encoder returns one of Caddy's encoders.
func encoder(t testing.TB, name string, config logging.LogEncoderConfig) zapcore.Encoder {
	t.Helper()
	if name == "console" {
		e := &logging.ConsoleEncoder{LogEncoderConfig: config}
		if err := e.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := &logging.JSONEncoder{LogEncoderConfig: config}
	if err := e.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	return e
}

// logged is a request, as a server sees it.
type logged struct {
	request   *http.Request
	clientIP  string
	end       time.Time
	duration  time.Duration
	status    int
	size      int
	bytesRead int
	user      string
	response  http.Header
	instant   int64
}

// encode returns the line that Caddy logs.
func (l *logged) encode(t testing.TB, e zapcore.Encoder) []byte {
	t.Helper()
	r := l.request.WithContext(context.WithValue(context.Background(), caddyhttp.VarsCtxKey, map[string]any{caddyhttp.ClientIPVarKey: l.clientIP}))
	fields := []zap.Field{
		zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r, ShouldLogCredentials: true}),
		zap.Int("bytes_read", l.bytesRead), zap.String("user_id", l.user), zap.Duration("duration", l.duration),
		zap.Int("size", l.size), zap.Int("status", l.status),
		zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: l.response, ShouldLogCredentials: true}),
	}
	if l.instant > 0 {
		fields = append(fields, zap.Int64(InstantField, l.instant))
	}
	buffer, err := e.EncodeEntry(zapcore.Entry{
		Level: zap.InfoLevel, Time: l.end, LoggerName: "http.log.access.log0", Message: "handled request",
	}, fields)
	if err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()[:buffer.Len()-1]
}

// want returns the request that a Parser should find, with the resolutions of time and duration.
func (l *logged) want(timeUnit, durationUnit time.Duration) *Request {
	end := l.end.Truncate(timeUnit).UnixMicro()
	r := &Request{
		End: end, Start: end - l.duration.Truncate(durationUnit).Microseconds(), Instant: l.instant,
		Method: l.request.Method, Host: l.request.Host, URI: l.request.RequestURI, Proto: l.request.Proto, Header: l.request.Header,
		ClientIP: l.clientIP, User: l.user, Status: l.status, BytesRead: int64(l.bytesRead), Size: int64(l.size), ResponseHeader: l.response,
	}
	r.RemoteIP, r.RemotePort, _ = net.SplitHostPort(l.request.RemoteAddr)
	if s := l.request.TLS; s != nil {
		r.TLS = &TLS{
			Version: s.Version, CipherSuite: s.CipherSuite, ALPN: s.NegotiatedProtocol, ServerName: s.ServerName, Resumed: s.DidResume,
		}
		if len(s.PeerCertificates) > 0 {
			r.TLS.CommonName = s.PeerCertificates[0].Subject.CommonName
		}
	}
	return r
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// randomText returns a text that needs escapes now and then, and is valid UTF-8.
func randomText(r *rand.Rand) string {
	runes := make([]rune, r.IntN(20))
	for i := range runes {
		runes[i] = pick(r, 'a', 'b', '/', '%', '"', '\\', '\n', '\t', 0, 0x7f, 'é', '€', '😀', ' ', '{', '}', '[', ']', ',', ':', '\u2028', '<', '&')
	}
	return string(runes)
}

// randomHeader returns some header fields.
func randomHeader(r *rand.Rand) http.Header {
	h := http.Header{}
	for range r.IntN(12) {
		name := pick(r, "User-Agent", "Accept", "Cookie", "X-Api-Key", "Ts", "Status", "Request", "Logger", "X-"+string(rune('A'+r.IntN(26))))
		for range 1 + r.IntN(3) {
			h[name] = append(h[name], randomText(r))
		}
	}
	return h
}

// randomSize returns a size as Caddy counts it, in an int.
func randomSize(r *rand.Rand) int { return int(r.Int64N(1<<40) & math.MaxInt) }

// randomLogged returns a request with everything that a log can have.
func randomLogged(r *rand.Rand) *logged {
	l := &logged{
		request: &http.Request{
			Method: pick(r, "GET", "POST", "M-SEARCH", randomText(r)), Host: pick(r, "example.com", "[::1]:8443", "", randomText(r)),
			RequestURI: "/" + randomText(r), Proto: pick(r, "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"), Header: randomHeader(r),
			RemoteAddr: pick(r, "192.0.2.1:1234", "[2001:db8::1]:65535", "[fe80::1%eth0]:80"),
		},
		clientIP: pick(r, "192.0.2.1", "2001:db8::1"),
		end:      time.UnixMicro(1_600_000_000_000_000 + r.Int64N(300_000_000_000_000)),
		duration: pick(r, 0, time.Microsecond, 999*time.Millisecond, time.Second, 36*time.Hour, time.Duration(r.Int64N(1e8))*time.Microsecond),
		status:   pick(r, 0, 101, 200, 404, 429, 503), size: randomSize(r), bytesRead: randomSize(r), user: randomText(r),
		response: randomHeader(r), instant: pick(r, 0, earliest+r.Int64N(latest-earliest)),
	}
	if r.IntN(2) == 0 {
		l.request.TLS = &tls.ConnectionState{
			Version: pick[uint16](r, tls.VersionTLS12, tls.VersionTLS13), CipherSuite: pick[uint16](r, 0x1301, 0xc02f),
			NegotiatedProtocol: pick(r, "", "h2"), ServerName: randomText(r), DidResume: r.IntN(2) == 0,
		}
		if r.IntN(2) == 0 {
			l.request.TLS.PeerCertificates = []*x509.Certificate{{
				Subject: pkix.Name{CommonName: randomText(r)}, SerialNumber: big.NewInt(7),
			}}
		}
	}
	return l
}

// A Parser finds everything in a line of Caddy's encoders, in every time format and every duration format.
func TestParseFindsWhatCaddyEncodes(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("the seed is %d", seed)
		}
	}()
	for _, encoderName := range []string{"json", "console"} {
		for _, timeFormat := range slices.Sorted(maps.Keys(timeFormats)) {
			for durationFormat, durationUnit := range durationFormats {
				timeUnit := timeFormats[timeFormat]
				if encoderName == "console" && timeFormat == "" {
					timeUnit = timeFormats["wall_milli"]
				}
				e := encoder(t, encoderName, logging.LogEncoderConfig{TimeFormat: timeFormat, DurationFormat: durationFormat})
				p := &Parser{unit: map[string]time.Duration{"nano": time.Nanosecond, "ms": time.Millisecond}[durationFormat]}
				var got Request
				for range seedtest.Cases(t, 30) {
					l := randomLogged(r)
					line := l.encode(t, e)
					err := p.Parse(line, &got)
					if timeUnit == 0 {
						if err != errNoTime {
							t.Fatalf("the error for the time format %s is %v, want %v", timeFormat, err, errNoTime)
						}
						continue
					}
					want := l.want(timeUnit, durationUnit)
					if err != nil || !equal(&got, want) {
						t.Fatalf("time format %q, duration format %q: %v\n%s\n got %s\nwant %s", timeFormat, durationFormat, err, line, shown(&got), shown(want))
					}
					if at, ok := p.timeOf(line, &got); !ok || at != want.End {
						t.Fatalf("the time of the line is %d, %v, want %d\n%s", at, ok, want.End, line)
					}
				}
			}
		}
	}
}
