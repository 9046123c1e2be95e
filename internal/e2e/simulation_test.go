package e2e

import (
	"cmp"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/configuration"
)

// loadedSimulation is a configuration of a simulation.
type loadedSimulation struct{ simulate.Configuration }

// loadSimulation loads a Caddyfile for a simulation. Its sites {$SITE} and {$OTHER} are on port 8080.
func loadSimulation(t testing.TB, caddyfile string) (s loadedSimulation) {
	t.Helper()
	c := caddytest.Caddy{Site: "127.0.0.1:8080", Admin: "127.0.0.1:2019"}
	config, err := caddytest.Adapt(t, []byte(c.Expand(caddyfile)))
	errtest.None(t, err)
	s.Configuration, err = configuration.Load([]byte(config))
	errtest.None(t, err)
	return s
}

// loggedGet returns a logged GET of a URI of {$SITE}. header is pairs of name and value.
func loggedGet(uri string, header ...string) *accesslog.Request {
	r := &accesslog.Request{
		Start: 1_700_000_000_000_000, End: 1_700_000_000_250_000,
		Method: http.MethodGet, Host: "127.0.0.1:8080", URI: uri, Proto: "HTTP/1.1", Header: make(http.Header),
		RemoteIP: "127.0.0.1", RemotePort: "50000", ClientIP: "127.0.0.1", Status: 200, ResponseHeader: make(http.Header),
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// visit leads a request through the routes.
func (s loadedSimulation) visit(t testing.TB, r *accesslog.Request) *simulate.Visit {
	t.Helper()
	v, err := s.Visit(r)
	errtest.None(t, err)
	return v
}

// met returns the zones and keys of a Visit.
func (s loadedSimulation) met(v *simulate.Visit) string {
	var met []string
	for _, h := range v.Handlers {
		for i, z := range h.Zones {
			met = append(met, s.Zones()[z.Zone].Name+"="+h.Requests[i].Key)
		}
	}
	return strings.Join(met, " ")
}

// wantNote checks that exactly one note has a text.
func (s loadedSimulation) wantNote(t testing.TB, text string) {
	t.Helper()
	if notes := strings.Join(s.Notes(), "\n"); strings.Count(notes, text) != 1 {
		t.Errorf("no note, or several, with %q:\n%s", text, notes)
	}
}

// A logged request meets the same zones, with the same keys, as the request itself.
func TestSimulationRoutes(t *testing.T) {
	s := loadSimulation(t, explainedRoutes)
	for _, test := range routedRequests {
		r := loggedGet(test.path, test.header...)
		r.Method, r.User = cmp.Or(test.method, r.Method), test.user
		if test.host != "" {
			r.Host = "localhost:8080"
		}
		if forwarded := r.Header.Get("X-Forwarded-For"); forwarded != "" {
			r.ClientIP = forwarded
		}
		want := strings.ReplaceAll(test.want, "%2F", "/")
		if got := s.met(s.visit(t, r)); got != want {
			t.Errorf("%s: %s, want %s", test.path, got, want)
		}
	}
	s.wantNote(t, "requests meet a reverse_proxy with handle_response")
	s.wantNote(t, "requests meet the handler test_hold, which does not run here: it is assumed to pass them on unchanged")
}

// A file_server with an explicit pass_thru false ends the walk, as one without the option.
func TestSimulationReadsOptions(t *testing.T) {
	const limited = `{"handle":[{"handler":"rate_limit","rate_limits":{"a":{"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}}}]}`
	for options, want := range map[string]string{
		``: "", `,"pass_thru":false`: "", `,"pass_thru":null`: "", `,"pass_thru":true`: "a=",
	} {
		s, err := configuration.Load([]byte(`{"apps":{"http":{"servers":{"srv0":{"routes":[{"handle":[{"handler":"file_server"` + options + `}]},` +
			limited + `]}}}}}`))
		errtest.None(t, err)
		of := loadedSimulation{s}
		if got := of.met(of.visit(t, loggedGet("/"))); got != want {
			t.Errorf("with the options %q met %q, want %q", options, got, want)
		}
	}
}

// The notes say what the log doesn't have of what the configuration uses.
func TestSimulationNotes(t *testing.T) {
	const caddyfile = `example.com {
	basic_auth {
		bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje
	}
	@key header X-Matched 1
	vars @key zone {env.HOME}
	handle /file {
		file_server {
			pass_thru
		}
	}
	@file not file {path}.html
	respond @file 404
	encode gzip
	route {
		rate_limit {
			zone a {
				match header X-In-Zone *
				key {header.X-Key} {cookie.session}
				plan {http.auth.user.plan} {
					gold {
						gcra 3 1h
					}
				}
				gcra 1 1h
				settle {
					cost {http.response.header.X-Cost}
				}
			}
			zone b {
				key {http.rate_limit.request.json.user}
				gcra 1 1h
				settle {
					cost {http.rate_limit.response.json.tokens}
				}
			}
		}
		rate_limit {
			zone c {
				key {http.rate_limit.b.remaining}{client_ip}
				gcra 1 1h
			}
		}
	}
	handle_errors {
		rate_limit {
			zone c {
				key {http.rate_limit.b.remaining}{client_ip}
				gcra 1 1h
			}
		}
	}
}
`
	s := loadSimulation(t, caddyfile)
	r := loggedGet("/file", "Cookie", "REDACTED")
	r.Host, r.LacksClientIP = "", true
	r.TLS = &accesslog.TLS{}
	s.visit(t, r)
	for _, text := range []string{
		"requests in the log have no host: they are assumed to be for example.com",
		"requests in the log have no client_ip",
		"the header field X-Matched, which no request in the log has: if clients send it",
		"the header field X-In-Zone, which no request",
		"the header field X-Key, which no request",
		"the header field X-Cost, which no response in the log has: if the application sends it",
		"the header field Cookie, which the log has only as REDACTED: write log_credentials",
		"requests without a user meet an authentication handler",
		"requests meet a file_server with pass_thru",
		"the matcher file looks at the files of this machine",
		"the rate_limit handlers in error routes are left out",
		"{env.HOME} can be empty or differ from production",
		"{http.auth.user.plan} can be empty or differ from production",
		"{http.rate_limit.b.remaining} is empty, because the decisions",
	} {
		s.wantNote(t, text)
	}
	if n := len(s.Notes()); n != 14 {
		t.Errorf("%d notes:\n%s", n, strings.Join(s.Notes(), "\n"))
	}
	// A log that has all of this leads to fewer notes.
	r = loggedGet("/file", "Cookie", "session=1", "X-Matched", "1", "X-In-Zone", "1", "X-Key", "k")
	r.Host, r.ResponseHeader, r.User, r.TLS = "example.com", http.Header{"X-Cost": {"2"}}, "bob", &accesslog.TLS{}
	s = loadSimulation(t, caddyfile)
	v := s.visit(t, r)
	if got, want := s.met(v), "a=k c=127.0.0.1"; got != want {
		t.Errorf("met %q, want %q", got, want)
	}
	if n := len(s.Notes()); n != 6 {
		t.Errorf("%d notes:\n%s", n, strings.Join(s.Notes(), "\n"))
	}
}

// A request whose routes fail has met what came before the failure, and leaves nothing for the next request.
func TestSimulationOfFailingRoutes(t *testing.T) {
	s := loadSimulation(t, `&(again) {
	invoke again
}
{$SITE} {
	route {
		rate_limit {
			zone a {
				gcra 1 1h
			}
		}
		handle /again {
			invoke again
		}
		@fails expression int({query.n}) > 1
		respond @fails 404
		rate_limit {
			zone b {
				gcra 1 1h
			}
		}
	}
}
`)
	for _, test := range []struct{ uri, want string }{
		{"/?n=1", "a= b="}, {"/?n=2", "a="}, {"/?n=x", "a="}, {"/again", "a="}, {"/?n=1", "a= b="},
	} {
		if got := s.met(s.visit(t, loggedGet(test.uri))); got != test.want {
			t.Errorf("%s met %q, want %q", test.uri, got, test.want)
		}
	}
	s.wantNote(t, "requests that ended with an error in the routes: 2")
	for _, uri := range []string{"", "x", "%zz", "/%zz"} {
		if v, err := s.Visit(loggedGet(uri)); err == nil {
			t.Errorf("%q: %+v", uri, v)
		}
	}
	connect := loggedGet("example.com:443")
	connect.Method = http.MethodConnect
	if got := s.met(s.visit(t, connect)); got != "a=" && got != "a= b=" {
		t.Errorf("CONNECT met %q", got)
	}
}

// A request leaves nothing behind for the next one: no user, variable, mapped value or header field. The logged request
// stays as it is, for another configuration.
func TestSimulationForgets(t *testing.T) {
	s := loadSimulation(t, `(limit) {
	rate_limit {
		zone a {
			key "{vars.v} {m} {header.X-A} {http.response.header.X-R} {http.regexp.r.1}"
			gcra 1 1h
		}
		zone users {
			key {http.auth.user.id}
			gcra 1 1h
		}
	}
}
{$SITE} {
	route /sets/* {
		basic_auth {
			bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje
		}
		vars v 1
		map {path} {m} {
			default one
		}
		request_header X-A 1
		header X-R 1
		@r path_regexp r ^/sets/(.*)
		vars @r w 1
		import limit
	}
	route /maps {
		map {path} {m} {
			default two
		}
		import limit
	}
	import limit
	respond ok
}
`)
	for _, test := range []struct{ uri, want string }{
		{"/sets/x", " a=1 one 1 1 x users=bob"},
		{"/maps", " a= two   "},
		{"/", ""},
		{"/maps", " a= two   "},
		{"/sets/y", " a=1 one 1 1 y users=bob"},
		{"/", ""},
	} {
		r := loggedGet(test.uri)
		r.User = "bob"
		const first = "a=    " // the limit of all paths comes first, and sees nothing of this
		if got := s.met(s.visit(t, r)); got != first+test.want {
			t.Errorf("%s met %q, want %q", test.uri, got, first+test.want)
		}
		if len(r.Header)+len(r.ResponseHeader) > 0 {
			t.Errorf("%s has changed the logged header to %v, %v", test.uri, r.Header, r.ResponseHeader)
		}
	}
}

// Clients choose the lengths of keys, and the order in which requests are led through the routes changes from run to
// run. Visits stay small, and reports are always the same.
func TestSimulationOfLongTexts(t *testing.T) {
	const caddyfile = `http://:80 {
	rate_limit {
		zone a {
			key {header.X-Key}
			gcra 1 1h
		}
		HASHED
	}
	@fails expression {http.request.uri.query.n} == "" || int({http.request.uri.query.n}) > 1
	respond @fails 404
}
`
	long := strings.Repeat("k", 64_000)
	const maxVisitedKey, maxVisitedText = keyhash.MaxKept, 64
	for _, secret := range []string{"", "secret-of-this-test"} {
		hashed := ""
		if secret != "" {
			hashed = "redis localhost:1 {\nhash_keys " + secret + "\n}"
		}
		s := loadSimulation(t, strings.Replace(caddyfile, "HASHED", hashed, 1))
		for _, key := range []string{long, long[:maxVisitedKey+1], long[:maxVisitedKey]} {
			r := loggedGet("/"+long, "X-Key", key)
			r.ClientIP = long
			v := s.visit(t, r)
			got := v.Handlers[0].Requests[0].Key
			if len(got) > 2*maxVisitedKey || len(v.Client) > maxVisitedText {
				t.Errorf("a visit has texts of %d and %d bytes", len(got), len(v.Client))
			}
			if shown, want := s.ShownKey(0, got), keys.NewShown(secret, key).Text; strings.TrimSuffix(shown, "…") != want {
				t.Errorf("a key of %d bytes is shown as %s, want %s", len(key), shown, want)
			}
			other := s.visit(t, loggedGet("/", "X-Key", key+"l")).Handlers[0].Requests[0].Key
			if other == got {
				t.Errorf("different keys of %d bytes become one", len(key))
			}
		}
	}
}

// Notes don't depend on the order of requests, and don't grow with them.
func TestSimulationNotesInAnyOrder(t *testing.T) {
	notes := func(hosts ...string) string {
		s := loadSimulation(t, "http://:80 {\n\trate_limit {\n\t\tzone a {\n\t\t\tgcra 1 1h\n\t\t}\n\t}\n}\n")
		for _, host := range hosts {
			r := loggedGet("/")
			r.Host = host
			s.visit(t, r)
		}
		s.wantNote(t, "no server listens on the port of requests such as")
		return strings.Join(s.Notes(), "\n")
	}
	first, second := "a.example.com:9999", strings.Repeat("b", 10_000)+":9999"
	if got, want := notes(first, second), notes(second, first); got != want {
		t.Errorf("the notes are\n%s\nand in another order\n%s", got, want)
	}
	if text := notes(second); len(text) > 4*keys.MaxShown {
		t.Errorf("the notes have %d bytes", len(text))
	}
}
