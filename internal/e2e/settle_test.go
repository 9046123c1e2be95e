package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// The true cost comes from the header of a response, or from its trailer, however the response ends. Each request reserves
// 10. The access log and the metric say what was charged.
func TestSettleByHeader(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		const tokens = "cost {http.response.header.X-Tokens}"
		zones := ""
		for name, settle := range map[string]string{"failures": "match status 401 5xx", "answers": "match status 2xx\n" + tokens + " max 15"} {
			zones += fmt.Sprintf("zone %s {\n key {query.key}\n cost 10\n fixed_window %d 1000d\n settle {\n %s\n }\n}\n", name, bodyBudget, settle)
		}
		u, log := startScripted(t), filepath.Join(t.TempDir(), "access.log")
		logged := "(all) {\n\tlog {\n\t\toutput file " + log + "\n\t}\n\tlog_append appended {http.rate_limit.api.charged}\n"
		c := caddytest.Start(t, strings.Replace(scriptedSite(t, u, tokens, zones+use), "(all) {\n", logged, 1))
		says := func(status int, pieces ...string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				with(nil, pieces...)(w, r)
			}
		}
		header := func(value string, then http.HandlerFunc) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Tokens", value)
				then(w, r)
			}
		}
		trailer := func(value string, pieces ...string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				with([]string{"Trailer", "X-Tokens"}, pieces...)(w, r)
				w.Header().Set("X-Tokens", value)
			}
		}
		sums := make(map[string]int64)
		for i, test := range []struct {
			name                   string
			script                 http.HandlerFunc
			api, failures, answers int64
		}{
			{"a header", header("3", says(200, "ok")), 3, 0, 3},
			{"more than is reserved", header("20", says(201, "ok")), 20, 0, 15},
			{"a fraction", header("2.5", says(200, "ok")), 3, 0, 3},
			{"nothing", header("0", says(200, "ok")), 0, 0, 0},
			{"no number", header("many", says(200, "ok")), 10, 0, 10},
			{"a number below 0", header("-1", says(200, "ok")), 10, 0, 10},
			{"no content", header("7", says(204)), 7, 0, 7},
			{"a wrong password", header("7", says(401, "ok")), 7, 10, 0},
			{"an error", header("7", says(503, "ok")), 7, 10, 0},
			{"a trailer", trailer("7", "ok"), 7, 0, 7},
			{"more in a trailer", trailer("20", "ok"), 20, 0, 15},
			{"a trailer without a number", trailer("", "ok"), 10, 0, 10},
			{"a hint of another cost", header("1000", says(103)), 10, 0, 10},
			{"a body that breaks", header("7", says(200, "the beginning", "abort")), 7, 0, 7},
			{"a trailer that never comes", trailer("7", "the beginning", "abort"), 10, 0, 10},
			{"an upstream that says nothing", with(nil, "abort"), 10, 10, 0}, // status 502
			{"a panic", nil, 10, 10, 0},
		} {
			key, query := strconv.Itoa(i), ""
			if test.script == nil {
				query = "&panic=1"
			} else {
				u.answer(key, func(w http.ResponseWriter, r *http.Request) {
					test.script(w, r)
					if strings.Contains(test.name, "hint") { // and now the response
						w.Header().Del("X-Tokens")
						says(200, "ok")(w, r)
					}
				})
			}
			_, _ = c.Do("POST", "http://"+c.Site+"/?key="+key+query, "") // some responses break
			for zone, want := range map[string]int64{"api": test.api, "failures": test.failures, "answers": test.answers} {
				sums[zone] += want
				look := func() int64 { return bodyBudget - c.Remaining(t, zone, key) }
				what := fmt.Sprintf("%s is charged %d in zone %s", test.name, want, zone)
				caddytest.EventuallySees(t, what, look, func(got int64) bool { return got == want })
			}
		}
		for zone, sum := range sums {
			caddytest.WaitForMetric(t, c, fmt.Sprintf("caddy_rate_limit_settled_events_total{zone=%q} %d", zone, sum))
		}
		look := func() map[string]int64 { return loggedCharges(t, log, "api", "failures", "answers") }
		caddytest.EventuallySees(t, fmt.Sprint("the access log has the charges ", sums), look,
			func(logged map[string]int64) bool { return maps.Equal(logged, sums) })
	})
}

// loggedCharges returns the sums of the charges in an access log, by zone. A line whose handler hasn't panicked has that of
// zone api as appended, too.
func loggedCharges(t *testing.T, log string, zones ...string) map[string]int64 {
	t.Helper()
	sums := make(map[string]int64)
	for line := range strings.Lines(caddytest.ReadFile(t, log)) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) != nil {
			continue // it is being written
		}
		for _, zone := range zones {
			n, _ := fields[accesslog.ChargedPrefix+zone].(float64)
			sums[zone] += int64(n)
		}
		if value, ok := fields["appended"].(float64); ok && value != fields[accesslog.ChargedPrefix+"api"] {
			t.Errorf("log_append writes %v:\n%s", value, line)
		}
	}
	return sums
}

// Requests in flight reserve their cost. So no more of them pass at once than remain, even if none
// is charged in the end. A key shows what is used and what is reserved.
func TestSettleReserves(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, strings.Replace(gated(g, "zone api {\n key k\n fixed_window 4 1h\n settle {\n match status 401\n wait 0\n }\n}\n"+use),
			"@ready", "@wrong path /401\nrespond @wrong 401\n@ready", 1))
		show := func(want string) {
			t.Helper()
			caddytest.EventuallySees(t, want, func() string {
				l := seenKey(t, c, "k").Budgets[0].Limits[0]
				return fmt.Sprintf("%d used, %d reserved, %d remaining", *l.Used, l.Reserved, l.Remaining)
			}, func(got string) bool { return got == want })
		}
		c.Get(t, "/401").Want(t, 401)
		show("1 used, 0 reserved, 3 remaining")
		var held []<-chan int
		for range 3 {
			held = append(held, c.Hold(t.Context(), "/hold"))
		}
		g.wait(t, 3)
		show("1 used, 3 reserved, 0 remaining")
		for range 7 {
			c.Get(t, "/").Want(t, 429, "Retry-After", "1")
		}
		x := c.ExplainPath(t, "/")
		if z := x.Handlers[0].Zones[0]; x.Verdict != "denied" || x.Decides.Reason != "reserved" || z.Limits[0].Reserved != 3 {
			t.Errorf("explained: %+v", x)
		}
		for range held { // the gate lets them pass in any order
			g.pass <- struct{}{}
		}
		for _, done := range held {
			if status := <-done; status != 200 {
				t.Errorf("status %d of a request in flight", status)
			}
		}
		for range 10 {
			c.Get(t, "/").Want(t, 200)
		}
		show("1 used, 0 reserved, 3 remaining")
	})
}

// The additional cost of a response is charged to the limits of its request, also if the key gets
// an override in between.
func TestSettleWithOverrideSetMeanwhile(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := caddytest.Start(t, gated(g, "zone api {\n key {query.key}\n cost 10\n token_bucket 1 1000h 100\n runtime_overrides\n settle {\n cost 30\n }\n}\n"+use))
		held := c.Hold(t.Context(), "/hold?key=k")
		g.wait(t, 1)
		c.Operate(t, 204, "PUT", overridePath("k"), `{"limits":[{"algorithm":"gcra","events":500,"window":"1000h"}]}`)
		c.Get(t, "/?key=k").Want(t, 200, "RateLimit-Policy", `"api";q=500;w=3600000`) // this instance knows of it
		g.pass <- struct{}{}
		<-held
		look := func() int64 { return seenKey(t, c, "k").Budgets[0].Limits[0].Remaining }
		caddytest.EventuallySees(t, "the override is charged what another request cost", look, func(n int64) bool { return n == 470 })
		c.Operate(t, 204, "DELETE", overridePath("k"), "")
		caddytest.EventuallySees(t, "the request has cost 30", look, func(n int64) bool { return n == 70 })
	})
}

// The user of a basic login counts failures of an account from everywhere, before the password is checked.
func TestBasicUser(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`zone accounts {
	key {http.rate_limit.request.basic_user}
	key_case lower
	sliding_log 3 10d
	settle {
		match status 401
	}
}`), "respond ok", `basic_auth @limited {
	bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje
}
respond "{http.rate_limit.request.basic_user}"`, 1))
	login := func(user, password string) string {
		r := &http.Request{Header: make(http.Header)}
		r.SetBasicAuth(user, password)
		return r.Header.Get("Authorization")
	}
	welcome := c.Get(t, "/", "Authorization", login("bob", "secret"))
	welcome.Want(t, 200)
	caddytest.WantText(t, "the user", welcome.Text, "bob")
	for _, user := range []string{"bob", "Bob", "BOB"} {
		c.Get(t, "/", "Authorization", login(user, "guess")).Want(t, 401)
	}
	c.Get(t, "/", "Authorization", login("bob", "secret")).Want(t, 429)
	c.Get(t, "/", "Authorization", login("eve", "guess")).Want(t, 401)
	for _, other := range []string{"Bearer " + login("bob", ""), "Basic bob", ""} { // no basic login: one key for all
		c.Get(t, "/", "Authorization", other).Want(t, 401)
	}
	c.Get(t, "/", "Authorization", login("ann", "guess"), "Authorization", login("bob", "guess")).Want(t, 429)
}
