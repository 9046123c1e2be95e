package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestWarningsOfKeys(t *testing.T) {
	t.Parallel()
	const many = "over IPv6 one client has more of them"
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
		{"", "", "{client_ip}\nipv6_prefix 128", untrusted},
		{trusted, "", "{client_ip}\nipv6_prefix 64", forged},
		{strings.Replace(trusted, "}", " trusted_proxies_strict\n }", 1), "", "{client_ip}\nipv6_prefix 64", ""},
		{"", "", "{http.auth.user.id}", user},
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
			for range 3 {
				c.Get(t, "/", "Authorization", "Basic Ym9iOnNlY3JldA==", "X-Forwarded-For", "203.0.113.1, 198.51.100.1").Want(t, 200)
			}
			c.Reload(t, config("", "", "static")+"# after "+t.Name()+"\n")
			// When the last reload is in the log, all earlier messages are there, too.
			caddytest.Eventually(t, "the last reload is in the log", func() bool { return strings.Count(c.Logged()[before:], `"load complete"`) >= 2 })
			log := c.Logged()[before:]
			for _, warning := range []string{many, untrusted, forged, user} {
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

// A cost that is often no number, and a key that is often empty, are warned about once. A few of them in a row are normal.
func TestWarningsOfManyInARow(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`zone a {
	key {query.key}
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
	warned := func(want int) {
		t.Helper()
		for _, warning := range []string{"the cost of settle was not a number for 100 responses in a row", "the key of a zone was empty for 100 requests in a row"} {
			if got := c.Times(t, warning); got != want {
				t.Errorf("warned %d times that %s, want %d", got, warning, want)
			}
		}
	}
	ask(99, "/")
	ask(5, "/missing?key=k") // which settle does not match
	ask(1, "/?cost=2&key=k")
	ask(99, "/?cost=much")
	warned(0)
	ask(1, "/?cost=-1")
	ask(1, "/?cost=0&key=k")
	ask(110, "/")
	warned(1)
}

// A trailer that says what a request cost comes after the header, which does not.
func TestWarningOfUncountedTrailers(t *testing.T) {
	t.Parallel()
	upstream := caddytest.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Cost")
		fmt.Fprint(w, "ok")
		w.Header().Set("X-Cost", r.URL.Query().Get("cost"))
	})
	c := caddytest.Start(t, strings.Replace(caddytest.Site(`zone a {
	gcra 100000 1h
	settle {
		cost {http.response.header.X-Cost}
	}
}`), "respond ok", "respond /ready ok\nreverse_proxy "+upstream, 1))
	for _, path := range []string{"/?cost=3", "/?cost=much"} {
		for range 90 {
			c.Get(t, path)
		}
		if got := c.Times(t, "the cost of settle was no number"); got != 0 {
			t.Errorf("%s: warned %d times", path, got)
		}
	}
}
