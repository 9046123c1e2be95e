package limiter

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/placeholder"
)

// A late value is warned about once. Values that later handlers leave as they are, or empty, are not looked at for ever.
func TestLateValues(t *testing.T) {
	const user, field = "http.auth.user.id", "http.request.header.X-Key"
	key := func(name string) placeholder.Use { return placeholder.Use{Option: "key", Name: name} }
	match := func(name string) placeholder.Use {
		return placeholder.Use{Option: "match", Name: name, InMatcher: true}
	}
	for _, test := range []struct {
		use           placeholder.Use
		matches       bool
		before, after string
		warnings      int
	}{
		{key(user), true, "", "bob", 1},
		{key(user), true, "bob", "bob", 0},
		{key(user), true, "", "", 0},
		{key(user), false, "", "bob", 0},
		{match(user), false, "", "bob", 1},
		{match(user), true, "", "bob", 1},
		{key(field), true, "a", "b", 1},
		{key(field), true, "a", "", 0},
		{match(field), true, "a", "b", 0},
		{key("http.request.method"), true, "GET", "POST", 0},
	} {
		core, logs := observer.New(zapcore.WarnLevel)
		z := &Zone{Name: "z", Logger: zap.New(core), KeyWarnings: NewKeyWarnings(nil, []placeholder.Use{test.use})}
		const left = 3 * setCost // a test with all the checks that there are takes seconds
		z.lateChecksLeft.Store(min(left, z.lateChecksLeft.Load()))
		for range left + 1 {
			repl := caddy.NewEmptyReplacer()
			repl.Set(test.use.Name, test.before)
			state := &State{Limiter: &Limiter{Zones: []*Zone{z}}}
			if test.matches {
				state.matched = 1
			}
			next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
				repl.Set(test.use.Name, test.after)
				return nil
			})
			errtest.None(t, state.watchLatePlaceholders(next, repl).ServeHTTP(nil, nil))
		}
		if logs.Len() != test.warnings || z.lateChecksLeft.Load() > 0 && test.matches {
			t.Errorf("%+v: %v; %d checks left", test, logs.All(), z.lateChecksLeft.Load())
		}
	}
}

// A proxy in front of Caddy is seen by its first request. Caddy trusts a unix socket only with trusted_proxies_unix.
func TestWarningsOfPeers(t *testing.T) {
	const socket, proxy, trusted = "write trusted_proxies_unix, which Caddy has since 2.11, into servers in the global options", "into servers in the global options; ", "write {client_ip} instead of {remote_host}"
	const client, remote = "{" + keys.ClientAddress + "}", "{" + keys.RemoteHost + "}"
	for _, test := range []struct {
		key, peer, field, client string // client: the address of the client, from a trusted proxy
		want                     string
	}{
		{client, "@", "X-Forwarded-For", "", socket},
		{remote, "@", "X-Forwarded-For", "", socket},
		{client + "|{http.request.uri.path}", "@", "X-Forwarded-For", "", socket},
		{client, "@", "Forwarded", "", socket},
		{client, "@", "X-Forwarded-Host", "", ""},
		{client, "@", "X-Forwarded-For", "203.0.113.7", ""},
		{remote, "@", "X-Forwarded-For", "203.0.113.7", trusted},
		{"{http.request.header.X-Api-Key}", "@", "X-Forwarded-For", "", ""},
		{client, "10.0.0.1:5000", "X-Forwarded-For", "", proxy},
		{remote, "[::1]:5000", "X-Forwarded-For", "", proxy},
		{client, "198.51.100.1:5000", "X-Forwarded-For", "", ""},
		{client, "10.0.0.1:5000", "X-Real-Ip", "", ""},
		{client, "10.0.0.1:5000", "X-Forwarded-For", "203.0.113.7", ""},
		{remote, "10.0.0.1:5000", "X-Forwarded-For", "203.0.113.7", trusted},
		{client, "/run/client.sock", "X-Forwarded-For", "", ""},
	} {
		core, logs := observer.New(zapcore.WarnLevel)
		z := &Zone{Name: "z", Logger: zap.New(core), KeyWarnings: NewKeyWarnings([]keys.Template{keys.NewTemplate(test.key)}, nil)}
		state := new(State)
		for range 3 {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = test.peer
			r.Header.Set(test.field, "203.0.113.7")
			r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, &caddyhttp.Server{TrustedProxiesStrict: 1})
			if test.client != "" {
				caddyhttp.SetVar(r.Context(), caddyhttp.TrustedProxyVarKey, true)
				caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, test.client)
			}
			state.checkKeySource(z, r)
		}
		if said := fmt.Sprint(logs.All()); !strings.Contains(said, test.want) || logs.Len() > 1 || (logs.Len() == 0) != (test.want == "") {
			t.Errorf("%+v: %s", test, said)
		}
	}
}

// The advice for empty keys doesn't name a value that the key has.
func TestWarningsOfEmptyKeys(t *testing.T) {
	for key, other := range map[string]string{"{http.request.header.X-Api-Key}": ", such as {client_ip}", "{" + keys.ClientAddress + "}": ""} {
		core, logs := observer.New(zapcore.WarnLevel)
		templates := []keys.Template{keys.NewTemplate(key)}
		z := &Zone{Name: "z", Logger: zap.New(core), Keys: templates, KeyWarnings: NewKeyWarnings(templates, nil)}
		for range 2 * maxInARow {
			z.warnOfEmptyKey(Key{})
		}
		if said := fmt.Sprint(logs.All()); logs.Len() != 1 || !strings.Contains(said, "add another value to key"+other+" (logged once)") {
			t.Errorf("%s: %s", key, said)
		}
	}
}
