package placeholder

import (
	"strings"
	"testing"
)

// The documented placeholders of Caddy and its modules are known. Names that only look like them
// are not.
func TestNamesOfCaddy(t *testing.T) {
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
		http.error.status_code http.error.message http.matchers.file.relative http.regexp.p.1 http.url_pattern.pathname.id
		http.shutting_down http.time_until_shutdown
		env.HOME file./etc/hostname system.hostname system.slash system.os system.wd system.arch
		time.now time.now.http time.now.rfc3339 time.now.common_log time.now.year time.now.unix time.now.unix_ms`) {
		if !provides(name) {
			t.Errorf("%s is not known", name)
		}
	}
	for _, name := range []string{
		"", "ip", "client_ip", "remote_host", "header.X", "http", "http.", "http.vars.", "http.vars.ip", "http.request", "http.request.header.", "http.request.header.X Y",
		"http.request.header.X:", "http.request.cookie.", "http.request.uri.query.", "http.request.ip", "http.request.uri.path.last", "http.request.host.labels.x",
		"http.request.host.labels.-1", "http.request.tls.client.name", "http.request.tls.client.san.ips.x", "http.response.status_code", "http.reverse_proxy.status",
		"system.time", "time.today", "env.", "foo.bar",
	} {
		if provides(name) {
			t.Errorf("%q is known", name)
		}
	}
}

func TestSuggestions(t *testing.T) {
	const (
		address    = "{client_ip}, in JSON {http.vars.client_ip}"
		remoteHost = "{remote_host}, in JSON {http.request.remote.host}"
		apiKey     = "{header.X-Api-Key}, in JSON {http.request.header.X-Api-Key}"
	)
	for name, want := range map[string]string{
		"ip": address, "clientip": address, "remote_ip": address, "http.request.ip": address, "http.request.client_ip": address,
		"http.request.headers.X-Real-IP": address,
		"remote_hots":                    remoteHost, "http.request.remote_host": remoteHost, "http.vars.remote_host": remoteHost, "request.remote.host": remoteHost,
		"http.request.headers.X-Api-Key": apiKey, "headers.X-Api-Key": apiKey, "http.header.X-Api-Key": apiKey, "http.vars.header.X-Api-Key": apiKey,
		"header.X.Y": "{http.request.header.X.Y}", "http.request.cookies.sid": "{cookie.sid}, in JSON {http.request.cookie.sid}",
		"http.request.query.q": "{query.q}, in JSON {http.request.uri.query.q}", "http.vars.method": "{method}, in JSON {http.request.method}",
		"json.user": "{http.rate_limit.request.json.user}", "rate_limit.request.form.user": "{http.rate_limit.request.form.user}",
		"http.request.body.user.id": "{http.rate_limit.request.json.user.id}",
		"plan":                      "", "cost": "", "user": "", "vars.te nant": "", "": "",
	} {
		got := Use{Name: name}.Suggestion()
		if want != "" && got != " (did you mean "+want+"?)" || want == "" && strings.Contains(got, "did you mean") {
			t.Errorf("{%s}%s", name, got)
		}
	}
	for name, want := range map[string]string{
		"headers.X-Tokens": "{http.response.header.X-Tokens}", "http.response.headers.X-Tokens": "{http.response.header.X-Tokens}",
		"http.response.body.tokens": "{http.rate_limit.response.json.tokens}",
	} {
		if got := (Use{Name: name, AfterResponse: true}).Suggestion(); got != " (did you mean "+want+"?)" {
			t.Errorf("{%s}%s", name, got)
		}
	}
}

// A placeholder is an error if nothing can provide it. Some of this module's own work before the response, and some
// after it.
func TestCheck(t *testing.T) {
	const works, unsure = "works", "unsure"
	for name, want := range map[string]struct{ before, after string }{
		"http.vars.client_ip": {works, works}, "http.auth.user.id": {works, works}, "http.regexp.p.1": {works, works},
		"ip": {unsure, unsure}, "http.vars.tenant": {unsure, unsure}, "geoip2.country_code": {unsure, unsure},
		"client_ip": {"write {http.vars.client_ip}", "write {http.vars.client_ip}"}, "header.X.Y": {"did you mean", "did you mean"},
		"http.vars.": {"nothing provides it", "nothing provides it"}, "http.request.ip": {"did you mean {client_ip}", "did you mean {client_ip}"},
		"http.request.remote.host/24,64": {works, works}, "http.request.remote.host/32": {works, works},
		"http.request.remote.host/64": {"such as {http.request.remote.host/24,64}", "such as"}, "http.request.remote.host/": {"such as", "such as"},
		"http.request.remote.host/24,129": {"such as", "such as"}, "http.request.remote.host/-1": {"such as", "such as"},

		"http.rate_limit.request.json.items.0.id": {works, "use it in key, plan, cost or factor"},
		"http.rate_limit.request.form.user.name":  {works, "use it in key, plan, cost or factor"},
		"http.rate_limit.request.json.a..b":       {"leads to no value", "use it in key"},
		"http.rate_limit.request.form.":           {"has no field", "use it in key"},
		"http.rate_limit.request.basic_user":      {works, works},
		"http.rate_limit.request.basic_user.x":    {"doesn't exist", "doesn't exist"},
		"http.rate_limit.request.xml.user":        {"doesn't exist", "doesn't exist"},
		"http.rate_limit.json.user":               {"did you mean", "did you mean"},
		"http.rate_limit.response.json.usage":     {"use it in the cost of settle", works},
		"http.rate_limit.response.bytes":          {"use it in the cost of settle", works},
		"http.rate_limit.response.json.a.":        {"use it in the cost", "leads to no value"},
		"http.rate_limit.response.second":         {"doesn't exist", "doesn't exist"},
		"http.rate_limit.api.charged":             {works, works},
		"http.rate_limit.a.b.limit":               {works, works},
		"http.rate_limit.api":                     {"has no field", "has no field"},
		"http.rate_limit.api.":                    {"a zone has no field", "a zone has no field"},
		"http.rate_limit.api.remainin":            {"(did you mean remaining?)", "(did you mean remaining?)"},
		"http.rate_limit.exceeded.id":             {works, works},
		"http.rate_limit.exceeded.reset":          {"write one of name, limit", "write one of name, limit"},
		"http.rate_limit.instant":                 {"write log_append", "write log_append"},
	} {
		for after, want := range map[bool]string{false: want.before, true: want.after} {
			got, err := Check([]Text{{Option: "key", Text: "{" + name + "}", AfterResponse: after}})
			ok := err == nil && (len(got) == 0 && want == works || len(got) == 1 && want == unsure) ||
				err != nil && want != "" && strings.HasPrefix(err.Error(), "key: {"+name+"} ") && strings.Contains(err.Error(), want)
			if !ok {
				t.Errorf("{%s}, after the response %t: %v, %v, want %q", name, after, got, err, want)
			}
		}
	}
}
