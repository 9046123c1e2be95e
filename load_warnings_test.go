package ratelimit

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
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
		app.(*App).warnOfRoutes()
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
	errtest.None(t, err)
	warnings, err := warningsAtLoad(t, config)
	errtest.None(t, err)
	return warnings
}

// A key that all clients share, or that one client can change, gets one warning.
func TestWarningsOfKeys(t *testing.T) {
	const (
		field  = "an address from a header field, which clients can write themselves"
		port   = "the port of the connection"
		same   = "key has no placeholder"
		unused = "a value of key is never empty"
		prefix = "ipv4_prefix and ipv6_prefix have no effect"
	)
	for key, want := range map[string]string{
		"{header.X-Forwarded-For}":                 field,
		"{http.request.header.cf-connecting-ip}":   field,
		"{header.CloudFront-Viewer-Address}":       field,
		"{header.CF-Connecting-IP} {client_ip}":    field,
		`"{http.auth.user.id}|{header.X-Real-IP}"`: field,
		"{remote}":                                  port,
		`"{remote_host}:{remote_port}"`:             port + prefix,
		"{header.X-Forwarded-For} {remote}":         field + port,
		"remote_ip":                                 same,
		"{path} {header.X-Api-Key}":                 unused,
		"{client_ip} ban":                           unused,
		"everybody {header.X-Api-Key}":              unused,
		`"{client_ip} {header.X-User}"`:             prefix,
		"{client_ip}":                               "",
		"{http.request.remote.host/24,64}":          "",
		"{header.X-Api-Key} {client_ip}":            "",
		"{header.X-Api-Key} anonymous":              "",
		"{header.X-Forwarded-Host}":                 "",
		"{header.X-Email-Address}":                  "",
		"{header.X-Trip}":                           "",
		"{query.X-Forwarded-For}":                   "",
		`"remote \\{http.request.remote\\} {path}"`: "",
	} {
		for _, site := range []string{
			":80 {\n rate_limit {\n ZONE\n }\n}",
			"{\n rate_limit {\n ZONE\n }\n}\n:80 {\n rate_limit /a z\n rate_limit /b z\n}",
		} {
			got := warningsOfCaddyfile(t, strings.Replace(site, "ZONE", "zone z {\n key "+key+"\n ipv6_prefix 64\n gcra 1 1s\n }", 1))
			for _, warning := range []string{field, port, same, unused, prefix} {
				if n := strings.Count(got, warning); n > 1 || (n == 1) != strings.Contains(want, warning) || n == 1 && !strings.Contains(got, `"zone":"z","key":`) {
					t.Errorf("%s: warned %d times of %s: %s", key, n, warning, got)
				}
			}
		}
	}
}

// A cost that never fits, and one that is always 0, are valid, but hardly meant.
func TestWarningsOfCosts(t *testing.T) {
	const dear, free, same = "each request costs more than a limit", "the limits of a zone deny no request", "weight is the same for all tenants"
	for zone, want := range map[string]string{
		"cost 20\nfixed_window 10 1h": dear,
		"cost 20\nmode uniform\nplan {header.X-Plan} {\nfree {\ntoken_bucket 10 1h\n}\ndefault unlimited\n}": dear,
		"cost 20\nmode nary\nfixed_window 10 1h":             "",
		"cost 10\nfixed_window 10 1h":                        "",
		"cost 0\nfixed_window 10 1h":                         free,
		"factor 0\ntoken_bucket 10 1h":                       free,
		"cost {header.X-Cost}\nfixed_window 10 1h":           "",
		"concurrency 5 share {path} weight 2\ndelay 1s":      same,
		"concurrency 5 share {path} weight {host}\ndelay 1s": "",
		"concurrency 5 share {path}\ndelay 1s":               "",
	} {
		got := warningsOfCaddyfile(t, ":80 {\nrate_limit {\nzone z {\n"+zone+"\n}\n}\n}")
		for _, warning := range []string{dear, free, same} {
			if strings.Contains(got, warning) != (warning == want) {
				t.Errorf("%s: warnings %s, want %q", zone, got, want)
			}
		}
	}
}

// A plan that the request chooses gives one budget several numbers, unless the key decides the plan, too. Customers and
// operators choose what else can stand in a plan.
func TestWarningsOfPlans(t *testing.T) {
	const two = "{\nPOST {\nsliding_window 5 1m\n}\ndefault {\nsliding_window 50 1m\n}\n}"
	const other = `, or add the placeholder to key, as in key \"`
	for zone, want := range map[string]string{
		"key {header.X-Key}\nplan {method} " + two:                                                               `{http.request.method}` + other + `{header.X-Key}|{http.request.method}\"`,
		"plan {method} " + two:                                                                                   `{http.request.method}` + other + `{http.request.method}\"`,
		"key {client_ip}\nipv6_prefix 64\nplan {path.0} " + two:                                                  `{http.request.uri.path.0}`,
		"key {header.X-Key} {header.X-User}|{host}\nplan {host} " + two:                                          `{http.request.host}` + other + `{header.X-Key}|{http.request.host}\"`,
		"key {header.X-Key}|{path}\nplan {http.auth.user.plan}-{uri} " + two:                                     `{http.request.uri}` + other + `{header.X-Key}|{http.request.uri.path}|{http.request.uri}`,
		"key {header.X-Key}|{host}\nplan {query.kind} " + two:                                                    `{http.request.uri.query.kind}` + other + `{header.X-Key}|{http.request.host}|{query.kind}`,
		"key {http.auth.user.id}\nplan {http.request.orig_method} " + two:                                        `{http.request.orig_method}` + other + `{http.auth.user.id}|{http.request.orig_method}`,
		"key {header.X-Key}|{method}\nplan {method} " + two:                                                      "",
		"key {header.X-Key}|{http.request.orig_method}\nplan {method} " + two:                                    "",
		"key {header.X-Key}|{path}\nplan {path.0} " + two:                                                        "",
		"key {uri}\nplan {http.request.uri.path.dir} " + two:                                                     "",
		"key {hostport}\nplan {labels.0} " + two:                                                                 "",
		"key {hostport}\nplan {port} " + two:                                                                     "",
		"key {http.request.orig_uri.path}|{http.request.orig_uri.query}\nplan {path.0}{query.kind} " + two:       "",
		"key {vars.tenant}\nplan {path.0} " + two:                                                                "",
		"key {re.tenant.1}\nplan {path.0} " + two:                                                                "",
		"key {header.X-Key}\nplan {header.X-Plan} " + two:                                                        "",
		"key {header.X-Key}\nplan {vars.plan} " + two:                                                            "",
		"key {header.X-Key}\nplan {http.auth.user.plan} " + two:                                                  "",
		"key {client_ip}\nplan {client_ip} " + two:                                                               "",
		"key {client_ip}\nplan {cookie.plan} " + two:                                                             "",
		"key {client_ip}\nplan {http.rate_limit.request.json.plan} " + two:                                       "",
		"key {client_ip}\nplan {method} {\nGET unlimited\ndefault {\nsliding_window 50 1m\n}\n}":                 "",
		"key {client_ip}\nplan {method} {\nPOST {\nsliding_window 5 1m\n}\ndefault {\ngcra 50 1m\n}\n}":          "",
		"key {client_ip}\nplan {method} {\nPOST {\nsliding_window 5 1m\n}\ndefault {\nsliding_window 5 1m\n}\n}": "",
	} {
		got := warningsOfCaddyfile(t, ":80 {\nrate_limit {\nzone z {\n"+zone+"\n}\n}\n}")
		n := strings.Count(got, "the limits of a plan depend on what is requested")
		name, how, _ := strings.Cut(want, other)
		if n != min(len(want), 1) || n == 1 && !strings.Contains(got, `"zone":"z","placeholder":"`+name+`"`) ||
			strings.Contains(got, other) != (how != "") || !strings.Contains(got, how) {
			t.Errorf("%s: warnings %s, want %q", zone, got, want)
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

// Only map, vars and plugins define placeholders of other names than Caddy's. One that no route defines is empty.
func TestWarningsOfUndefinedPlaceholders(t *testing.T) {
	const defined = `:80 {
		route {
			handle /a/* {
				map {path} {nested} {
					default a
				}
			}
			vars tenant a
			ZONE
			map {path} {named.one} {
				default a
			}
		}
		handle_errors {
			vars failed a
		}
	}`
	for key, suggestion := range map[string]string{
		"{nested} {named.one} {vars.tenant} {vars.failed} {vars.client_ip} {re.any.1} {http.auth.user.id}": "",
		"{ip}": "(did you mean {client_ip}, in JSON {http.vars.client_ip}?)", "{remote_ip}": "(did you mean {client_ip}",
		"{nestedd}": "write a placeholder of Caddy", "{tenant}": "write a placeholder", "{vars.nested}": "write a placeholder", "{vars.remote_host}": "(did you mean {remote_host}", "{vars.tenants}": "write a placeholder",
		"{geoip2.country_code}": "unless a plugin provides it",
	} {
		zone := "rate_limit {\n zone z {\n plan \"" + key + "\" {\n a unlimited\n }\n gcra 1 1s\n }\n}"
		got := warningsOfCaddyfile(t, strings.Replace(defined, "ZONE", zone, 1))
		if n := strings.Count(got, "neither Caddy nor this configuration provides"); n != min(len(suggestion), 1) || !strings.Contains(got, suggestion) ||
			n == 1 && !strings.Contains(got, `"zone":"z","option":"plan"`) {
			t.Errorf("%s: %s, want %q", key, got, suggestion)
		}
	}
}

// A matcher on the outcome of a request never matches before the request has one. It has one in the routes for
// errors, and in those for responses.
func TestWarningsOfOutcomes(t *testing.T) {
	const status = "@m expression `{err.status_code} == 401`"
	limited := func(matcher, settings string) string {
		return "rate_limit " + matcher + " {\n zone z {\n " + settings + "\n token_bucket 5 1m\n}\n}\n"
	}
	match := func(matcher string) string { return limited("", "match "+matcher) }
	site := func(directives ...string) string {
		return ":80 {\n" + strings.Join(directives, "\n") + "\nreverse_proxy localhost:9000\n}\n"
	}
	const settle = "write settle { match status 401 }"
	for config, want := range map[string]struct{ option, instead string }{
		site(match("expression `{http.error.status_code} == 401`")):                                                                             {"match", settle},
		site(match("expression `{err.status_code} in [401, 403]`")):                                                                             {"match", settle},
		site(match("vars_regexp {rp.status_code} ^4")):                                                                                          {"match", settle},
		site(match("not header X-Status {http.response.status}")):                                                                               {"match", settle},
		site(match("expression `{http.rate_limit.response.bytes} > 1000`")):                                                                     {"match", settle},
		site(limited("", "exempt vars {http.response.status} 200")):                                                                             {"exempt", settle},
		site(status, limited("@m", "key static")):                                                                                               {"matcher of rate_limit", settle},
		site("@m not vars {http.error.status_code} 401", limited("@m", "key static")):                                                           {"matcher of rate_limit", settle},
		site(status, "handle @m {\n"+limited("", "key static")+"}\n"):                                                                           {"matcher of rate_limit", settle},
		site(limited("", `key "{client_ip} {err.status_code}"`)):                                                                                {"key", "choose the key"},
		site(limited("", "cost {http.response.header.X-Cost}")):                                                                                 {"cost", "write settle { cost {http.response.header.X-Cost} }"},
		site(limited("", "factor {rp.status_code}")):                                                                                            {"factor", "choose the factor"},
		"&(n) {\n" + match("vars {err.status_code} 401") + "}\n" + site("invoke n"):                                                             {"match", settle},
		"{\nrate_limit {\nzone z {\nmatch vars {err.status_code} 401\nsliding_log 5 1m\n}\n}\n}\n" + site("rate_limit /a z", "rate_limit /b z"): {"match", settle},
		site(match("expression `{http.rate_limit.request.json.kind} == 'order'`")):                                                              {"match", "matchers don't read bodies"},
		site(limited("", "exempt vars {http.rate_limit.request.form.kind} free")):                                                               {"exempt", "matchers don't read bodies"},
		site("handle_errors {\n", status, limited("@m", "key {err.status_code}"), "}"):                                                          {},
		site("intercept {\nhandle_response {\n", match("vars {resp.status_code} 401"), "}\n}\n"):                                                {},
		site(match("path /http.error.status_code")):                                                                                             {},
		site(match("expression `{http.request.method} == 'POST' && {path} != '/'`")):                                                            {},
		site(limited("", "key {http.reverse_proxy.header.X-User}")):                                                                             {},
		site(limited("", "key {http.rate_limit.request.json.user}\nsettle {\nmatch status 401\ncost {http.response.header.X-Cost}\n}")):         {},
	} {
		got := warningsOfCaddyfile(t, config)
		n := strings.Count(got, "a placeholder of the outcome of the request") + strings.Count(got, "matchers don't read bodies")
		if n != min(len(want.option), 1) || !strings.Contains(got, want.instead) || n == 1 && !strings.Contains(got, `"zone":"z","option":"`+want.option+`"`) {
			t.Errorf("%s: warnings: %s, want %q", config, got, want)
		}
	}
}

// A value that only clients choose gives a client as many budgets as it likes. There is no warning if something may check the
// value, or if another zone limits the addresses of the same requests.
func TestWarningsOfMadeUpKeys(t *testing.T) {
	const (
		limit   = "\ngcra 1 1s\n}\n"
		address = "zone address {\nkey {client_ip}\nipv6_prefix 64" + limit
		trap    = "rate_limit {\nzone z {\nkey {header.X-Api-Key}" + limit + "}\n"
		known   = "map {header.X-Api-Key} {customer} {\nsecret one\n}\n"
		hash    = "$2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG"
		basic   = "basic_auth {\nanna " + hash + "\n}\n"
		auth    = "localhost:9001 {\nuri /\ncopy_headers X-Api-Key\n}\n"
	)
	of := func(key string) string { return "rate_limit {\nzone z {\nkey " + key + limit + "}\n" }
	and := func(zone, settings string) string {
		return "rate_limit {\n" + zone + "zone z {\n" + settings + "\nkey {cookie.session}" + limit + "}\n"
	}
	for config, want := range map[string]string{
		trap:                                    "{http.request.header.X-Api-Key}",
		of("{header.X-Api-Key} {client_ip}"):    "{http.request.header.X-Api-Key}",
		of(`"{client_ip} {header.User-Agent}"`): "{http.request.header.User-Agent}",
		of("{cookie.session}"):                  "{http.request.cookie.session}",
		of("{query.id}"):                        "{http.request.uri.query.id}",
		of("{http.rate_limit.request.json.id}"): "",
		of("{http.auth.user.id}"):               "",
		of("{path}{host}{method}"):              "",
		of("{header.X-Forwarded-For}"):          "", // has another warning
		of("{path}\nconcurrency 9 share {header.Tenant}\ndelay 1s"):              "{http.request.header.Tenant}",
		of("{path}\nconcurrency 9 share {host} weight {query.w}\ndelay 1s"):      "{http.request.uri.query.w}",
		of("{path}\nconcurrency 9 share {host} weight {vars.w} max 7\ndelay 1s"): "",

		"@k header X-Api-Key *\nroute @k {\n" + trap + "}":                               "{http.request.header.X-Api-Key}",
		"@k not header X-Api-Key *\nrespond @k 401\n" + trap:                             "{http.request.header.X-Api-Key}",
		"@k header X-User secret\nroute @k {\n" + trap + "}":                             "{http.request.header.X-Api-Key}",
		"request_header X-User {header.X-User}\n" + trap:                                 "{http.request.header.X-Api-Key}",
		"header X-Api-Key {header.X-Api-Key}\n" + trap:                                   "{http.request.header.X-Api-Key}",
		"reverse_proxy localhost:9000\n" + trap:                                          "{http.request.header.X-Api-Key}",
		"respond {header.X-Api-Key}\n" + trap:                                            "{http.request.header.X-Api-Key}",
		"@k not header X-Api-Key secret\nrespond @k 401\n" + trap:                        "",
		"@k header_regexp x-api-key ^secret$\nroute @k {\n" + trap + "}":                 "",
		"@k expression `header({'x-api-key': 'secret'})`\nroute @k {\n" + trap + "}":     "",
		"@k expression `header({\"X-Api-Key\": \"secret\"})`\nroute @k {\n" + trap + "}": "",
		"@k expression `{header.X-Api-Key} in ['secret']`\nroute @k {\n" + trap + "}":    "",
		"@k query id=secret\nroute @k {\n" + of("{query.id}") + "}":                      "",
		known + trap: "{http.request.header.X-Api-Key}",
		known + "@unknown expression `{customer} == \"\"`\nrespond @unknown 401\n" + trap:                                   "",
		known + of("{customer} {client_ip}"):                                                                                "",
		"forward_auth /admin/* " + auth + trap:                                                                              "{http.request.header.X-Api-Key}",
		"forward_auth /api/* " + auth + and("", "match path /api/*"):                                                        "",
		"handle /a {\nforward_auth " + auth + "}\nhandle {\n" + trap + "}":                                                  "{http.request.header.X-Api-Key}",
		"@a {\npath /a\nmethod GET\n}\nforward_auth @a " + auth + "@b {\nmethod GET\npath /a\n}\nroute @b {\n" + trap + "}": "",
		"@a not path /b\nforward_auth @a " + auth + "@b path /b\nroute @b {\n" + trap + "}":                                 "{http.request.header.X-Api-Key}",
		"request_header X-Api-Key {http.auth.user.id}\n" + trap:                                                             "",
		basic + trap:                                                                              "{http.request.header.X-Api-Key}", // looks at Authorization
		basic + of("{header.Authorization}"):                                                      "",
		basic + of("{http.rate_limit.request.basic_user}"):                                        "",
		of("{http.rate_limit.request.basic_user}"):                                                "{http.rate_limit.request.basic_user}",
		"@k header !X-Api-Key\nrespond @k 401\n" + trap:                                           "{http.request.header.X-Api-Key}",
		"@k query id=*\nroute @k {\n" + of("{query.id}") + "}":                                    "{http.request.uri.query.id}",
		"@k path /session/*\nrespond @k ok\n" + of("{cookie.session}"):                            "{http.request.cookie.session}",
		"uri query id trusted\n" + of("{query.id}"):                                               "",
		"request_header X-Copy {header.X-Api-Key}\n" + trap:                                       "{http.request.header.X-Api-Key}",
		"vars token {header.X-Api-Key}\n@k not vars {vars.token} secret\nrespond @k 401\n" + trap: "",
		"vars token {header.X-Api-Key}\n" + trap:                                                  "{http.request.header.X-Api-Key}",
		"handle /a {\n" + trap + "}\nhandle {\nrate_limit {\n" + address + "}\n}":                 "{http.request.header.X-Api-Key}",
		"route /b {\nrate_limit {\n" + address + "}\ninvoke n\n}\n" + trap:                        "{http.request.header.X-Api-Key}",
		trap + "}\nb.example.com:80 {\nrate_limit {\n" + address + "}":                            "{http.request.header.X-Api-Key}",
		and(strings.Replace(address, "gcra", "settle {\nmatch status 401\n}\ngcra", 1), ""):       "{http.request.cookie.session}",
		and(strings.Replace(address, "gcra", "enforce 10\ngcra", 1), ""):                          "{http.request.cookie.session}",
		"forward_auth " + auth + trap:                                                             "",
		"route {\n" + trap + "forward_auth " + auth + "}\n":                                       "",
		"invoke n\n" + trap:                                          "",
		and("", "settle {\nmatch status 401\n}"):                     "",
		and("", "settle {\ncost {http.response.header.X-Cost}\n}"):   "{http.request.cookie.session}",
		and(address, ""):                                             "",
		and(address, "match path /api/*"):                            "",
		and(strings.Replace(address, "gcra", "shadow\ngcra", 1), ""): "{http.request.cookie.session}",
		and(strings.Replace(address, "key", "match path /api/*\nkey", 1), "match path /api/*"): "",
		and(strings.Replace(address, "key", "match path /login\nkey", 1), "match path /api/*"): "{http.request.cookie.session}",
		and(strings.Replace(address, "{client_ip}", `"{client_ip} {path}"`, 1), ""):            "{http.request.cookie.session}",
		"rate_limit {\n" + address + "}\n" + trap:                                              "",
		"rate_limit /api/* {\n" + address + "}\n" + trap:                                       "{http.request.header.X-Api-Key}",
		"handle /a {\nrate_limit {\n" + address + "}\n}\nhandle /b {\n" + trap + "}":           "{http.request.header.X-Api-Key}",
		"handle /a {\nrate_limit {\n" + address + "}\nhandle /a/b {\n" + trap + "}\n}":         "",
		"rate_limit shared\nrate_limit shared":                                                 "{http.request.header.X-Shared}",
		"rate_limit shared address":                                                            "",
	} {
		shared := "{\nrate_limit {\nzone shared {\nkey {header.X-Shared}" + limit + address + "}\n}\n"
		named := "&(n) {\nforward_auth " + auth + "}\n"
		if !strings.Contains(config, "shared") {
			shared = ""
		}
		if !strings.Contains(config, "invoke") {
			named = ""
		}
		got := warningsOfCaddyfile(t, shared+named+":80 {\n"+config+"\n}")
		if n := strings.Count(got, "a value that only clients choose"); n != min(len(want), 1) || n == 1 && !strings.Contains(got, `"placeholder":"`+want+`"`) {
			t.Errorf("%s: %s, want a warning of %q", config, got, want)
		}
	}
}

func TestWarningsOfConnections(t *testing.T) {
	const insecure, plain = "insecure_skip_verify accepts any certificate", "the password of Redis goes to another host unencrypted"
	for config, want := range map[string]string{
		"127.0.0.1:6379 {\n password {env.SECRET}\n}":      "",
		"localhost:6379 {\n password {env.SECRET}\n}":      "",
		"[::1]:6379 {\n password {env.SECRET}\n}":          "",
		"/run/redis.sock {\n password {env.SECRET}\n}":     "",
		"unix://:{env.SECRET}@/run/redis.sock":             "",
		"rediss://:{env.SECRET}@redis.internal":            "",
		"10.0.0.1:6379 {\n password {env.SECRET}\n tls\n}": "",
		"10.0.0.1:6379":                                                                                 "",
		"10.0.0.1:6379 {\n timeout 5s\n}":                                                               "",                         // no server is asked
		"10.0.0.1:6379 {\n timeout 6s\n}":                                                               "timeout of redis is long", // no server is asked
		"10.0.0.1:6379 {\n password {env.SECRET}\n}":                                                    plain,
		"redis://:{env.SECRET}@redis.internal":                                                          plain,
		"127.0.0.1:6379 10.0.0.1:6379 {\n password {env.SECRET}\n cluster\n}":                           plain,
		"10.0.0.1:26379 {\n sentinel_password {env.SECRET}\n master_name m\n}":                          plain,
		"127.0.0.1:26379 {\n sentinel_password {env.SECRET}\n password {env.SECRET}\n master_name m\n}": "",
		"127.0.0.1:6379 {\n tls {\n  insecure_skip_verify\n }\n}":                                       insecure,
		"10.0.0.1:6379 {\n password {env.SECRET}\n tls {\n  insecure_skip_verify\n }\n}":                insecure,
	} {
		t.Run(config, func(t *testing.T) {
			t.Setenv("SECRET", "hush")
			text, err := caddytest.Adapt(t, []byte(":80\nrate_limit {\nzone a {\ngcra 1 1s\n}\nredis "+config+"\n}\n"))
			errtest.None(t, err)
			var whole struct {
				Apps struct {
					HTTP struct {
						Servers map[string]struct {
							Routes []struct{ Handle []struct{ Redis *Redis } }
						}
					}
				}
			}
			errtest.None(t, json.Unmarshal([]byte(text), &whole))
			core, logs := observer.New(zapcore.WarnLevel)
			o, err := whole.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0].Redis.expandedOptions(zap.NewNop())
			if err == nil {
				o, err = o.Normalized()
			}
			errtest.None(t, err)
			warnOfConnection(o, zap.New(core))
			said := fmt.Sprint(logs.All())
			if (want == "") != (logs.Len() == 0) || !strings.Contains(said, want) || logs.Len() > 1 || strings.Contains(said, "hush") {
				t.Errorf("%s, want %q", said, want)
			}
		})
	}
	c := caddytest.Start(t, caddytest.Site("zone a {\n gcra 1 1s\n}\nredis 192.0.2.1:6379 {\n password {env.HOME}\n}\non_store_error allow"))
	if got := c.Times(t, plain); got != 1 {
		t.Errorf("a Caddy warned %d times", got)
	}
}
