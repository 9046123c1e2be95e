package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestWarningsOfKeys(t *testing.T) {
	t.Parallel()
	const many = "over IPv6 one client has more of them"
	const proxy = "that of a trusted proxy"
	const untrusted = "if there is no proxy, clients write X-Forwarded-For themselves"
	const forged = "the first address in X-Forwarded-For, which clients can make up"
	const user = "uses a placeholder of the user, who is not known yet"
	config := func(global, order, key string) string {
		return fmt.Sprintf(`{
	admin {$ADMIN}
	%s
}
{$SITE}
route {
	respond /ready ok
	%s
	rate_limit {
		zone keyed {
			key %s
			gcra 1000 1h
		}
	}
	basic_auth {
		bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje
	}
	respond "{http.auth.user.id}"
}
`, global, order, key)
	}
	const trusted = "servers {\n trusted_proxies static 127.0.0.1\n }"
	c := caddytest.Start(t, config("", "", "static"))
	for _, test := range []struct {
		global, order, key string
		want               string // the warnings
	}{
		{"", "", "{client_ip}", many + untrusted},
		{"", "", "{remote_host}", many + untrusted},
		{"", "", "{header.Api-Key} {client_ip}", many + untrusted},
		{"", "", "{client_ip}\nipv6_prefix 128", untrusted},
		{trusted, "", "{remote_host}\nipv6_prefix 64", proxy},
		{trusted, "", "{client_ip}\nipv6_prefix 64", forged},
		{strings.Replace(trusted, "}", " trusted_proxies_strict\n }", 1), "", "{client_ip}\nipv6_prefix 64", ""},
		{"servers {\n trusted_proxies static 192.0.2.1\n }", "", "{client_ip}\nipv6_prefix 64", untrusted},
		{"", "", "{http.auth.user.id}", user},
		{"", "", "{http.auth.user.id} {path}", user},
		{"", "", "static\nplan {http.auth.user.id} {\n bob unlimited\n}", user},
		{"", "", "static\ncost {http.auth.user.id}", user},
		{"", "", "static\nmatch expression `{http.auth.user.id} != \"admin\"`", user},
		{"", "", "static\nmatch vars {http.auth.user.id} admin", user}, // which never matches
		{"", "basic_auth /nobody {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}", "{http.auth.user.id}", user},
		{"", "basic_auth {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}", "{http.auth.user.id}", ""},
	} {
		t.Run(fmt.Sprintf("%s, %.10s%.10s", test.key, test.global, test.order), func(t *testing.T) {
			before := len(c.Logged())
			c.Reload(t, config(test.global, test.order, test.key)+"# "+t.Name()+"\n")
			for i := range 3 {
				request, _ := http.NewRequest("GET", "http://"+c.Site+"/", nil)
				request.SetBasicAuth("bob", "secret")
				request.Header.Set("X-Forwarded-For", fmt.Sprint("203.0.113.", i, ", 198.51.100.1"))
				r, err := caddytest.Client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(r.Body)
				r.Body.Close()
				if r.StatusCode != 200 || string(body) != "bob" {
					t.Fatalf("status %d, body %q", r.StatusCode, body)
				}
			}
			c.Reload(t, config("", "", "static")+"# after "+t.Name()+"\n")
			// When the last reload is in the log, all earlier messages are there, too.
			caddytest.Eventually(t, "the last reload is in the log", func() bool { return strings.Count(c.Logged()[before:], `"load complete"`) >= 2 })
			log := c.Logged()[before:]
			for _, warning := range []string{many, proxy, untrusted, forged, user} {
				want := 0
				if strings.Contains(test.want, warning) {
					want = 1
				}
				if n := strings.Count(log, warning); n != want {
					t.Errorf("%q is logged %d times, want %d", warning, n, want)
				}
			}
		})
	}
}

const theirChoice = "so clients can choose its value"

// A client's own header must not choose its plan: the right order is written in the log.
func TestWarningOfLateFields(t *testing.T) {
	t.Parallel()
	config := func(before, zone, behind string) string {
		return fmt.Sprintf(`{
	admin {$ADMIN}
}
{$SITE}
respond /ready ok
route {
	%s
	rate_limit {
		zone late {
			%s
			gcra 1000 1h
		}
	}
	%s
	respond "{header.X-Plan}"
}
`, before, zone, behind)
	}
	const plan = "plan {header.X-Plan} {\n 3 unlimited\n}"
	const set = "request_header X-Plan 2"
	c := caddytest.Start(t, config("", "key static", ""))
	for _, test := range []struct {
		before, zone, behind, client string
		want                         string // the option that is warned of
	}{
		{"", plan, set, "3", "plan"},
		{"", plan, set, "", "plan"},
		{"", "key \"{http.request.header.x-plan}|{path}\"", set, "3", "key"},
		{"", "factor {header.X-Plan}", set, "3", "factor"},
		{"", "factor {header.X-Plan}", set, "0", "factor"}, // which is unlimited
		{"", plan, set, "2", ""},                           // the same
		{"", plan, "", "3", ""},
		{"", plan, "request_header -X-Plan", "3", ""},            // credentials are removed, too
		{set, plan, "", "3", ""},                                 // the right order
		{"", "settle {\n cost {header.X-Plan}\n}", set, "3", ""}, // decided afterwards
	} {
		t.Run(fmt.Sprintf("%s, %s, %s, %s", test.before, test.zone, test.behind, test.client), func(t *testing.T) {
			before := len(c.Logged())
			c.Reload(t, config(test.before, test.zone, test.behind)+"# "+t.Name()+"\n")
			for range 3 {
				var header []string
				if test.client != "" {
					header = []string{"X-Plan", test.client}
				}
				c.Get(t, "/", header...).Want(t, 200)
			}
			c.Times(t, "")
			log, want := c.Logged()[before:], 0
			if test.want != "" {
				want = 1
			}
			if strings.Count(log, theirChoice) != want || want > 0 && (!strings.Contains(log, `"option":"`+test.want+`"`) || !strings.Contains(log, "write order rate_limit after forward_auth")) {
				t.Error(log)
			}
		})
	}
	t.Run("denied before", func(t *testing.T) { // such requests say nothing of the later handlers
		before := c.Times(t, theirChoice)
		c.Reload(t, config("", "key {header.X-Key}\nfixed_window 1 1h", "request_header X-Key changed"))
		c.Get(t, "/", "X-Key", "changed").Want(t, 200)
		for range 1000 + 10 {
			c.Get(t, "/", "X-Key", "changed").Want(t, 429)
		}
		c.Get(t, "/", "X-Key", "another").Want(t, 200)
		if got := c.Times(t, theirChoice) - before; got != 1 {
			t.Errorf("warned %d times", got)
		}
	})
}

func TestWarningOfEmptyKeys(t *testing.T) {
	t.Parallel()
	for zone, empty := range map[string][]string{
		`key "user {header.X-Key}|{header.X-User}"`:             nil,
		"key \\{{header.X-Key}\\}":                              nil,
		"key {header.X-Key}\nipv6_prefix 64\nruntime_overrides": nil,
		"key {header.X-Key} everybody":                          {"not warned of"},
	} {
		t.Run(zone, func(t *testing.T) {
			c := caddytest.Start(t, caddytest.Site("zone a {\n"+zone+"\n gcra 10000 1h\n}"))
			const warning = "the key of a zone was empty for 100 requests in a row"
			ask := func(n int, header ...string) {
				for range n {
					c.Get(t, "/", header...).Want(t, 200)
				}
			}
			ask(99)
			ask(1, "X-Key", "k")
			ask(99)
			if got := c.Times(t, warning); got != 0 {
				t.Fatalf("warned %d times of 99 in a row", got)
			}
			ask(1)
			ask(1, "X-Key", "k")
			ask(110)
			want := 1
			if empty != nil {
				want = 0
			}
			if got := c.Times(t, warning); got != want {
				t.Errorf("warned %d times, want %d", got, want)
			}
		})
	}
}

func TestWarningOfUncountedCosts(t *testing.T) {
	t.Parallel()
	const warning = "the cost of settle was no number for 100 responses in a row"
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`zone a {
	gcra 100000 1h
	settle {
		match status 200
		cost {http.response.header.X-Cost}
	}
}`), "respond ok", `header X-Cost {query.cost}
	respond /missing 404
	respond ok`, 1))
	ask := func(n int, path string) {
		for range n {
			c.Get(t, path)
		}
	}
	ask(99, "/")
	ask(1, "/?cost=2")
	ask(99, "/?cost=much")
	ask(5, "/missing") // which does not match
	if got := c.Times(t, warning); got != 0 {
		t.Fatalf("warned %d times of 99 in a row", got)
	}
	ask(1, "/?cost=-1")
	ask(1, "/?cost=0")
	ask(110, "/")
	if got := c.Times(t, warning); got != 1 {
		t.Errorf("warned %d times", got)
	}
}

// A trailer that says what a request cost comes after the header, which does not.
func TestWarningOfUncountedTrailers(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Cost")
		fmt.Fprint(w, "ok")
		w.Header().Set("X-Cost", r.URL.Query().Get("cost"))
	}))
	t.Cleanup(upstream.Close)
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`zone a {
	gcra 100000 1h
	settle {
		cost {http.response.header.X-Cost}
	}
}`), "respond ok", "respond /ready ok\nreverse_proxy "+upstream.Listener.Addr().String(), 1))
	for _, path := range []string{"/?cost=3", "/?cost=much"} {
		for range 90 {
			c.Get(t, path)
		}
		if got := c.Times(t, "the cost of settle was no number"); got != 0 {
			t.Errorf("%s: warned %d times", path, got)
		}
	}
}
