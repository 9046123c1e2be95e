package accesslog

import (
	"strings"
	"testing"
	"time"
)

// Parts of lines. The time is someTime in whole seconds.
const (
	at   = `[14/Nov/2023:22:13:20 +0000]`
	get  = `"GET /a HTTP/1.1" 200 88`
	tail = ` - - ` + at + ` ` + get + ` "-" "curl/8"`
	// caddyLine is a line of Caddy. It has the same client, host and duration as the others.
	caddyLine = `{"level":"info","ts":1700000000.25,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"198.51.100.23",` +
		`"remote_port":"1","client_ip":"198.51.100.23","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/a","headers":{}},"bytes_read":0,` +
		`"user_id":"","duration":0.003,"size":12,"status":200,"resp_headers":{}}`
	fromCaddy = "198.51.100.23 host=example.com took=3ms"
	// fields is the JSON that the console encoder writes after the message.
	fields = `{"request": {"remote_ip": "198.51.100.23", "client_ip": "198.51.100.23", "method": "GET", "host": "example.com", "uri": "/a"}, "duration": 0.003, "status": 200}`
)

// shape is a line as other programs write it, and what is read of it: the client, the host, the user, and the duration.
// For a broken line, want is the beginning of the error.
type shape struct{ name, line, want string }

// shapesOfCombined are lines in the combined format, with more before, within and after it.
var shapesOfCombined = []shape{
	{"combined", `198.51.100.23` + tail, "198.51.100.23"},

	{"a list", `198.51.100.23, 172.18.0.1` + tail, "198.51.100.23"},
	{"a list without spaces", `198.51.100.23,172.18.0.1` + tail, "198.51.100.23"},
	{"a list that begins with a private address", `10.1.2.3, 198.51.100.23, 172.18.0.1` + tail, "10.1.2.3"},
	{"a list with ports", `198.51.100.23:51000, 172.18.0.1:80` + tail, "198.51.100.23"},
	{"a list of IPv6 with ports, in quotes", `"[2001:db8::5]:4711, 10.0.0.1"` + tail, "2001:db8::5"},
	{"X-Forwarded-For behind a unix socket", `unix:` + tail + ` "198.51.100.23"`, "198.51.100.23"},
	{"X-Forwarded-For behind shared address space", `100.64.0.1` + tail + ` "198.51.100.23"`, "198.51.100.23"},
	{"an upstream", `10.0.0.7` + tail + ` "192.0.2.8:8080"`, "10.0.0.7"},
	{"a list with unknown", `unknown, 198.51.100.23, 172.18.0.1` + tail, "198.51.100.23"},
	{"the proxy and a list", `172.18.0.1 10.5.5.5, 172.19.0.1` + tail, "10.5.5.5"},
	{"an address in quotes", `"198.51.100.23"` + tail, "198.51.100.23"},
	{"a dash in quotes", `"-" 198.51.100.23` + tail, "198.51.100.23"},
	{"a dash", `- 198.51.100.23` + tail, "198.51.100.23"},
	{"the header behind the proxy", `172.18.0.1 198.51.100.23` + tail, "198.51.100.23"},
	{"the header at the end", `172.18.0.1` + tail + ` "198.51.100.23"`, "198.51.100.23"},
	{"a list at the end", `172.18.0.1` + tail + ` "198.51.100.23, 10.0.0.1"`, "198.51.100.23"},
	{"an upstream server at the end", `172.18.0.1` + tail + ` "10.0.0.5:8080"`, "172.18.0.1"},
	{"a header that anybody can send", `203.0.113.9` + tail + ` "198.51.100.23"`, "203.0.113.9"},

	{"brackets", `[198.51.100.23]` + tail, "198.51.100.23"},
	{"a port", `198.51.100.23:51000` + tail, "198.51.100.23"},
	{"IPv6", `2001:db8::7` + tail, "2001:db8::7"},
	{"IPv6 in brackets", `[2001:db8::7]` + tail, "2001:db8::7"},
	{"IPv6 with a port", `[2001:db8::7]:51000` + tail, "2001:db8::7"},
	{"IPv6 with a zone", `fe80::7%eth0` + tail, "fe80::7"},
	{"IPv4 in IPv6", `::ffff:198.51.100.23` + tail, "::ffff:198.51.100.23"},

	{"a host", `shop.example.com 198.51.100.23` + tail, "198.51.100.23 host=shop.example.com"},
	{"a host with a port", `shop.example.com:443 198.51.100.23` + tail, "198.51.100.23 host=shop.example.com:443"},
	{"a host and a list", `shop.example.com 198.51.100.23, 172.18.0.1` + tail, "198.51.100.23 host=shop.example.com"},
	{"a host and a port of the client", `shop.example.com:80 198.51.100.23:51000` + tail, "198.51.100.23 host=shop.example.com:80"},
	{"no name of a server", `_ 198.51.100.23` + tail, "198.51.100.23"},
	{"a user", `198.51.100.23 - alice ` + at + ` ` + get, "198.51.100.23 user=alice"},
	{"a user with a space", `198.51.100.23 - alice smith ` + at + ` ` + get, "198.51.100.23 user=alice smith"},
	{"a user with an address", `198.51.100.23 - a 203.0.113.99 - b ` + at + ` ` + get, "198.51.100.23 user=a 203.0.113.99 - b"},
	{"a user with a list", `198.51.100.23 - a, 203.0.113.99 ` + at + ` ` + get, "198.51.100.23 user=a, 203.0.113.99"},
	{"a user behind a list", `198.51.100.23, 172.18.0.1 - alice ` + at + ` ` + get, "198.51.100.23 user=alice"},
	{"a user in quotes", `198.51.100.23 - "alice" ` + at + ` ` + get, "198.51.100.23 user=alice"},

	{"a text", `client.example.com` + tail, "client.example.com"},
	{"a text behind syslog", `Nov 14 22:13:20 web1 nginx: client.example.com` + tail, "client.example.com"},
	{"nobody", `-` + tail, "-"},
	{"a unix socket", `unix:` + tail, "unix:"},

	{"syslog", `Nov 14 22:13:20 web1 nginx: 198.51.100.23` + tail, "198.51.100.23"},
	{"syslog of a host that is an address", `Nov 14 22:13:20 192.0.2.53 nginx: 198.51.100.23` + tail, "198.51.100.23"},
	{"syslog with a virtual host", `Nov 14 22:13:20 web1 apache: shop.example.com:443 198.51.100.23` + tail, "198.51.100.23 host=shop.example.com:443"},
	{"rsyslog with a list", `2023-11-14T22:13:20.000+00:00 lb nginx: 198.51.100.23, 10.0.0.1` + tail, "198.51.100.23"},
	{"RFC 5424", `<190>1 2023-11-14T22:13:20Z web1 nginx - - - 198.51.100.23` + tail, "198.51.100.23"},
	{"RFC 5424 with a host", `<190>1 2023-11-14T22:13:20Z web1.example.com - - - - 198.51.100.23` + tail, "198.51.100.23"},
	{"journald, exported", `MESSAGE=198.51.100.23` + tail, "198.51.100.23"},
	{"docker compose", `web-1  | 198.51.100.23` + tail, "198.51.100.23"},
	{"docker compose with a virtual host", `web-1  | shop.example.com 198.51.100.23` + tail, "198.51.100.23 host=shop.example.com"},
	{"docker logs -t", `2023-11-14T22:13:20.123456789Z 198.51.100.23` + tail, "198.51.100.23"},
	{"CRI", `2023-11-14T22:13:20.123Z stdout F 198.51.100.23` + tail, "198.51.100.23"},
	{"CRI with a virtual host", `2023-11-14T22:13:20.123Z stdout F shop.example.com 198.51.100.23` + tail, "198.51.100.23 host=shop.example.com"},
	{"stern", `web-7f nginx 198.51.100.23` + tail, "198.51.100.23"},
	{"kubectl logs --prefix", `[pod/web-7f/nginx] 198.51.100.23` + tail, "198.51.100.23"},
	{"grep", `access.log:198.51.100.23` + tail, "198.51.100.23"},

	{"two spaces", `198.51.100.23  -  -  ` + at + `  "GET /a HTTP/1.1"  200  88  "-"  "curl/8"`, "198.51.100.23"},
	{"tabs", strings.ReplaceAll(`198.51.100.23|-|-|`+at+`|"GET /a HTTP/1.1"|200|88|"-"|"curl/8"`, "|", "\t"), "198.51.100.23"},
	{"no space", `198.51.100.23 - - ` + at + get, "198.51.100.23"},
	{"a fraction", `198.51.100.23 - - [14/Nov/2023:22:13:20.250 +0000] ` + get, "198.51.100.23"},
	{"ISO 8601", `198.51.100.23 - - [2023-11-14T22:13:20+00:00] ` + get, "198.51.100.23"},
	{"seconds", `198.51.100.23 - - [1700000000.250] ` + get, "198.51.100.23"},
	{"an escaped quote", `198.51.100.23 - - ` + at + ` "GET /a?\"b\" HTTP/1.1" 200 88 "-" "a\"] \"b"`, "198.51.100.23"},
	{"no request", `198.51.100.23 - - ` + at + ` "-" 408 0 "-" "-"`, ErrNotAccess.Error()},

	{"a user that begins with a list", `198.51.100.23 - 203.0.113.99, 203.0.113.98 - ` + at + ` ` + get, "198.51.100.23 user=203.0.113.99, 203.0.113.98 -"},

	{"$request_time", `198.51.100.23` + tail + ` 0.003`, "198.51.100.23 took=3ms"},
	{"$request_time and that of the upstream server", `198.51.100.23` + tail + ` 0.003 0.002`, "198.51.100.23 took=3ms"},
	{"$gzip_ratio and $request_time", `198.51.100.23` + tail + ` 2.87 0.003`, "198.51.100.23 took=3ms"},
	{"$gzip_ratio", `198.51.100.23` + tail + ` 2.87`, "198.51.100.23"},
	{"$msec", `198.51.100.23` + tail + ` 1700000000.123 0.003`, "198.51.100.23 took=3ms"},
	{"named", `198.51.100.23` + tail + ` rt=0.003 uct="0.001" urt="0.002, 0.001"`, "198.51.100.23 took=3ms"},
	{"a unit", `198.51.100.23` + tail + ` 1 "web@docker" "http://10.0.0.5:80" 3ms`, "198.51.100.23 took=3ms"},
	{"microseconds", `198.51.100.23` + tail + ` 3000`, "198.51.100.23"},

	{"Nginx Proxy Manager", at + ` - 200 200 - GET https example.com "/path" [Client 198.51.100.23] [Length 88] [Gzip -] [Sent-to 172.18.0.5] "curl/8" "-"`, "simulate reads"},
	{"HAProxy", `lb haproxy[9]: 198.51.100.23:33317 [14/Nov/2023:22:13:20.655] http static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {} {} "GET /a HTTP/1.1"`, "simulate reads"},
	{"IIS", `2023-11-14 22:13:20 10.0.0.4 GET /a - 443 - 198.51.100.23 curl/8 - 200 0 0 15`, "simulate reads"},
	{"an error log", `2023/11/14 22:13:20 [error] 9#9: *1 open() "/a" failed, client: 198.51.100.23, request: "GET /a HTTP/1.1"`, "simulate reads"},
	{"Envoy", `[2023-11-14T22:13:20.000Z] "GET /a HTTP/1.1" 200 - 0 88 5 4 "198.51.100.23" "curl/8"`, "simulate reads"},
}

// shapesOfJSON are lines of Caddy, and lines in JSON.
var shapesOfJSON = []shape{
	{"Caddy", caddyLine, fromCaddy},
	{"Caddy before 2.7", strings.Replace(caddyLine, `"client_ip":"198.51.100.23",`, "", 1), fromCaddy},
	{"an empty client_ip", strings.Replace(caddyLine, `"client_ip":"198.51.100.23"`, `"client_ip":""`, 1), " host=example.com took=3ms"},
	{"console", "2023/11/14 22:13:20.250\tINFO\thttp.log.access.log0\thandled request\t" + fields, fromCaddy},
	{"console with colors", "2023/11/14 22:13:20.250\t\x1b[34mINFO\x1b[0m\thttp.log.access.log0\thandled request\t" + fields, fromCaddy},
	{"console behind syslog", "Nov 14 22:13:20 web1 caddy[9]: 2023/11/14 22:13:20.250\tINFO\thttp.log.access\thandled request\t" + fields, fromCaddy},
	{"console behind rsyslog", "Nov 14 22:13:20 web1 caddy[9]: 2023/11/14 22:13:20.250#011INFO#011http.log.access#011handled request#011" + fields, fromCaddy},
	{"console behind docker compose", "caddy-1  | 2023/11/14 22:13:20.250\tINFO\thttp.log.access\thandled request\t" + fields, fromCaddy},
	{"console behind docker logs -t", "2023-11-14T22:13:20.25Z 2023/11/14 22:13:20.250\tINFO\thttp.log.access\thandled request\t" + fields, fromCaddy},
	{"another message on the console", "caddy-1  | 2023/11/14 22:13:20.250\tINFO\tadmin\tadmin endpoint started\t{\"address\": \"localhost:2019\"}", ErrNotAccess.Error()},
	{"common_log as the log", `198.51.100.23 - - [14/Nov/2023:22:13:20 +0000] "GET /a HTTP/2.0" 200 12`, "198.51.100.23"},

	{"syslog", `Nov 14 22:13:20 web1 caddy[9]: ` + caddyLine, fromCaddy},
	{"RFC 5424", `<190>1 2023-11-14T22:13:20Z web1 caddy - - - ` + caddyLine, fromCaddy},
	{"docker compose", `caddy-1  | ` + caddyLine, fromCaddy},
	{"docker logs -t", `2023-11-14T22:13:20.25Z ` + caddyLine, fromCaddy},
	{"CRI", `2023-11-14T22:13:20.25Z stderr F ` + caddyLine, fromCaddy},
	{"a part in CRI", `2023-11-14T22:13:20.25Z stderr P ` + caddyLine[:300], errSyntax.Error()},
	{"the rest in CRI", `2023-11-14T22:13:20.25Z stderr F ` + caddyLine[300:], "simulate reads"},
	{"stern", `caddy-7f caddy ` + caddyLine, fromCaddy},
	{"kubectl logs --prefix", `[pod/caddy-7f/caddy] ` + caddyLine, fromCaddy},
	{"Loki", `2023-11-14T22:13:20Z {app="caddy", pod="caddy-7f"} ` + caddyLine, fromCaddy},
	{"Loki without the time", `{app="caddy"} ` + caddyLine, fromCaddy},
	{"journald, exported", `MESSAGE=` + caddyLine, fromCaddy},
	{"a list in JSON", caddyLine + `,`, fromCaddy},

	{"nginx", `{"time":"2023-11-14T22:13:20Z","remote_addr":"198.51.100.23","request_method":"GET","request_uri":"/a","status":200,"host":"example.com"}`, "simulate reads"},
	{"Traefik", `{"ClientHost":"198.51.100.23","RequestMethod":"GET","RequestPath":"/a","DownstreamStatus":200,"level":"info","msg":"","time":"2023-11-14T22:13:20Z"}`, "simulate reads"},
	{"Kong", `{"client_ip":"198.51.100.23","request":{"method":"GET","uri":"/a"},"response":{"status":200},"started_at":1700000000250}`, "simulate reads"},
	{"a list", `[{"a":1}]`, "simulate reads"},
}

// summary describes a request as a shape does.
func summary(r *Request) string {
	text := r.Client()
	for _, field := range []struct{ name, value string }{{"host", r.Host}, {"user", r.User}} {
		if field.value != "" {
			text += " " + field.name + "=" + field.value
		}
	}
	if r.End != r.Start {
		text += " took=" + (time.Duration(r.End-r.Start) * time.Microsecond).String()
	}
	return text
}

// The client is an address wherever a line has one, and no text of another program becomes a host.
func TestShapes(t *testing.T) {
	var used Parser
	for _, shape := range append(shapesOfCombined, shapesOfJSON...) {
		for _, p := range []*Parser{&used, {}} {
			var r Request
			var got string
			if err := p.Parse([]byte(shape.line), &r); err != nil {
				got = err.Error()
				got = got[:min(len(got), len(shape.want))]
			} else if got = summary(&r); r.End/1_000_000 != someTime/1_000_000 || r.Method != "GET" || r.Status != 200 || !strings.HasPrefix(r.URI, "/a") {
				t.Errorf("%s: %s\n%s", shape.name, shown(&r), shape.line)
			}
			if got != shape.want {
				t.Errorf("%s: got %q, want %q\n%s", shape.name, got, shape.want, shape.line)
			}
		}
		if at, ok := used.timeOf([]byte(shape.line), new(Request)); ok && at/1_000_000 != someTime/1_000_000 {
			t.Errorf("%s: the time is %d\n%s", shape.name, at, shape.line)
		}
	}
}

// Only a missing client_ip is replaced, and only that of a log without it.
func TestLacksClientIP(t *testing.T) {
	for line, want := range map[string]bool{
		`198.51.100.23` + tail:                             true,
		`172.18.0.1` + tail + ` "198.51.100.23"`:           false,
		caddyLine:                                          false,
		strings.Replace(caddyLine, "client_ip", "x", 1):    true,
		strings.Replace(caddyLine, "198.51.100.23", "", 2): false,
	} {
		var r Request
		if err := new(Parser).Parse([]byte(line), &r); err != nil || r.LacksClientIP != want {
			t.Errorf("%t, %v, want %t\n%s", r.LacksClientIP, err, want, line)
		}
	}
}

// The time to read a line grows with its length, and not with the square of it.
func TestLongLines(t *testing.T) {
	for _, part := range []string{"a=", "198.51.100.23 ", "1,", "[14/Nov/2023:22:13:2x +0000]\"", "\x1b[m", "[x]\"", `{"a":`, "{", "\"", ":"} {
		long := strings.Repeat(part, maxLine/len(part))
		for _, line := range []string{long, long + tail, `198.51.100.23` + tail + long} {
			var r Request
			if err := new(Parser).Parse([]byte(line), &r); err == nil && r.Client() == "" {
				t.Errorf("%.20q: %s", part, shown(&r))
			}
		}
	}
}
