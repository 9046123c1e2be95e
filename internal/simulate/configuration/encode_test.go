package configuration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
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

// newEncoder returns one of Caddy's encoders.
func newEncoder(t *testing.T, name string, config logging.LogEncoderConfig) zapcore.Encoder {
	t.Helper()
	console, json := &logging.ConsoleEncoder{LogEncoderConfig: config}, &logging.JSONEncoder{LogEncoderConfig: config}
	errtest.None(t, console.Provision(caddy.Context{}))
	errtest.None(t, json.Provision(caddy.Context{}))
	return map[string]zapcore.Encoder{"console": console, "json": json}[name]
}

// encode returns the line that Caddy logs about a request, with a newline.
func encode(t *testing.T, e zapcore.Encoder, request *http.Request, want *accesslog.Request) []byte {
	t.Helper()
	vars := map[string]any{caddyhttp.ClientIPVarKey: want.ClientIP}
	fields := []zap.Field{
		zap.Object("request", caddyhttp.LoggableHTTPRequest{
			Request: request.WithContext(context.WithValue(t.Context(), caddyhttp.VarsCtxKey, vars)), ShouldLogCredentials: true,
		}),
		zap.Int64("bytes_read", want.BytesRead), zap.String("user_id", want.User),
		zap.Duration("duration", time.Duration(want.End-want.Start)*time.Microsecond),
		zap.Int64("size", want.Size), zap.Int("status", want.Status),
		zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: want.ResponseHeader, ShouldLogCredentials: true}),
	}
	if want.Instant > 0 {
		fields = append(fields, zap.Int64(accesslog.InstantField, want.Instant))
	}
	buffer, err := e.EncodeEntry(zapcore.Entry{
		Level: zap.InfoLevel, Time: time.UnixMicro(want.End), LoggerName: "http.log.access.log0", Message: "handled request",
	}, fields)
	errtest.None(t, err)
	return buffer.Bytes()
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

// randomRequest returns a request with everything that a log can have, as a server sees it, and as a log has it.
func randomRequest(r *rand.Rand, duration time.Duration) (*http.Request, *accesslog.Request) {
	request := &http.Request{
		Method: pick(r, "GET", "POST", "M-SEARCH", randomText(r)), Host: pick(r, "example.com", "[::1]:8443", "", randomText(r)),
		RequestURI: "/" + randomText(r), Proto: pick(r, "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"), Header: randomHeader(r),
		RemoteAddr: pick(r, "192.0.2.1:1234", "[2001:db8::1]:65535", "[fe80::1%eth0]:80"),
	}
	const earliest, later = 1_600_000_000_000_000, 300_000_000_000_000
	end := earliest + r.Int64N(later)
	want := &accesslog.Request{
		End: end, Start: end - duration.Microseconds(), Instant: pick(r, 0, earliest+r.Int64N(later)),
		Method: request.Method, Host: request.Host, URI: request.RequestURI, Proto: request.Proto, Header: request.Header,
		ClientIP: pick(r, "192.0.2.1", "2001:db8::1"), User: randomText(r), Status: pick(r, 0, 101, 200, 404, 429, 503),
		BytesRead: r.Int64N(math.MaxInt32), Size: r.Int64N(1 << 40), ResponseHeader: randomHeader(r),
	}
	want.RemoteIP, want.RemotePort, _ = net.SplitHostPort(request.RemoteAddr)
	if r.IntN(2) == 0 {
		want.TLS = &accesslog.TLS{
			Version: pick[uint16](r, tls.VersionTLS12, tls.VersionTLS13), CipherSuite: pick[uint16](r, 0x1301, 0xc02f),
			ALPN: pick(r, "", "h2"), ServerName: randomText(r), Resumed: r.IntN(2) == 0, CommonName: pick(r, "", randomText(r)),
		}
		request.TLS = &tls.ConnectionState{
			Version: want.TLS.Version, CipherSuite: want.TLS.CipherSuite, NegotiatedProtocol: want.TLS.ALPN,
			ServerName: want.TLS.ServerName, DidResume: want.TLS.Resumed,
			PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: want.TLS.CommonName}}},
		}
	}
	return request, want
}

// A log of Caddy's encoders has everything, in every time format and every duration format.
func TestReadsWhatCaddyLogs(t *testing.T) {
	for name := range map[string]bool{"json": true, "console": true} {
		for timeFormat, timeUnit := range timeFormats {
			for durationFormat, durationUnit := range durationFormats {
				if name == "console" && timeFormat == "" {
					timeUnit = timeFormats["wall_milli"]
				}
				e := newEncoder(t, name, logging.LogEncoderConfig{TimeFormat: timeFormat, DurationFormat: durationFormat})
				readLogged(t, e, timeUnit, durationUnit)
			}
		}
	}
}

// readLogged reads a log of random requests, and compares them with the requests of the server.
func readLogged(t *testing.T, e zapcore.Encoder, timeUnit, durationUnit time.Duration) {
	t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var text []byte
	var all []*accesslog.Request
	duration := 5 * time.Millisecond // of the first request, which tells the unit
	for range 1 + seedtest.Cases(t, 30) {
		request, want := randomRequest(r, duration)
		text = append(text, encode(t, e, request, want)...)
		if timeUnit > 0 {
			want.End = time.UnixMicro(want.End).Truncate(timeUnit).UnixMicro()
			want.Start = want.End - duration.Truncate(durationUnit).Microseconds()
		}
		all = append(all, want)
		duration = pick(r, 0, time.Microsecond, 999*time.Millisecond, time.Second, 36*time.Hour, time.Duration(r.Int64N(1e8))*time.Microsecond)
	}
	name := filepath.Join(t.TempDir(), "access.log")
	errtest.None(t, os.WriteFile(name, text, 0o600))
	log, err := accesslog.Open(accesslog.Options{Names: []string{name}})
	if timeUnit == 0 {
		if err == nil || !strings.Contains(err.Error(), "no readable time") {
			t.Errorf("the error for an unknown time format is %v", err)
		}
		return
	}
	errtest.None(t, err)
	defer log.Close()
	p, n := log.NewParser(), 0
	var got accesslog.Request
	for chunk, err := log.Next(); err == nil; chunk, err = log.Next() {
		chunk.Each(func(line accesslog.Line) {
			err := p.Parse(line.Text, &got)
			if off := got.End - all[n].End; max(off, -off) == 1 { // the time in a number of seconds is exact to a microsecond
				got.Start, got.End = got.Start-off, got.End-off
			}
			if err != nil || !reflect.DeepEqual(&got, all[n]) {
				t.Errorf("seed %d: %v\n%s\n got %+v\nwant %+v", seed, err, line.Text, got, *all[n])
			}
			n++
		})
	}
	if n != len(all) {
		t.Errorf("seed %d: %d lines, want %d", seed, n, len(all))
	}
}
