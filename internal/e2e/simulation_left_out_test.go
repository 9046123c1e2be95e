package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A request whose key or cost the log doesn't tell is left out of the zone, and the report says why.
func TestSimulationLeavesOut(t *testing.T) {
	post := func(user string, charged map[string]int64) *accesslog.Request {
		r := loggedGet("/")
		r.Method, r.User, r.Charged = http.MethodPost, user, charged
		return r
	}
	denied := post("", nil)
	denied.Status = http.StatusTooManyRequests
	charged := post("", map[string]int64{"z": 7})
	const field = "the log lacks the field rate_limit_charged_z"
	for _, test := range []struct {
		name, options string
		authenticates bool
		requests      []*accesslog.Request
		leftOut       string // requests, partly, reason; empty: nothing
	}{
		{"a key from the body", "key {http.rate_limit.request.json.user}", false, []*accesslog.Request{charged}, "1 false its key needs the bodies of requests"},
		{"a second key from the body", "key {header.X-Key} {http.rate_limit.request.json.user}", false, []*accesslog.Request{loggedGet("/", "X-Key", "k")}, ""},
		{
			"a second key from the body that is needed", "key {header.X-Key} {http.rate_limit.request.json.user}", false,
			[]*accesslog.Request{loggedGet("/", "X-Key", "k"), loggedGet("/")},
			"1 true its key needs the bodies of requests",
		},
		{
			"a plan from the body", "plan {http.rate_limit.request.json.plan} {\n pro {\n gcra 9 1h\n }\n }", false,
			[]*accesslog.Request{charged},
			"1 false its plan needs the bodies of requests",
		},
		{"a factor from the body", "factor {http.rate_limit.request.json.f}", false, []*accesslog.Request{charged}, "1 false its factor needs the bodies of requests"},
		{"a cost from the body", "cost {http.rate_limit.request.json.n}", false, []*accesslog.Request{post("", nil), denied}, "2 false its cost needs the bodies of requests, and " + field},
		{"a cost from the body that is logged", "cost {http.rate_limit.request.json.n}", false, []*accesslog.Request{charged}, ""},
		{"a true cost from the body", "settle {\n cost {http.rate_limit.response.json.n}\n }", false, []*accesslog.Request{post("", nil)}, "1 false its settle needs the bodies of responses, and " + field},
		{"a true cost from the body that is logged", "settle {\n cost {http.rate_limit.response.json.n}\n }", false, []*accesslog.Request{charged, denied}, ""},
		{"a true cost of bytes", "settle {\n cost {http.rate_limit.response.bytes}\n }", false, []*accesslog.Request{post("", nil)}, ""},
		{"a user", "key {http.auth.user.id}", true, []*accesslog.Request{post("bob", nil)}, ""},
		{"a user without authentication", "key {http.auth.user.id}", false, []*accesslog.Request{post("bob", nil)}, "1 false its key needs the ID of a user"},
		{"a user that the log lacks", "key {http.auth.user.id}", true, []*accesslog.Request{post("", nil)}, "1 false its key needs the ID of a user"},
		{"a user or an address", "key {http.auth.user.id} {client_ip}", true, []*accesslog.Request{post("", nil)}, ""},
		{"the plan of a user", "key {http.auth.user.id}-{http.auth.user.plan}", true, []*accesslog.Request{post("bob", nil)}, "1 false its key needs facts about users"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			authentication := ""
			if test.authenticates {
				authentication = "basic_auth {\n bob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n }"
			}
			s := loadSimulation(t, fmt.Sprintf("{$SITE} {\nroute {\n%s\nrate_limit {\nzone z {\n%s\ngcra 1 1h\n}\nzone known {\ngcra 1 1h\n}\n}\n}\n}",
				authentication, test.options))
			left := int64(0)
			for _, r := range test.requests {
				if !strings.Contains(" "+s.met(s.visit(t, r))+" ", " z=") {
					left++
				}
			}
			got := ""
			for _, l := range s.LeftOut() {
				got = fmt.Sprintf("%d %t %s", l.Requests, l.Partly, l.Reason)
				if l.Zone != "z" || l.Requests != left {
					t.Errorf("%+v, but %d requests did not meet zone z", l, left)
				}
			}
			if (test.leftOut == "") != (got == "") || !strings.HasPrefix(got, test.leftOut) {
				t.Errorf("left out %q, want %q", got, test.leftOut)
			}
		})
	}
}

// examples/login has a zone whose key is in the body. Without it, the log shows what the other zone does.
func TestSimulateSaysOnlyWhatItKnows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// runtime_overrides has a note, which names the zone.
	site := strings.ReplaceAll(caddytest.ReadFile(t, "examples/login/Caddyfile"), "runtime_overrides\n", "\n")
	caddytest.WriteFile(t, dir+"/Caddyfile", site, 0o600)
	var log strings.Builder
	for i := range 40 {
		client := fmt.Sprintf("192.0.2.%d", i%4*i%4) // one of them guesses
		fmt.Fprintf(&log, `{"ts":%d,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":%q,"client_ip":%[2]q,`+
			`"proto":"HTTP/1.1","method":"POST","host":"localhost:8080","uri":"/login"},"duration":0.1,"status":401}`+"\n", 1_700_000_000+i, client)
	}
	caddytest.WriteFile(t, dir+"/access.log", log.String(), 0o600)
	const leftOut = "accounts is left out: its key needs the bodies of requests, and a log has none."
	text := caddytest.RunCommand(t, simulateIn(dir, "--propose", "10%", "access.log"))
	if !strings.HasPrefix(text.Out, "Zone "+leftOut+"\n\nRecommended for zone addresses: ") || !strings.Contains(text.Out, "Zone addresses would have denied") ||
		strings.Count(text.Out, "accounts") != 1 {
		t.Errorf("%s\n%s", text.Out, text.Err)
	}
	page := caddytest.RunCommand(t, simulateIn(dir, "--format", "html", "access.log"))
	if !strings.Contains(page.Out, leftOut) {
		t.Errorf("the page does not say what is left out: %s", page.Err)
	}
	json := caddytest.RunCommand(t, simulateIn(dir, "--json", "--without-zone", "addresses", "access.log"))
	if !strings.Contains(json.Out, `"reason": "--without-zone names it"`) || !strings.Contains(json.Out, `"zones": []`) {
		t.Errorf("%s\n%s", json.Out, json.Err)
	}
	unknown := caddytest.RunCommand(t, simulateIn(dir, "--without-zone", "adresses", "access.log"))
	if unknown.Code != 1 || !strings.Contains(unknown.Err, `there is no zone "adresses" to leave out: the zones are accounts, addresses`) {
		t.Errorf("%d %s", unknown.Code, unknown.Err)
	}
}

// A simulation takes the cost of a request from its charge in the log.
func TestSimulateLoggedCharges(t *testing.T) {
	t.Parallel()
	s := loadSimulation(t, caddytest.Site(`zone tokens {
	cost 10
	fixed_window 1000 1h
	settle {
		match status 2xx
		cost {http.rate_limit.response.json.usage.total_tokens} or {http.response.header.X-Tokens}
	}
}
zone exports {
	cost {http.rate_limit.request.json.rows}
	fixed_window 1000 1h
}
zone granted {
	cost 5
	mode nary
	fixed_window 1000 1h
}
zone sent {
	fixed_window 1000 1h
	settle {
		cost {http.rate_limit.response.bytes}
	}
}
zone free {
	fixed_window 1000 1h
	override "" unlimited
	concurrency 5
}`))
	charges := map[string]int64{"tokens": 4242, "exports": 77, "granted": 2, "free": 9}
	for _, test := range []struct {
		name, header string
		status       int
		charged      map[string]int64
		want         string
	}{
		{"charges", "", 200, charges, "exports 77, free 0, granted 5, sent 1 settles 9, tokens 10 settles 4242"},
		{"a charge has precedence over a header field", "3", 200, charges, "exports 77, free 0, granted 5, sent 1 settles 9, tokens 10 settles 4242"},
		{"charges of 0 say nothing", "3", 200, map[string]int64{"tokens": 0, "exports": 0}, "exports 1, free 0, granted 5, sent 1 settles 9, tokens 10 settles 3"},
		{"without charges, the tokens and rows are not known", "", 200, nil, "free 0, granted 5, sent 1 settles 9"},
		{"a huge charge", "", 200, map[string]int64{"tokens": 1 << 60}, "free 0, granted 5, sent 1 settles 9, tokens 10 settles 2147483647"},
		{"a denied request", "", 429, charges, "exports 77, free 0, granted 5, sent 1, tokens 10"},
	} {
		r := loggedGet("/")
		r.Size, r.Status, r.Charged = 9, test.status, test.charged
		if test.header != "" {
			r.ResponseHeader.Set("X-Tokens", test.header)
		}
		var got []string
		for h, v := 0, s.visit(t, r); h < len(v.Handlers); h++ {
			for i, z := range v.Handlers[h].Zones {
				text := fmt.Sprint(s.Zones()[z.Zone].Name, " ", v.Handlers[h].Requests[i].Cost)
				if z.Settled {
					text += fmt.Sprint(" settles ", z.TrueCost)
				}
				got = append(got, text)
			}
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
