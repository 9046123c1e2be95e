package ratelimit

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// checksAtStart makes the checks of [App.Start] when a configuration is validated, because Caddy starts no app then.
type checksAtStart struct{}

func init() { caddy.RegisterModule(checksAtStart{}) }

func (checksAtStart) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "test_checks_at_start", New: func() caddy.Module { return new(checksAtStart) }}
}

func (checksAtStart) Provision(ctx caddy.Context) error {
	if _, err := ctx.App("http"); err != nil {
		return err
	}
	app, err := ctx.App("rate_limit")
	if err == nil {
		app.(*App).warnOfLateUsers()
	}
	return err
}

func (checksAtStart) Start() error { return nil }
func (checksAtStart) Stop() error  { return nil }

// warningsAtLoad returns the warnings of this module about a configuration in JSON, one a line.
func warningsAtLoad(t *testing.T, config string) (warnings string, err error) {
	t.Helper()
	var whole map[string]any
	if err := json.Unmarshal([]byte(config), &whole); err != nil {
		return "", err
	}
	file := filepath.Join(t.TempDir(), "log")
	logging, _ := whole["logging"].(map[string]any)
	logs, _ := logging["logs"].(map[string]any)
	if logs == nil {
		logs = make(map[string]any)
	}
	logs["test_warnings"] = map[string]any{
		"writer": map[string]any{"output": "file", "filename": file, "roll": false}, "level": "WARN",
		"encoder": map[string]any{"format": "json"}, "include": []string{"rate_limit", "http.handlers.rate_limit"},
	}
	whole["logging"] = map[string]any{"logs": logs}
	if apps, ok := whole["apps"].(map[string]any); ok && apps["http"] != nil {
		apps["test_checks_at_start"] = map[string]any{}
	}
	text, err := json.Marshal(whole)
	if err != nil {
		return "", err
	}
	err = caddytest.Validate(string(text))
	return caddytest.ReadFile(t, file), err
}

// warningsOfCaddyfile returns the warnings of this module about a Caddyfile, one a line.
func warningsOfCaddyfile(t *testing.T, text string) string {
	t.Helper()
	config, err := caddytest.Adapt(t, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	warnings, err := warningsAtLoad(t, config)
	if err != nil {
		t.Fatal(err)
	}
	return warnings
}

// Clients can choose an address in a header field, and the port of a connection.
func TestWarningsOfChosenAddresses(t *testing.T) {
	const field, port = "an address from a header field, which clients can write themselves", "the port of the connection"
	for key, want := range map[string]string{
		"{header.X-Forwarded-For}":                           field,
		"{header.x-forwarded-for}":                           field,
		"{http.request.header.CF-Connecting-IP}":             field,
		"{header.X-Real-Ip}":                                 field,
		"{header.True-Client-IP}":                            field,
		"{header.Forwarded}":                                 field,
		"{header.X-Client-IP}":                               field,
		"{header.Fastly-Client-IP}":                          field,
		"{header.CF-Connecting-IP} {client_ip}":              field,
		"{header.X-Api-Key} {header.X-Forwarded-For}":        field,
		"{header.CF-Connecting-IP} {header.X-Forwarded-For}": field,
		`"{http.auth.user.id}|{header.X-Real-IP}"`:           field,
		"{remote}":                                             port,
		"{http.request.remote}":                                port,
		"{remote_port}":                                        port,
		`"{remote_host}:{remote_port}"`:                        port,
		`"{remote} {path}"`:                                    port,
		"{header.X-Forwarded-For} {remote}":                    field + port,
		"{client_ip}":                                          "",
		"{remote_host}":                                        "",
		"{http.request.remote.host/24,64}":                     "",
		"{header.X-Api-Key} {client_ip}":                       "",
		"{header.X-Forwarded-Host}":                            "",
		"{header.X-Forwarded-For-Tenant}":                      "",
		"{query.X-Forwarded-For}":                              "",
		"{cookie.Forwarded}":                                   "",
		`"remote \\{http.request.remote\\} {path}"`:            "",
		"static\nplan {header.X-Real-IP} {\n vip unlimited\n}": "", // as a plan it is wrong in other ways
	} {
		for form, site := range map[string]string{
			"zone":        ":80 {\n rate_limit {\n ZONE\n }\n}",
			"shared zone": "{\n rate_limit {\n ZONE\n }\n}\n:80 {\n rate_limit /a z\n rate_limit /b z\n}",
		} {
			zone := "zone z {\n key " + key + "\n ipv6_prefix 64\n gcra 1 1s\n }"
			got := warningsOfCaddyfile(t, strings.Replace(site, "ZONE", zone, 1))
			for _, warning := range []string{field, port} {
				times := 0
				if strings.Contains(want, warning) {
					times = 1
				}
				if strings.Count(got, warning) != times {
					t.Errorf("%s of a %s: want %d warnings of %s, got %s", key, form, times, warning, got)
				}
			}
			for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
				if want != "" && !strings.Contains(line, "more than an address") && !(strings.Contains(line, `"zone":"z"`) && strings.Contains(line, "write {client_ip}") && strings.Contains(line, "trusted_proxies")) {
					t.Errorf("%s of a %s: %s", key, form, line)
				}
			}
		}
	}
	got, err := warningsAtLoad(t, handlerConfig(`{"handler":"rate_limit","rate_limits":{"z":{"max_events":1,"window":"1s",
		"key":["{http.request.header.X-Api-Key}","{http.request.header.x-forwarded-for}"]}}}`))
	if err != nil || !strings.Contains(got, `"placeholders":["{http.request.header.x-forwarded-for}"]`) {
		t.Errorf("JSON: %v, %s", err, got)
	}
}

// A zone whose factor or cost is always 0 limits nothing.
func TestWarningsOfNothing(t *testing.T) {
	for settings, want := range map[string]string{
		"factor 0": "factor", "factor 0.0": "factor", "cost 0": "cost", "cost 0\n concurrency 5": "cost",
		"factor 0.0000001": "", "factor {header.F}": "", "cost 1": "", "cost {header.C}": "", "cost 0+{header.C}": "",
	} {
		got := warningsOfCaddyfile(t, ":80 {\n rate_limit {\n zone z {\n gcra 1 1s\n "+settings+"\n }\n }\n}")
		if n := strings.Count(got, "of a zone deny no request"); n != min(len(want), 1) || !strings.Contains(got, `"zone":"z","option":"`+want) == (n > 0) {
			t.Errorf("%s: warnings: %s, want one of %q", settings, got, want)
		}
	}
}

// Authentication behind rate_limit is found in the routes, before a user logs in. Until then requests with a
// wrong password would use up the budget of the empty key.
func TestWarningsOfLateUsers(t *testing.T) {
	const auth = "basic_auth PATH {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}"
	const jwt = "jwtauth {\n sign_key c2VjcmV0\n sign_alg HS256\n user_claims sub\n}"
	const forward = "forward_auth localhost:9001 {\n uri /\n copy_headers X-User\n}"
	zone := func(settings string) string { return "zone z {\n " + settings + "\n gcra 1 1s\n}" }
	limit := "rate_limit PATH {\n " + zone("key {http.auth.user.id}") + "\n}"
	on := func(directive, path string) string { return strings.ReplaceAll(directive, "PATH", path) }
	limited := func(settings string) string { return "rate_limit {\n " + zone(settings) + "\n}" }
	options := func(lines string) string { return "{\n " + lines + "\n}\n" }
	site := func(directives ...string) string { return ":80 {\n" + on(strings.Join(directives, "\n"), "") + "\n}\n" }
	block := func(kind string, directives ...string) string {
		return kind + " {\n" + on(strings.Join(directives, "\n"), "") + "\n}"
	}
	for name, test := range map[string]struct {
		config string
		option string // that is warned of
	}{
		"the default order":      {site(auth, limit, "respond ok"), "key"},
		"behind other sites":     {"http://a {\n " + on(auth, "") + "\n}\n" + "http://b {\n" + on(limit, "") + "\n" + on(auth, "") + "\n}", "key"},
		"a part of the key":      {site(auth, limited(`key "{http.auth.user.id}|{path}"`)), "key"},
		"other data of the user": {site(auth, limited("key {http.auth.user.email}")), "key"},
		"a plan":                 {site(auth, limited("key {client_ip}\n plan {http.auth.user.plan} {\n a unlimited\n }")), "plan"},
		"a cost":                 {site(auth, limited("cost {http.auth.user.cost}")), "cost"},
		"only users of a path":   {site(on(auth, "/admin/*"), limit), "key"},
		"limits of a path":       {site(auth, on(limit, "/api/*")), "key"},
		"a zone of a path":       {site(auth, limited("match path /api/*\n key {http.auth.user.id}")), "key"},
		"the same path":          {site(on(auth, "/api/*"), on(limit, "/api/*")), "key"},
		"a shared zone":          {options("rate_limit {\n "+zone("key {http.auth.user.id}")+"\n}") + site(auth, "rate_limit /a z\n rate_limit z"), "key"},
		"a shared zone, used well in another site": {
			options("rate_limit {\n "+zone("key {http.auth.user.id}")+"\n}") + "http://a {\n" + block("route", auth, "rate_limit z") + "\n}\nhttp://b {\n" + on(auth, "") + "\nrate_limit z\n}", "key",
		},
		"authentication in handle":                       {site(limit, block("handle /a/*", auth)), "key"},
		"both in handle":                                 {site(block("handle /a/*", auth, "respond ok"), block("handle", auth, limit)), "key"},
		"in route, in the wrong order":                   {site(block("route", limit, auth)), "key"},
		"a plugin":                                       {site(block("route", limit, jwt)), "key"},
		"a plugin with an order":                         {options("order jwtauth before basic_auth") + site(limit, jwt), "key"},
		"another limit between":                          {site(block("route", limit, "rate_limit {\n zone y {\n gcra 1 1s\n }\n}", "request_header X a", auth)), "key"},
		"in route, before authentication":                {site(block("route", block("route", limit), auth)), "key"},
		"in a named route":                               {"&(named) {\n" + block("route", limit, auth) + "\n}\n" + site("invoke named"), "key"},
		"before an invoked authentication":               {"&(named) {\n" + on(auth, "") + "\n}\n" + site(limit, "invoke named"), "key"},
		"in route":                                       {site(block("route", auth, limit)), ""},
		"in route, in handle":                            {site(block("handle /a", block("route", auth, limit))), ""},
		"authentication around handle":                   {site(auth, block("handle", limit)), ""},
		"authentication around route":                    {site(auth, block("route", limit)), ""},
		"authentication on both sides":                   {site(block("route", auth, limit, auth)), ""},
		"authentication in an earlier subroute":          {site(block("route", block("route", auth), limit, auth)), ""},
		"authentication of a path before":                {site(block("route", on(auth, "/a"), limit, auth)), ""},
		"another order":                                  {options("order rate_limit after basic_auth") + site(auth, limit), ""},
		"another order, and a plugin":                    {options("order jwtauth before basic_auth\n order rate_limit after basic_auth") + site(jwt, limit), ""},
		"authentication before an invoked limit":         {"&(named) {\n" + block("route", limit, auth) + "\n}\n" + site(auth, "invoke named"), ""},
		"an invoked authentication before":               {"&(named) {\n" + on(auth, "") + "\n}\n" + site(block("route", "invoke named", limit, auth)), ""},
		"named routes that invoke each other":            {"&(one) {\n invoke two\n}\n&(two) {\n invoke one\n}\n" + site(block("route", "invoke one", limit)), ""},
		"a plugin before that may set any placeholder":   {site(block("route", "test_hold", limit, auth)), ""},
		"forward_auth before that may set a placeholder": {site(block("route", forward, limit, auth)), ""},
		"a map that sets the placeholder":                {site("map {path} {http.auth.user.id} {\n /a a\n}", limit, auth), ""},
		"an alternative":                                 {site(auth, limited("key {http.auth.user.id} {client_ip}\n ipv6_prefix 64")), ""},
		"no authentication":                              {site(limit), ""},
		"authentication of another site":                 {"http://a {\n" + on(limit, "") + "\n}\nhttp://b {\n" + on(auth, "") + "\n}", ""},
		"authentication of another handle":               {site(block("handle /a", limit), block("handle", auth)), ""},
		"paths that may be different":                    {site(on(auth, "/admin/*"), on(limit, "/api/*")), ""},
		"authentication of the rest":                     {site(block("handle /api/*", "respond ok"), block("handle", auth), limited("match path /api/*\n key {http.auth.user.id}")), ""},
		"limits of the rest":                             {site(block("handle /api/*", "respond ok"), block("handle", limit), block("route /admin", auth)), ""},
		"the cost of a response":                         {site(auth, limited("settle {\n cost {http.auth.user.cost}\n}")), ""},
		"a header field":                                 {site(auth, limited("key {header.X-User}")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := warningsOfCaddyfile(t, test.config)
			if n := strings.Count(got, "who is not known yet"); n != min(len(test.option), 1) || n == 1 && !strings.Contains(got, `"zone":"z","option":"`+test.option+`"`) {
				t.Errorf("warnings: %s, want one of %q", got, test.option)
			}
		})
	}
	// A Caddyfile has no terminal route in a subroute.
	for terminal, warnings := range map[string]int{"false": 1, "true": 0} {
		got, err := warningsAtLoad(t, handlerConfig(`{"handler":"subroute","routes":[{"terminal":`+terminal+`,"handle":[{"handler":"rate_limit",
			"rate_limits":{"z":{"key":"{http.auth.user.id}","max_events":1,"window":"1s"}}}]}]},{"handler":"authentication"}`))
		if err != nil || strings.Count(got, "who is not known yet") != warnings {
			t.Errorf("terminal %s: %v, warnings: %s", terminal, err, got)
		}
	}
}
