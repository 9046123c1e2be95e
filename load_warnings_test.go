package ratelimit

import (
	"cmp"
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
		app.(*App).warnOfOrder()
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

// A jitter in percent is far too much, but it loads, as in other limiters.
func TestWarningsOfJitter(t *testing.T) {
	for jitter, want := range map[string]int{"0": 0, "0.2": 0, "1": 0, "1.5": 1, "10": 1, "1000": 1} {
		for _, config := range []string{
			"{\n rate_limit {\n jitter " + jitter + "\n zone z {\n gcra 1 1s\n }\n }\n}\n:80 {\n rate_limit z\n}",
			":80 {\n rate_limit {\n jitter " + jitter + "\n zone z {\n gcra 1 1s\n }\n }\n}",
		} {
			if got := warningsOfCaddyfile(t, config); strings.Count(got, "jitter is a fraction") != want {
				t.Errorf("jitter %s: %s, want %d warnings", jitter, got, want)
			}
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
		"a matcher of a zone":                            {site(auth, limited("match expression `{http.auth.user.id} != \"admin\"`\n key {client_ip}\n ipv6_prefix 64")), "match"},
		"an exemption":                                   {site(auth, limited("exempt not vars {http.auth.user.id} admin")), "exempt"},
		"a matcher of the directive":                     {site("@m vars_regexp {http.auth.user.id} ^a", auth, on(strings.ReplaceAll(limit, "{http.auth.user.id}", "{path}"), "@m")), "matcher of rate_limit"},
		"a matcher, and only users of a path":            {site(on(auth, "/admin/*"), limited("match expression `{http.auth.user.id} != \"admin\"`")), "match"},
		"a matcher behind authentication":                {site(block("route", auth, limited("match vars {http.auth.user.id} admin"))), ""},
		"a matcher without authentication":               {site(limited("match vars {http.auth.user.id} admin")), ""},
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

// A matcher on the outcome of a request never matches before the request has one. It has one in the routes for
// errors, and in those for responses.
func TestWarningsOfOutcomes(t *testing.T) {
	const by, status = "a placeholder of the outcome of the request", "@m expression `{err.status_code} == 401`"
	limited := func(matcher, settings string) string {
		return "rate_limit " + matcher + " {\n zone z {\n " + settings + "\n sliding_log 5 1m\n}\n}\n"
	}
	match := func(matcher string) string { return limited("", "match "+matcher) }
	advice := map[string]string{"cost": "write settle { cost {http.response.header.X-Cost} }", "key": "choose the key", "plan": "choose the plan", "factor": "choose the factor"}
	site := func(directives ...string) string { return ":80 {\n" + strings.Join(directives, "\n") + "\n}\n" }
	const proxy, auth = "reverse_proxy localhost:9000\n", "basic_auth {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}\n"
	const forward = "forward_auth localhost:9001 {\n uri /\n}\n"
	for name, test := range map[string]struct {
		config string
		option string // that is warned of
	}{
		"expression":                  {site(match("expression `{http.error.status_code} == 401`"), auth), "match"},
		"short names":                 {site(match("expression `{err.status_code} in [401, 403]`"), proxy), "match"},
		"of a proxy":                  {site(match("expression `{rp.status_code} == 401`"), proxy), "match"},
		"vars":                        {site(match("vars {http.error.status_code} 401"), proxy), "match"},
		"vars_regexp":                 {site(match("vars_regexp {http.reverse_proxy.status_code} ^4"), proxy), "match"},
		"header":                      {site(match("header X-Status {http.response.status}"), proxy), "match"},
		"not":                         {site(match("not expression `{http.response.status} < 400`"), proxy), "match"},
		"a field of the response":     {site(match("vars {http.response.header.X-Failed} 1"), proxy), "match"},
		"the body of the response":    {site(match("expression `{http.rate_limit.response.bytes} > 1000`"), proxy), "match"},
		"intercept":                   {site(match("expression `{resp.status_code} == 401`"), "intercept {\n handle_response {\n respond a\n}\n}", proxy), "match"},
		"exempt":                      {site(limited("", "exempt vars {http.response.status} 200"), proxy), "exempt"},
		"the directive":               {site(status, limited("@m", "key static"), proxy), "matcher of rate_limit"},
		"a handle":                    {site(status, "handle @m {\n"+limited("", "key static")+"}\n"+proxy), "matcher of rate_limit"},
		"a key":                       {site(limited("", `key "{client_ip} {err.status_code}"`), proxy), "key"},
		"a cost":                      {site(limited("", "cost {http.response.header.X-Cost}"), proxy), "cost"},
		"a plan":                      {site("rate_limit {\nzone z {\nplan {err.status_code} {\ndefault unlimited\n401 {\nsliding_log 5 1m\n}\n}\n}\n}\n", proxy), "plan"},
		"a factor":                    {site(strings.Replace(limited("", "factor {rp.status_code}"), "sliding_log", "token_bucket", 1), proxy), "factor"},
		"a shared zone":               {"{\nrate_limit {\nzone z {\nmatch vars {err.status_code} 401\nsliding_log 5 1m\n}\n}\n}\n" + site("rate_limit /a z", "rate_limit /b z", proxy), "match"},
		"behind basic_auth":           {"{\norder rate_limit after basic_auth\n}\n" + site(match("vars {http.error.status_code} 401"), auth), "match"},
		"errors behind forward_auth":  {site("route {\n", forward, match("vars {http.error.status_code} 401"), "}"), "match"},
		"responses of forward_auth":   {site("route {\n", forward, match("vars {rp.status_code} 200"), "}"), ""},
		"a field of header":           {site("header X-Plan free", match("vars {http.response.header.X-Plan} free")), ""},
		"a plugin that may set it":    {site("route {\ntest_hold", match("vars {http.error.status_code} 401"), "}"), ""},
		"handle_errors":               {site(proxy, "handle_errors {\n", match("expression `{err.status_code} == 401`"), "}"), ""},
		"matcher in handle_errors":    {site(proxy, status, "handle_errors {\n", limited("@m", "key static"), "}"), ""},
		"key in handle_errors":        {site(proxy, "handle_errors {\n", limited("", "key {err.status_code}"), "}"), ""},
		"handle_response":             {site("reverse_proxy localhost:9000 {\nhandle_response {\n", match("vars {rp.status_code} 401"), "}\n}"), ""},
		"handle_response, intercept":  {site("intercept {\nhandle_response {\n", match("vars {resp.status_code} 401"), "}\n}\n", proxy), ""},
		"invoked for errors":          {"&(n) {\n" + match("vars {err.status_code} 401") + "}\n" + site(proxy, "handle_errors {\ninvoke n\n}"), ""},
		"named routes without an end": {"&(n) {\ninvoke n\n}\n" + site("route {\ninvoke n\n", match("vars {err.status_code} 401"), "}"), ""},
		"only a name":                 {site(match("path /http.error.status_code")), ""},
		"the request":                 {site(match("expression `{http.request.method} == 'POST' && {path} != '/'`")), ""},
		"settle":                      {site(limited("", "settle {\nmatch status 401\ncost {http.response.header.X-Cost}\n}"), auth), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := warningsOfCaddyfile(t, test.config)
			if n := strings.Count(got, by); n != min(len(test.option), 1) || n == 1 && !(strings.Contains(got, `"zone":"z","option":"`+test.option+`"`) && strings.Contains(got, cmp.Or(advice[test.option], "write settle { match status 401 }"))) {
				t.Errorf("warnings: %s, want one of %q", got, test.option)
			}
		})
	}
	// A Caddyfile has no routes for errors in a subroute. They can pass on a request that has failed.
	got, err := warningsAtLoad(t, handlerConfig(`{"handler":"subroute","routes":[{"handle":[{"handler":"static_response"}]}],"errors":{"routes":[{"handle":[{"handler":"vars","a":"b"}]}]}},
		{"handler":"rate_limit","rate_limits":{"z":{"match":[{"vars":{"{http.error.status_code}":["401"]}}],"max_events":1,"window":"1s"}}}`))
	if err != nil || strings.Contains(got, by) {
		t.Errorf("behind a subroute with routes for errors: %v, warnings: %s", err, got)
	}
}

// A zone that counts failed logins by their status must stand before the login.
func TestWarningsOfUnseenLogins(t *testing.T) {
	const auth = "basic_auth PATH {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}\n"
	const limit = "rate_limit PATH {\n zone z {\n key {client_ip}\n ipv6_prefix 64\n sliding_log 5 1m\n settle {\n match status STATUS\n}\n}\n}\n"
	const forward = "forward_auth localhost:9001 {\n uri /\n}\n"
	for name, test := range map[string]struct {
		order, directives, status string
		warned                    bool
	}{
		"another order":               {"after basic_auth", auth + limit, "401", true},
		"several statuses":            {"after basic_auth", auth + limit, "403 401", true},
		"in route":                    {"", "route {\n" + auth + limit + "}", "401", true},
		"in handle":                   {"after basic_auth", "handle /a/* {\n" + auth + limit + "}", "401", true},
		"around handle":               {"", auth + "handle /a/* {\n" + limit + "}", "401", true},
		"forward_auth":                {"", "route {\n" + forward + limit + "}", "401", true},
		"one path":                    {"after basic_auth", strings.ReplaceAll(auth+limit, "PATH", "/a/*"), "401", true},
		"the path of a zone":          {"after basic_auth", strings.Replace(auth, "PATH", "/a/*", 1) + strings.Replace(limit, "key", "match path /a/*\nkey", 1), "401", true},
		"another path of a zone":      {"after basic_auth", strings.Replace(auth, "PATH", "/a/*", 1) + strings.Replace(limit, "key", "match path /b/*\nkey", 1), "401", false},
		"the default order":           {"", auth + limit, "401", false},
		"another status":              {"after basic_auth", auth + limit, "404", false},
		"all errors":                  {"after basic_auth", auth + limit, "4xx", false},
		"in route, first":             {"", "route {\n" + limit + auth + "}", "401", false},
		"the login of other requests": {"after basic_auth", strings.Replace(auth, "PATH", "/admin/*", 1) + limit, "401", false},
	} {
		t.Run(name, func(t *testing.T) {
			global := ""
			if test.order != "" {
				global = "{\norder rate_limit " + test.order + "\n}\n"
			}
			site := strings.NewReplacer("PATH", "", "STATUS", test.status).Replace(test.directives)
			got := warningsOfCaddyfile(t, global+":80 {\n"+site+"\nreverse_proxy localhost:9000\n}\n")
			if strings.Contains(got, "never those of the login handler before rate_limit") != test.warned {
				t.Errorf("warnings: %s, want one: %v", got, test.warned)
			}
		})
	}
}
