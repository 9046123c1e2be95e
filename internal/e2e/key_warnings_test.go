package e2e

import (
	"fmt"
	"io"
	"net/http"
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
