package accesslog

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// equal reports whether two requests are the same. A time in a number of seconds is exact to a microsecond.
func equal(a, b *Request) bool {
	within := func(a, b int64) bool { return max(a-b, b-a) <= 1 }
	if !within(a.Start, b.Start) || !within(a.End, b.End) {
		return false
	}
	x, y := *a, *b
	x.Start, x.End, x.Header, x.ResponseHeader = y.Start, y.End, y.Header, y.ResponseHeader
	return reflect.DeepEqual(x, y) && maps.EqualFunc(a.Header, b.Header, slices.Equal) &&
		maps.EqualFunc(a.ResponseHeader, b.ResponseHeader, slices.Equal)
}

// shown returns a request as JSON.
func shown(r *Request) string {
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

const (
	someTime     = 1_700_000_000_250_000
	someDuration = 250_000
)

// line returns an access log line of Caddy with other or more fields, each with its colon. A field without a value is
// deleted.
func line(fields ...string) []byte {
	names := []string{"level", "ts", "logger", "msg", "request", "bytes_read", "user_id", "duration", "size", "status", "resp_headers"}
	values := map[string]string{
		"level": `"info"`, "ts": `1700000000.25`, "logger": `"http.log.access.log0"`, "msg": `"handled request"`,
		"request": `{"remote_ip":"192.0.2.7","remote_port":"5000","client_ip":"192.0.2.8","proto":"HTTP/1.1","method":"GET",` +
			`"host":"example.com","uri":"/a?b=c","headers":{"Accept":["*/*"]}}`,
		"bytes_read": "5", "user_id": `"alice"`, "duration": "0.25", "size": "2326", "status": "200", "resp_headers": `{"Server":["Caddy"]}`,
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ":")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		values[name] = value
	}
	var members []string
	for _, name := range names {
		if values[name] != "" {
			members = append(members, `"`+name+`":`+values[name])
		}
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

// logRequest is the request in [line].
func logRequest() *Request {
	return &Request{
		Start: someTime - someDuration, End: someTime, Method: "GET", Host: "example.com", URI: "/a?b=c", Proto: "HTTP/1.1",
		Header: http.Header{"Accept": {"*/*"}}, RemoteIP: "192.0.2.7", RemotePort: "5000", ClientIP: "192.0.2.8", User: "alice",
		Status: 200, BytesRead: 5, Size: 2326, ResponseHeader: http.Header{"Server": {"Caddy"}},
	}
}

// Fields that a filter has changed, and fields of other programs, don't break a line.
func TestParseJSON(t *testing.T) {
	tests := []struct {
		name   string
		fields []string
		change func(r *Request) // nil: the line is not an access log line, or broken
		err    error
	}{
		{"all fields", nil, func(*Request) {}, nil},
		{"the instant as a number", []string{"rate_limit_instant:1700000000125000"}, func(r *Request) { r.Instant = 1_700_000_000_125_000 }, nil},
		{"charges", []string{"rate_limit_charged_api:4242", `rate_limit_charged_a.b:"7"`, "rate_limit_charged_none:0"}, func(r *Request) {
			r.Charged = map[string]int64{"api": 4242, "a.b": 7, "none": 0}
		}, nil},
		{"charges that are no numbers", []string{`rate_limit_charged_api:""`, "rate_limit_charged_b:-1", "rate_limit_charged_c:1.5"}, func(*Request) {}, nil},
		{"the instant as a text", []string{`rate_limit_instant:"1700000000125000"`}, func(r *Request) { r.Instant = 1_700_000_000_125_000 }, nil},
		{"an empty instant", []string{`rate_limit_instant:""`}, func(*Request) {}, nil},
		{"an instant that isn't known", []string{`rate_limit_instant:"{http.rate_limit.instant}"`}, func(*Request) {}, nil},
		{"a duration as a text", []string{`duration:"1m2.5s"`}, func(r *Request) { r.Start = r.End - 62_500_000 }, nil},
		{"a deleted duration", []string{"duration:"}, func(r *Request) { r.Start = r.End }, nil},
		{"a replaced duration", []string{`duration:"REDACTED"`}, func(r *Request) { r.Start = r.End }, nil},
		{"a negative duration", []string{`duration:"-1.5s"`}, func(r *Request) { r.Start = r.End }, nil},
		{"a duration with an exponent", []string{`duration:2.5e-1`}, func(*Request) {}, nil},
		{"a duration of decades", []string{`duration:1100000000.5`}, func(r *Request) { r.Start = r.End }, nil},
		{"a duration of years", []string{`duration:1000000000.25`}, func(r *Request) { r.Start = 700_000_000_000_000 }, nil},
		{"an instant of another time", []string{`rate_limit_instant:1`}, func(*Request) {}, nil},
		{"an instant in the far future", []string{`rate_limit_instant:253402300799000000`}, func(*Request) {}, nil},
		{"a huge duration", []string{`duration:99999999999999999999999999999999`}, func(r *Request) { r.Start = r.End }, nil},
		{"a duration with a huge exponent", []string{`duration:1e999999`}, func(r *Request) { r.Start = r.End }, nil},
		{"no numbers", []string{"duration:NaN", "size:nan", "status:[]", "bytes_read:{}"}, func(r *Request) {
			r.Start, r.Size, r.Status, r.BytesRead = r.End, 0, 0, 0
		}, nil},
		{"huge numbers", []string{"size:18446744073709551616", "bytes_read:-1", "status:1000"}, func(r *Request) {
			r.Size, r.Status, r.BytesRead = 0, 0, 0
		}, nil},
		{"a deleted status", []string{"status:"}, func(r *Request) { r.Status = 0 }, nil},
		{"a replaced user", []string{"user_id:null"}, func(r *Request) { r.User = "" }, nil},
		{"deleted headers", []string{`request:{"method":"GET"}`, "resp_headers:"}, func(r *Request) {
			*r = Request{Start: r.Start, End: r.End, LacksClientIP: true, Method: "GET", User: r.User, Status: r.Status, BytesRead: r.BytesRead, Size: r.Size}
		}, nil},
		{"replaced headers", []string{`request:{"headers":"REDACTED"}`, `resp_headers:{"A":"b","C":["d","e"],"F":null,"G":[1,"h"]}`}, func(r *Request) {
			*r = Request{
				Start: r.Start, End: r.End, LacksClientIP: true, User: r.User, Status: r.Status, BytesRead: r.BytesRead, Size: r.Size,
				ResponseHeader: http.Header{"A": {"b"}, "C": {"d", "e"}, "F": nil, "G": {"h"}},
			}
		}, nil},
		{"an appended field with the name of another", []string{`status:200,"status":"late"`}, func(*Request) {}, nil},
		{"two fields with one name", []string{`status:404,"status":200`}, func(*Request) {}, nil},
		{"TLS without fields", []string{`request:{"tls":{}}`}, func(r *Request) {
			*r = Request{Start: r.Start, End: r.End, LacksClientIP: true, User: r.User, Status: 200, BytesRead: 5, Size: r.Size, ResponseHeader: r.ResponseHeader, TLS: &TLS{}}
		}, nil},
		{"no logger", []string{"logger:"}, func(*Request) {}, nil},
		{"another time key", []string{"ts:", "timestamp:1700000000.25"}, func(*Request) {}, nil},
		{"two time keys", []string{"ts:", `time:1700000000.25,"ts":1700000000.25,"date":1`}, func(*Request) {}, nil},
		{"a text in ts", []string{`ts:"2023-11-14T23:13:20.25+01:00"`}, func(*Request) {}, nil},
		{"a number in a text in ts", []string{`ts:"1700000000250"`}, func(*Request) {}, nil},
		{"spaces", []string{`ts: 1700000000.25 `}, func(*Request) {}, nil},

		{"another logger", []string{`logger:"http.log.error.log0"`}, nil, ErrNotAccess},
		{"a logger with a similar name", []string{`logger:"http.log.accessory"`}, nil, ErrNotAccess},
		{"the log of errors without a logger", []string{"logger:", `err_id:"abc"`}, nil, ErrNotAccess},
		{"no logger and no status", []string{"logger:", "status:"}, nil, ErrNotAccess},
		{"no request", []string{"request:"}, nil, errNoRequest},
		{"a replaced request", []string{`request:"REDACTED"`}, nil, errNoRequest},
		{"no time", []string{"ts:"}, nil, errNoTime},
		{"no valid time", []string{`ts:"yesterday"`}, nil, errNoTime},
		{"a negative time", []string{`ts:-5`}, nil, errNoTime},
		{"the time of a server without a clock", []string{`ts:86400.5`}, nil, errNoTime},
		{"a time in the far future", []string{`ts:253402300799.5`}, nil, errNoTime},
		{"a date in the far future", []string{`ts:"9999-12-31T23:59:59Z"`}, nil, errNoTime},
		{"an endless time", []string{`ts:inf`}, nil, errNoTime},
		{"a time that is too large", []string{`ts:99999999999999999999`}, nil, errNoTime},
		{"text behind the object", []string{`status:200} {`}, nil, errSyntax},
	}
	var p Parser
	for _, test := range tests {
		var got Request
		text := line(test.fields...)
		err := p.Parse(text, &got)
		if err != test.err {
			t.Errorf("%s: the error is %v, want %v\n%s", test.name, err, test.err, text)
		}
		if test.change == nil {
			continue
		}
		want := logRequest()
		test.change(want)
		if !equal(&got, want) {
			t.Errorf("%s:\n%s\n got %s\nwant %s", test.name, text, shown(&got), shown(want))
		}
		if at, ok := p.timeOf(text, new(Request)); !ok || at != want.End {
			t.Errorf("%s: the time is %d, %v\n%s", test.name, at, ok, text)
		}
	}
}

// Every cut line is broken.
func TestParseCutJSON(t *testing.T) {
	var p Parser
	var r Request
	for i, text := 1, line(); i < len(text); i++ {
		if err := p.Parse(text[:i], &r); err != errSyntax {
			t.Errorf("the error of %s is %v, want %v", text[:i], err, errSyntax)
		}
	}
}

// Each value of a long line takes memory, so their number is bounded, in whatever they are nested.
func TestParseManyValues(t *testing.T) {
	var p Parser
	var r Request
	header := func(value string, n int) []byte {
		return line(`request:{"headers":{"A":[` + strings.TrimSuffix(strings.Repeat(value, n), ",") + `]}}`)
	}
	for _, value := range []string{`"",`, `0,`, `[[[]]],`, `{},`} {
		if err := p.Parse(header(value, maxValues), &r); err != errValues {
			t.Errorf("many values %s: the error is %v, want %v", value, err, errValues)
		}
	}
	if err := p.Parse(header(`"",`, maxValues-100), &r); err != nil || len(r.Header["A"]) != maxValues-100 {
		t.Errorf("%d values: %v", len(r.Header["A"]), err)
	}
}

func TestParseFormat(t *testing.T) {
	combined := []byte(`192.0.2.7 - - [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 5`)
	for name, test := range map[string]struct {
		line []byte
		err  error
	}{
		"JSON":                        {line(), nil},
		"deep nesting":                {[]byte(`{"a":` + strings.Repeat("[", maxValues-5)), errSyntax},
		"JSON with spaces before it":  {append([]byte("  "), line()...), nil},
		"combined":                    {combined, nil},
		"text":                        {[]byte("listening on port 80"), errFormat},
		"a JSON array":                {[]byte("[]"), errFormat},
		"a line in JSON":              {[]byte(`{"log":"` + "192.0.2.7 - - [14/Nov/2023:22:13:20 +0000]" + `","stream":"stdout"}`), errFormat},
		"another time_key":            {[]byte(`{"level":"info","timestamp":1700000000.25,"msg":"serving"}`), ErrNotAccess},
		"console":                     {append([]byte("2023/11/14 22:13:20.250\tINFO\thttp.log.access\thandled request\t"), line("logger:", "ts:")...), nil},
		"console with another logger": {append([]byte("2023/11/14 22:13:20.250\tINFO\thttp.log.error\tfailed\t"), line("logger:", "ts:")...), ErrNotAccess},
		"console without a time":      {append([]byte("INFO\thttp.log.access\thandled request\t"), line("logger:", "ts:")...), errNoTime},
	} {
		var r Request
		if err := new(Parser).Parse(test.line, &r); err != test.err {
			t.Errorf("%s: the error is %v, want %v", name, err, test.err)
		}
	}
}

func TestParseCombined(t *testing.T) {
	const start = 1_699_996_400_000_000 // 14/Nov/2023:22:13:20 +0100
	base := func(change func(r *Request)) *Request {
		r := &Request{
			Start: start, End: start, Method: "GET", URI: "/x?y=z", Proto: "HTTP/1.0", RemoteIP: "192.0.2.7", LacksClientIP: true, Status: 200, Size: 2326,
			Header: http.Header{"Referer": {"https://example.com/"}, "User-Agent": {"curl/8"}},
		}
		change(r)
		return r
	}
	const referer = ` "https://example.com/" "curl/8"`
	common := func(r *Request) { r.Header = nil }
	tests := []struct {
		line string
		want *Request
		err  error
	}{
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(*Request) {}), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326`, base(common), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326 "-" "-"`, base(common), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326 1.250`, base(func(r *Request) { r.Header, r.Start = nil, start-1_250_000 }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer + ` 0.005`, base(func(r *Request) { r.Start -= 5000 }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer + ` 5000`, base(func(*Request) {}), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer + ` "203.0.113.9, 10.0.0.1" 0.005 0.004`, base(func(r *Request) {
			r.Start -= 5000
			r.Header.Set("X-Forwarded-For", "203.0.113.9, 10.0.0.1")
		}), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer + ` "-" "a" "b"`, base(func(*Request) {}), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer + ` "shop"`, base(func(*Request) {}), nil},
		{`192.0.2.7 - alice [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.User = "alice" }), nil},
		{`192.0.2.7 -  [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(*Request) {}), nil},
		{`192.0.2.7 - "" [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(*Request) {}), nil},
		{`192.0.2.7 - a [1] \"b [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.User = `a [1] "b` }), nil},
		{`192.0.2.7 - a] \"[ [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.User = `a] "[` }), nil},
		{`2001:db8::7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.RemoteIP = "2001:db8::7" }), nil},
		{`shop.example.com:443 192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.Host = "shop.example.com:443" }), nil},
		{`client.example.com - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.RemoteIP = "client.example.com" }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z HTTP/1.0" 304 -` + referer, base(func(r *Request) { r.Status, r.Size = 304, 0 }), nil},
		{`192.0.2.7 - - [2023-11-14T22:13:20+01:00] "GET /x?y=z HTTP/1.0" 200 2326` + referer, base(func(*Request) {}), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /x?y=z" 200 2326` + referer, base(func(r *Request) { r.Proto = "" }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /a b HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.URI = "/a b" }), nil},
		// As Apache writes it, as nginx does, and as Caddy's transform encoder does.
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /\"\\\xc3\xa9\n HTTP/1.0" 200 2326 "-" "a\"b\tc"`, base(func(r *Request) { r.URI, r.Header = "/\"\\é\n", http.Header{"User-Agent": {"a\"b\tc"}} }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /\x22\x5C\xC3\xA9\x0A HTTP/1.0" 200 2326 "-" "a\x22b\x09c"`, base(func(r *Request) { r.URI, r.Header = "/\"\\é\n", http.Header{"User-Agent": {"a\"b\tc"}} }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /\"\\é\u000a HTTP/1.0" 200 2326 "-" "a\"b\tc"`, base(func(r *Request) { r.URI, r.Header = "/\"\\é\n", http.Header{"User-Agent": {"a\"b\tc"}} }), nil},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET /\x2\xzz\q\u12 HTTP/1.0" 200 2326` + referer, base(func(r *Request) { r.URI = `/\x2\xzz\q\u12` }), nil},

		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "-" 408 0 "-" "-"`, nil, ErrNotAccess},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "" 400 0 "-" "-"`, nil, ErrNotAccess},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "\x16\x03\x01\x02\x00 \x01" 400 157 "-" "-"`, nil, ErrNotAccess},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET" 400 157 "-" "-"`, nil, ErrNotAccess},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0`, nil, errFormat},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0"`, nil, errFormat},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 200`, nil, errFormat},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 20 5`, nil, errFormat},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 200 -5`, nil, errFormat},
		{`192.0.2.7 - - [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 200 5 "half`, nil, errFormat},
		{`192.0.2.7 - - [yesterday] "GET / HTTP/1.0" 200 5`, nil, errFormat},
		{`- [14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 200 5`, nil, errFormat},
		{`[14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 200 5`, nil, errFormat},
		{`14/Nov/2023:22:13:20 +0100] "GET / HTTP/1.0" 200 5`, nil, errFormat},
	}
	var p Parser
	for _, test := range tests {
		var got Request
		if err := p.Parse([]byte(test.line), &got); err != test.err {
			t.Errorf("the error is %v, want %v\n%s", err, test.err, test.line)
		}
		if test.want != nil && !equal(&got, test.want) {
			t.Errorf("%s\n got %s\nwant %s", test.line, shown(&got), shown(test.want))
		}
	}
}

func TestReadTime(t *testing.T) {
	const want = 1_700_000_000_123_457
	for text, want := range map[string]int64{
		"1700000000.1234567":                  want,
		"1700000000123.4567":                  want,
		"1700000000123457":                    want,
		"1700000000123456789":                 want,
		"1.7000000001234567e+09":              want,
		"1700000000":                          1_700_000_000_000_000,
		"2023-11-14T22:13:20.123456789Z":      want,
		"2023-11-15T00:13:20.123456789+02:00": want,
		"2023-11-15T00:13:20.123456789+0200":  want,
		"2023/11/14 22:13:20.123456789":       want,
		"2023/11/14 22:13:20":                 1_700_000_000_000_000,
		"15/Nov/2023:00:13:20 +0200":          1_700_000_000_000_000,
		"2023-11-14 22:13:20.123456789":       want,
		"":                                    0,
		"0":                                   0,
		".5":                                  0,
		"-1":                                  0,
		"17e":                                 0,
		"1e400":                               0,
		"1700000000.12x":                      0,
		"NaN":                                 0,
		"1700000000123456789012":              0,
		"1969-11-14T22:13:20Z":                0,
		"{ts}":                                0,
	} {
		var r timeReader
		for range 2 { // also with the remembered layout
			if got, ok := r.read([]byte(text)); got != want || ok != (want > 0) {
				t.Errorf("the time of %q is %d, %v, want %d", text, got, ok, want)
			}
		}
	}
}

// A Parser allocates nothing for lines like those before, and keeps little memory after long ones.
func TestParseAllocates(t *testing.T) {
	texts := [][]byte{
		benchmarkLine,
		[]byte(`192.0.2.7 - alice [14/Nov/2023:22:13:20 +0100] "GET /\"x HTTP/1.0" 200 2326 "https://example.com/" "curl/8" 0.5`),
	}
	var p Parser
	var r Request
	for _, text := range texts {
		if n := testing.AllocsPerRun(100, func() {
			errtest.None(t, p.Parse(text, &r))
		}); n > 0 {
			t.Errorf("%v allocations for %s", n, text)
		}
	}
	var many strings.Builder
	for i := range maxValues / 3 {
		fmt.Fprintf(&many, `"X%d":["b"],`, i)
	}
	if err := p.Parse(line(`request:{"headers":{`+strings.TrimSuffix(many.String(), ",")+`}}`), &r); err != nil || len(r.Header) != maxValues/3 {
		t.Fatal(err, len(r.Header))
	}
	large := reflect.ValueOf(r.Header).Pointer()
	errtest.None(t, p.Parse(line(), &r))
	if cap(p.values) > 1000 || reflect.ValueOf(r.Header).Pointer() == large {
		t.Errorf("room for %d values remains, or the large map of the header", cap(p.values))
	}
}

// benchmarkLine has 12 header fields.
var benchmarkLine = []byte(`{"level":"info","ts":1790000000.1234567,"logger":"http.log.access.log0","msg":"handled request","request":` +
	`{"remote_ip":"203.0.113.77","remote_port":"51234","client_ip":"203.0.113.77","proto":"HTTP/2.0","method":"GET",` +
	`"host":"www.example.com","uri":"/api/items/12345?page=3","headers":{"User-Agent":["Mozilla/5.0 (X11; Linux x86_64; rv:140.0)` +
	` Gecko/20100101 Firefox/140.0"],"Accept":["text/html,application/xhtml+xml"],"Accept-Language":["en-US,en;q=0.5"],` +
	`"Accept-Encoding":["gzip, deflate, br, zstd"],"Referer":["https://www.example.com/"],"Cookie":["REDACTED"],` +
	`"Sec-Fetch-Dest":["document"],"Sec-Fetch-Mode":["navigate"]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,` +
	`"proto":"h2","server_name":"www.example.com"}},"bytes_read":0,"user_id":"","duration":0.001234567,"size":2326,"status":200,` +
	`"resp_headers":{"Server":["Caddy"],"Content-Type":["text/html; charset=utf-8"],"Content-Encoding":["gzip"],"Date":` +
	`["Sun, 22 Nov 2026 18:19:00 GMT"]}}`)
