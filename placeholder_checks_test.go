package ratelimit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// namesConfig is a configuration whose names are defined in all possible places. A handler that is
// loaded before or after them uses them, because Caddy loads servers in any order.
const namesConfig = `{"admin":{"disabled":true},"apps":{"http":{"servers":{
	"a":{"routes":[
		{"handle":[{"handler":"subroute","routes":[
			{"handle":[{"handler":"map","source":"x","destinations":["{nested}"],"mappings":[{"input":"x","outputs":["y"]}]}]}
		]}BEFORE]},
		{"match":[{"path_regexp":{"name":"p","pattern":"^/(?P<first>[^/]*)/([^/]*)"}},{"not":[{"header_regexp":{"X":{"name":"h","pattern":"(.)"}}}]}],
			"handle":[{"handler":"vars","tenant":"x"},{"handler":"reverse_proxy","upstreams":[{"dial":"h:1"}],"handle_response":[
				{"routes":[{"handle":[{"handler":"map","source":"x","destinations":["{answer}"]}]}]}
			]}]},
		{"handle":[{"handler":"rate_limit","rate_limits":{"a":ZONE}}]},
		{"handle":[{"handler":"map","source":"x","destinations":["{later}"]}AFTER]}
	]},
	"b":{"routes":[{"handle":[{"handler":"rate_limit","rate_limits":{"b":ZONE}}]}],
		"errors":{"routes":[{"handle":[{"handler":"vars","failed":"x"}]}]},
		"named_routes":{"r":{"handle":[{"handler":"intercept","handle_response":[{"routes":[
			{"match":[{"vars_regexp":{"{x}":{"pattern":"(?P<only>.)"}}}],"handle":[{"handler":"map","source":"x","destinations":["{named.one}"]}]}
		]}]}]}}},
	"c":{"errors":{"routes":[{"handle":[{"handler":"rate_limit","rate_limits":{"c":ZONE}}]}]}}
}}}}`

func withNames(key, before, after string) string {
	zone := fmt.Sprintf(`{"key":%q,"max_events":1,"window":"1s"}`, key)
	return strings.NewReplacer("ZONE", zone, "BEFORE", before, "AFTER", after).Replace(namesConfig)
}

func TestNamesOfTheConfiguration(t *testing.T) {
	const all = "{nested}{answer}{later}{named.one}{http.vars.tenant}{http.vars.failed}{http.regexp.p.0}{http.regexp.p.first}{http.regexp.p.2}{http.regexp.2}{http.regexp.h.1}{http.regexp.only}"
	for range 20 { // orders of servers
		if err := validate(withNames(all, "", "")); err != nil {
			t.Fatal(err)
		}
		for _, unknown := range []string{"x", "named", "http.vars.x", "http.vars.Tenant", "http.regexp.p.3", "http.regexp.q.0", "http.regexp.3"} {
			err := validate(withNames("{nested}{"+unknown+"}", "", ""))
			if err == nil || !strings.Contains(err.Error(), "nothing provides the placeholder {"+unknown+"}") {
				t.Fatalf("%s: %v", unknown, err)
			}
		}
	}
	// These may define any.
	for other, names := range map[string][]string{
		`{"handler":"test_hold"}`:      {"{x}", "{http.vars.x}", "{http.regexp.q.0}"},
		`{"handler":"vars","{x}":"x"}`: {"{http.vars.x}"},
		`{"handler":"subroute","routes":[{"match":[{"expression":"path_regexp('q', '.')"}]}]}`:                {"{http.regexp.q.0}"},
		`{"handler":"subroute","routes":[{"match":[{"expression":{"expr":"path_regexp('.')","name":"q"}}]}]}`: {"{http.regexp.q.0}"},
	} {
		for range 10 {
			for _, name := range names {
				if err := validate(withNames(name, ","+other, "")); err != nil {
					t.Errorf("%s after %s: %v", name, other, err)
				}
				if err := validate(withNames(name, "", ","+other)); err != nil {
					t.Errorf("%s before %s: %v", name, other, err)
				}
			}
			if name := "{http.vars.client_io}"; !slices.Contains(names, "{http.vars.x}") && validate(withNames(name, "", ","+other)) == nil {
				t.Errorf("%s beside %s is accepted", name, other)
			}
		}
	}
}

// The documented placeholders of Caddy and its modules are known. Names that only look like them
// are not.
func TestNamesOfCaddy(t *testing.T) {
	sources := &placeholderSources{caddyReplacer: newCaddyReplacer()}
	for _, name := range strings.Fields(`
		http.request.method http.request.scheme http.request.proto http.request.proto_name http.request.host http.request.port http.request.hostport
		http.request.host.labels.0 http.request.host.labels.12 http.request.local http.request.local.host http.request.local.port
		http.request.remote http.request.remote.host http.request.remote.port http.request.remote.host/24 http.request.remote.host/24,64
		http.request.uri http.request.uri_escaped http.request.uri.path http.request.uri.path_escaped http.request.uri.path.0 http.request.uri.path.dir
		http.request.uri.path.file http.request.uri.path.file.base http.request.uri.path.file.ext http.request.uri.query http.request.uri.query_escaped
		http.request.uri.query.a http.request.uri.query.a[] http.request.uri.prefixed_query http.request.duration http.request.duration_ms http.request.uuid
		http.request.body http.request.body_base64 http.request.orig_method http.request.orig_uri http.request.orig_uri.path http.request.orig_uri.path.1
		http.request.orig_uri.path.file http.request.orig_uri.path.file_escaped http.request.orig_uri.path.dir http.request.orig_uri.query
		http.request.orig_uri.prefixed_query http.request.cookie.session http.request.header.X-Plan http.request.header.x_y.z
		http.request.tls.version http.request.tls.cipher_suite http.request.tls.resumed http.request.tls.proto http.request.tls.proto_mutual
		http.request.tls.server_name http.request.tls.ech http.request.tls.client.fingerprint http.request.tls.client.public_key
		http.request.tls.client.public_key_sha256 http.request.tls.client.issuer http.request.tls.client.serial http.request.tls.client.subject
		http.request.tls.client.certificate_pem http.request.tls.client.certificate_der_base64 http.request.tls.client.san.dns_names.0
		http.request.tls.client.san.emails http.request.tls.client.san.ips.1 http.request.tls.client.san.uris.0
		http.response.header.X-Cost http.vars.client_ip http.vars.trusted_proxy http.auth.user.id http.auth.user.plan http.auth.jwt.error
		http.reverse_proxy.header.X-Plan http.reverse_proxy.status_code http.reverse_proxy.upstream.hostport http.intercept.header.X http.intercept.status_code
		http.error.status_code http.error.message http.matchers.file.relative http.url_pattern.pathname.id
		http.shutting_down http.time_until_shutdown
		env.HOME file./etc/hostname system.hostname system.slash system.os system.wd system.arch
		time.now time.now.http time.now.rfc3339 time.now.common_log time.now.year time.now.unix time.now.unix_ms`) {
		if !sources.provides(name) {
			t.Errorf("%s is not known", name)
		}
	}
	for _, name := range []string{
		"", "ip", "client_ip", "remote_host", "header.X", "http", "http.", "http.vars.", "http.vars.ip", "http.request", "http.request.header.", "http.request.header.X Y",
		"http.request.header.X:", "http.request.cookie.", "http.request.uri.query.", "http.request.ip", "http.request.uri.path.last", "http.request.host.labels.x",
		"http.request.host.labels.-1", "http.request.tls.client.name", "http.request.tls.client.san.ips.x", "http.response.status_code", "http.reverse_proxy.status",
		"http.regexp.1", "system.time", "time.today", "env.", "foo.bar",
	} {
		if sources.provides(name) {
			t.Errorf("%q is known", name)
		}
	}
}

// The placeholders of this module work in some options only. The names of zones and fields are checked.
func TestOwnPlaceholders(t *testing.T) {
	const deciding, settling = "key plan cost factor", "settle"
	options := map[string]string{
		"key": `"key":NAME`, "plan": `"plan":{"by":NAME,"values":{"free":{"unlimited":true}}}`, "cost": `"cost":NAME`, "factor": `"factor":NAME`,
		"settle": `"settle":{"cost":NAME}`,
	}
	tests := []struct{ name, worksIn, says string }{
		{"request.json.user", deciding, "use it in key, plan, cost or factor"},
		{"request.json.items.0.id", deciding, "use it in key, plan, cost or factor"},
		{"request.form.user", deciding, "use it in key, plan, cost or factor"},
		{"request.form.user.name", deciding, "use it in key, plan, cost or factor"},
		{"response.json.usage.total_tokens", settling, "use it in the cost of settle"},
		{"response.bytes", settling, "use it in the cost of settle"},
		{"response.seconds", settling, "use it in the cost of settle"},
		{"request.json.", "", ""},
		{"request.json", "", ""},
		{"request.json.a..b", "", ""},
		{"request.json..", "", ""},
		{"request.json.items[0].id", "", ""},
		{"response.json.choices.*.id", "", ""},
		{"request.form.", "", ""},
		{"request.form", "", ""},
		{"request", "", "doesn't exist"},
		{"request.body", "", "doesn't exist"},
		{"request.xml.user", "", "doesn't exist"},
		{"response.json.", "", ""},
		{"response.json.a.", "", ""},
		{"response", "", "doesn't exist"},
		{"response.bytes.x", "", "doesn't exist"},
		{"response.second", "", "doesn't exist"},
		{"", "", ""},
		{"api", "", "has no field"},
		{"api.", "", "a zone has no field"},
		{"api.remainin", "", "(did you mean remaining?)"},
		{"apo.limit", "", "(did you mean api?)"},
		{"exceeded.nam", "", "a denial has no field \"nam\" (did you mean name?)"},
		{"exceeded", "", "a denial has no field"},
		{"instant", "", "write log_append rate_limit_instant {http.rate_limit.instant}"},
		{"instant.limit", "", "zone"},
		{"exceeded.reset", "", "write one of name, limit"},
	}
	for _, field := range []string{"limit", "remaining", "reset", "retry_after", "allowed", "charged", "banned"} {
		for _, zone := range []string{"api", "elsewhere", "nested.too"} {
			tests = append(tests, struct{ name, worksIn, says string }{zone + "." + field, deciding + " settle", ""})
		}
	}
	for _, field := range []string{"name", "limit", "remaining", "retry_after", "reason", "id"} {
		tests = append(tests, struct{ name, worksIn, says string }{"exceeded." + field, deciding + " settle", ""})
	}
	const other = `{"handler":"rate_limit","rate_limits":{"NAME":{"max_events":1,"window":"1s"}}}`
	routes := `"errors":{"routes":[{"handle":[` + strings.Replace(other, "NAME", "elsewhere", 1) + `]}]},
		"routes":[{"handle":[{"handler":"subroute","routes":[{"handle":[` + strings.Replace(other, "NAME", "nested.too", 1) + `]}]}]}]`
	for _, test := range tests {
		for option, text := range options {
			name := "{http.rate_limit." + test.name + "}"
			zone := `{"limits":[{"algorithm":"token_bucket","events":1,"window":"1s"}],` + strings.Replace(text, "NAME", `"`+name+`"`, 1) + `}`
			err := validate(`{"admin":{"disabled":true},"apps":{"http":{"servers":{
				"a":{"listen":[":1"],"routes":[{"handle":[{"handler":"rate_limit","rate_limits":{"api":` + zone + `}}]}]},
				"b":{"listen":[":2"],` + routes + `}}}}}`)
			works := slices.Contains(strings.Fields(test.worksIn), option)
			if works != (err == nil) {
				t.Errorf("%s in %s: %v", name, option, err)
			} else if err != nil && (!strings.Contains(err.Error(), ": "+name+" ") || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("%s in %s: %v, which doesn't say %q", name, option, err, test.says)
			}
		}
	}
}

// The checks know the fields of zones that a request has.
func TestZoneFields(t *testing.T) {
	for _, field := range zoneFields {
		if _, ok := emptyPlaceholderField(field); !ok {
			t.Errorf("there is no field %s", field)
		}
	}
}

// Handlers of plugins can hide a zone.
func TestZonesOfPlugins(t *testing.T) {
	zone := `{"key":"{http.rate_limit.%s}","max_events":1,"window":"1s"}`
	for name, ok := range map[string]bool{"hidden.limit": true, "hidden.x": false} {
		err := validate(handlerConfig(`{"handler":"test_hold"},{"handler":"rate_limit","rate_limits":{"api":` + fmt.Sprintf(zone, name) + `}}`))
		if ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlaceholderNames(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a": "", "{a}": "a", "{a}{b.c}": "a b.c", "x{a}y{b}z": "a b", `\{a\}`: "", `\{{a}\}`: "a", `{a\}b}`: `a\}b`, "{}": "",
		"{": "error", "}": "error", "{a": "error", "a}": "error", "{a}}": "error", "{{a}": "error", "{a{b}": "error", `\{a}`: "error", `{a\}`: "error",
	} {
		names, err := placeholderNames(text)
		got := strings.Join(names, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
	}
}

func TestSuggestions(t *testing.T) {
	sources := &placeholderSources{names: map[string]bool{"plan": true, "tier": true, "http.vars.tenant": true}, caddyReplacer: newCaddyReplacer()}
	for name, want := range map[string]string{
		"ip": "{client_ip} (in JSON {http.vars.client_ip})", "clientip": "{client_ip} (in JSON {http.vars.client_ip})", "remote_ip": "{client_ip} (in JSON {http.vars.client_ip})",
		"http.request.ip": "{client_ip} (in JSON {http.vars.client_ip})", "remote_hots": "{remote_host} (in JSON {http.request.remote.host})",
		"plann": "{plan}", "user": "{http.auth.user.id}", "http.auth.usr.id": "", "http.request.remote_host": "{http.request.remote.host}",
		"http.vars.tennant": "{http.vars.tenant}", "header.X.Y": "{http.request.header.X.Y}", "vars.te nant": "{http.vars.te nant}", "cost": "", "": "",
	} {
		got := sources.suggestion(name)
		if want != "" && got != ": did you mean "+want+"?" || want == "" && strings.Contains(got, "did you mean") {
			t.Errorf("{%s}%s", name, got)
		}
	}
}

// Caddy gives nothing for an address that has fewer bits than it is to be masked by, so all
// such addresses would share one key.
func TestMasks(t *testing.T) {
	for bits, ok := range map[string]bool{
		"24,64": true, "32,128": true, "0,0": true, "24": true, "32": true,
		"64": false, "33,64": false, "24,129": false, "-1": false, "24,-1": false, "x": false, "": false, "24,": false, "24, 64": false, "24,64,64": false,
	} {
		err := validate(handlerConfig(fmt.Sprintf(`{"handler":"rate_limit","rate_limits":{"a":{"key":"{http.request.remote.host/%s}","max_events":1,"window":"1s"}}}`, bits)))
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "such as {http.request.remote.host/24,64}")) {
			t.Errorf("%q: %v", bits, err)
		}
	}
}

// Captures of CEL expressions are not looked for, so none is said to be missing.
func TestNamesOfExpressions(t *testing.T) {
	for _, text := range []string{`path_regexp('q', '(.)')`, `vars_regexp ("q", "{vars.x}", "(.)")`} {
		sources := &placeholderSources{names: make(map[string]bool), caddyReplacer: newCaddyReplacer()}
		sources.addExpression(text)
		if !sources.provides("http.regexp.q.1") || sources.provides("http.vars.q") {
			t.Errorf("%s: only its captures may be known", text)
		}
	}
}
