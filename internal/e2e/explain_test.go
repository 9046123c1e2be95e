package e2e

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// zonesOf returns the zones that limit an explained request, in the handlers that it reaches.
func zonesOf(x adminapi.Explanation) (names []string) {
	for _, h := range x.Handlers {
		for _, z := range h.Zones {
			if h.Reached && z.Applies == "yes" {
				names = append(names, z.Zone)
			}
		}
	}
	return names
}

// zonesIn returns the zones that limited a request, by its response.
func zonesIn(r caddytest.Response) (names []string) {
	for _, field := range r.Header.Values("RateLimit-Policy") {
		for item := range strings.SplitSeq(field, ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(item), ";")
			if name = strings.Trim(name, `"`); !strings.Contains(name, "/") {
				names = append(names, name)
			}
		}
	}
	return names
}

// ofZone returns a zone of an explanation.
func ofZone(t testing.TB, x adminapi.Explanation, name string) adminapi.ExplainedZone {
	t.Helper()
	for _, h := range x.Handlers {
		for _, z := range h.Zones {
			if z.Zone == name {
				return z
			}
		}
	}
	t.Fatalf("no zone %s in %+v", name, x)
	return adminapi.ExplainedZone{}
}

const explainedRoutes = `{
	admin {$ADMIN}
	servers {
		trusted_proxies static 127.0.0.0/8
	}
}
(limit) {
	rate_limit {
		zone {args[0]} {
			key {args[1]}
			fixed_window 1000 1h
		}
	}
}
&(named) {
	rate_limit {
		zone named {
			key {path}
			fixed_window 1000 1h
		}
	}
	respond named
}
{$OTHER} {
	import limit other {path}
	respond other
}
{$SITE} {
	handle /ready {
		respond ok
	}
	handle_path /strip/* {
		import limit strip {path}
		respond ok
	}
	route /rewritten/* {
		uri strip_prefix /rewritten
		import limit before {path}
		rewrite /a /b?x=1
		@b path /b
		handle @b {
			import limit b {query}
			respond b
		}
		handle {
			import limit others {path}
			respond others
		}
		import limit never {path}
	}
	handle /invoked {
		import limit outside {path}
		invoke named
	}
	route /mapped/* {
		map {path} {tier} {
			/mapped/gold gold
			default free
		}
		vars color {tier}
		request_header X-Tier {tier}
		import limit mapped {tier}/{vars.color}/{header.X-Tier}
		import limit client {client_ip}
		respond ok
	}
	handle /basic {
		route {
			basic_auth {
				bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje
			}
			import limit user {http.auth.user.id}
			respond ok
		}
	}
	handle /forward {
		route {
			forward_auth {$SITE} {
				uri /auth
				copy_headers X-User
			}
			import limit forwarded {header.X-User}
			respond ok
		}
	}
	handle /auth {
		header X-User ann
		respond ok
	}
	handle /redirected {
		redir * /ready
	}
	handle /failing {
		error 503
	}
	handle /groups/* {
		@one path /groups/one*
		handle @one {
			import limit one {path}
		}
		handle /groups/* {
			import limit two {path}
		}
		encode gzip
		test_hold
		respond ok
	}
	handle /matched {
		rate_limit {
			zone methods {
				match method POST
				key {path}
				fixed_window 1000 1h
			}
			zone exempted {
				exempt header X-Free 1
				key {path}
				fixed_window 1000 1h
			}
			zone expression {
				match expression {query.n} == "1" && {header.X-A} == "1"
				key {path}
				fixed_window 1000 1h
			}
		}
		respond ok
	}
}
`

// routedRequest is a request to a site of explainedRoutes, with the zones and keys that it meets.
type routedRequest struct {
	path   string
	host   string
	method string
	header []string
	user   string
	want   string // zones and keys
	note   string // a part of a note of the explanation
}

var routedRequests = []routedRequest{
	{path: "/ready"},
	{path: "/elsewhere"},
	{path: "/strip/x", want: "strip=%2Fx"},
	{path: "/strip/x", host: "other", want: "other=%2Fstrip%2Fx"},
	{path: "/rewritten/a", want: "before=%2Fa b=x=1"},
	{path: "/rewritten/c", want: "before=%2Fc others=%2Fc"},
	{path: "/invoked", want: "outside=%2Finvoked named=%2Finvoked"},
	{path: "/mapped/gold", want: "mapped=gold%2Fgold%2Fgold client=127.0.0.1"},
	{path: "/mapped/x", header: []string{"X-Forwarded-For", "203.0.113.7"}, want: "mapped=free%2Ffree%2Ffree client=203.0.113.7"},
	{path: "/basic", header: []string{"Authorization", "Basic Ym9iOnNlY3JldA=="}, user: "bob", want: "user=bob"},
	{path: "/forward", header: []string{"X-User", "ann"}, want: "forwarded=ann", note: "in headers, write the fields that it would copy"},
	{path: "/redirected"},
	{path: "/failing"},
	{path: "/groups/one", want: "one=%2Fgroups%2Fone", note: "the handler test_hold"},
	{path: "/groups/other", want: "two=%2Fgroups%2Fother", note: "the handler test_hold"},
	{path: "/matched", want: "exempted=%2Fmatched"},
	{path: "/matched", method: "POST", want: "exempted=%2Fmatched methods=%2Fmatched"},
	{path: "/matched?n=1", header: []string{"X-A", "1", "X-Free", "1"}, want: "expression=%2Fmatched"},
}

// An explanation names the zones and keys that the request itself meets, on all kinds of routes.
func TestExplainRoutes(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, explainedRoutes)
	for _, test := range routedRequests {
		site := c.Site
		if test.host != "" {
			site = c.OtherSite()
		}
		q := adminapi.ExplainedRequest{Method: test.method, URL: "http://" + site + test.path, User: test.user, Headers: make(map[string]adminapi.Strings)}
		for i := 0; i < len(test.header); i += 2 {
			q.Headers[test.header[i]] = adminapi.Strings{test.header[i+1]}
		}
		x := c.Explain(t, q)
		var keys []string
		for _, h := range x.Handlers {
			for _, z := range h.Zones {
				if z.Applies == "yes" {
					keys = append(keys, z.Zone+"="+*z.Key.Key)
				}
			}
		}
		if got := strings.Join(keys, " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.path, got, test.want)
		}
		if notes := strings.Join(x.Notes, "\n"); !strings.Contains(notes, test.note) || test.note == "" && notes != "" {
			t.Errorf("%s: notes %q, want %q", test.path, notes, test.note)
		}
		if want := map[bool]string{true: "allowed", false: "unlimited"}[test.want != ""]; x.Verdict != want || x.Decides != nil {
			t.Errorf("%s: %s %+v, want %s", test.path, x.Verdict, x.Decides, want)
		}
		r, err := c.Do(cmp.Or(test.method, "GET"), "http://"+site+test.path, "", test.header...)
		errtest.None(t, err)
		if got, want := zonesOf(x), zonesIn(r); !slices.Equal(got, want) || r.StatusCode == http.StatusUnauthorized {
			t.Errorf("%s: the explanation has the zones %q, the request (%d) met %q", test.path, got, r.StatusCode, want)
		}
	}
	x := c.Explain(t, adminapi.ExplainedRequest{URL: "http://" + c.Site + "/basic"})
	if len(x.Notes) != 1 || !strings.Contains(x.Notes[0], "write user") || *ofZone(t, x, "user").Key.Key != "" {
		t.Errorf("without a user: %+v", x)
	}
	x = c.Explain(t, adminapi.ExplainedRequest{URL: "http://" + c.Site + "/mapped/x", ClientIP: "2001:db8::1", User: "bob"})
	if *ofZone(t, x, "client").Key.Key != "2001:db8::1" || len(x.Notes) != 1 || !strings.Contains(x.Notes[0], "user has no effect") {
		t.Errorf("an address: %+v", x)
	}
}

// A terminal route that doesn't respond ends the way, and a route without a match doesn't. A server without a port is found
// if no other listens on the port of the URL.
func TestExplainTerminalRoute(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n gcra 1 1h\n}"))
	_, port, _ := net.SplitHostPort(c.Site)
	route := func(path, name string, terminal bool) string {
		return fmt.Sprintf(`{"match":[{"path":[%q]}],"terminal":%t,"handle":[{"handler":"rate_limit","rate_limits":{%q:{"key":"{http.request.uri.path}",`+
			`"limits":[{"algorithm":"gcra","events":5,"window":"1h"}]}}}]}`, path, terminal, name)
	}
	config := fmt.Sprintf(`{"admin":{"listen":%q},"apps":{"http":{"servers":{"a":{"listen":[":%s"],"routes":[%s,%s,%s]},"b":{"listen":["unix/%s"],"routes":[%s]}}}}}`,
		c.Admin, port, route("/a*", "first", false), route("/ab*", "last", true), route("/*", "all", false),
		filepath.Join(t.TempDir(), "s"), route("/*", "socket", false))
	c.Loops = 3 // with the server at the socket
	c.Load(t, config, "application/json").Want(t, 200)
	for path, want := range map[string][]string{"/x": {"all"}, "/a": {"first", "all"}, "/ab": {"first", "last"}} {
		if got, met := zonesOf(c.ExplainPath(t, path)), zonesIn(c.Get(t, path)); !slices.Equal(got, want) || !slices.Equal(met, want) {
			t.Errorf("%s: the explanation has the zones %q, and the request met %q, want %q", path, got, met, want)
		}
	}
	x := c.Explain(t, adminapi.ExplainedRequest{URL: "http://behind.example:77/"})
	if names := fmt.Sprint(zonesOf(x)); names != "[socket]" || !strings.Contains(fmt.Sprint(x.Notes), "no server listens on port 77: the request is assumed to come to server b") {
		t.Errorf("zones %s and notes %q", names, x.Notes)
	}
}

// A wrong description gets an error that says what to write.
func TestExplainErrors(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, "{\n\tadmin {$ADMIN}\n}\n&(endless) {\n\tinvoke endless\n}\n{$SITE} {\n\trespond /ready ok\n\tinvoke /endless endless\n\trate_limit {\n\t\tzone api {\n\t\t\tfixed_window 1 1h\n\t\t}\n\t}\n}\n")
	url := `"url":"http://` + c.Site + `/"`
	for _, e := range []struct {
		status     int
		body, says string
	}{
		{400, "", "write for example"},
		{400, `{}`, "url: \\\"\\\" must begin with http"},
		{400, `{"url":"/login"}`, "must begin with http:// or https:// and a host"},
		{400, `{"url":"ftp://example.com/"}`, "must begin with http:// or https:// and a host"},
		{400, `{"url":"http://a:b@example.com/"}`, "write the ID of the user into user"},
		{400, `{"url":"http://example.com:99999/"}`, "url: its port"},
		{400, `{"url":"http://%zz/"}`, "write for example https://example.com/login?x=1"},
		{404, `{"url":"http://example.com/"}`, "no server listens on port 80: write a URL with the port of a server: srv0 on :"},
		{404, `{"url":"https://example.com/"}`, "no server listens on port 443"},
		{400, `{` + url + `,"client_ip":"localhost"}`, "client_ip must be an address"},
		{400, `{` + url + `,"method":"G T"}`, "invalid method"},
		{400, `{` + url + `,"headers":{"A B":"1"}}`, "is not a header field"},
		{400, `{` + url + `,"headers":{"A":"1\r\nB: 2"}}`, "is not a header field"},
		{400, `{` + url + `,"header":{}}`, "unknown field"},
		{413, `{` + url + `,"body":"` + strings.Repeat("x", 64<<10) + `"}`, "at most 65536 bytes"},
		{405, "GET", "use one of POST"},
	} {
		method := "POST"
		if e.status == 405 {
			method = e.body
		}
		if r := c.Operate(t, e.status, method, "explain", e.body); !strings.Contains(r.Text, e.says) {
			t.Errorf("%s: %s, want %q", e.body, r.Text, e.says)
		}
	}
	x := c.ExplainPath(t, "/endless")
	if len(x.Notes) != 1 || !strings.Contains(x.Notes[0], "met 10000 handlers") {
		t.Errorf("an endless route: %+v", x.Notes)
	}
}
