package ratelimit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
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
	for range seedtest.Cases(t, 10) { // orders of servers
		if err := caddytest.Validate(withNames(all, "", "")); err != nil {
			t.Fatal(err)
		}
		for _, unknown := range []string{"x", "named", "http.vars.x", "http.vars.Tenant", "http.regexp.p.3", "http.regexp.q.0", "http.regexp.3"} {
			err := caddytest.Validate(withNames("{nested}{"+unknown+"}", "", ""))
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
		for range seedtest.Cases(t, 5) {
			for _, name := range names {
				if err := caddytest.Validate(withNames(name, ","+other, "")); err != nil {
					t.Errorf("%s after %s: %v", name, other, err)
				}
				if err := caddytest.Validate(withNames(name, "", ","+other)); err != nil {
					t.Errorf("%s before %s: %v", name, other, err)
				}
			}
			if name := "{http.vars.client_io}"; !slices.Contains(names, "{http.vars.x}") && caddytest.Validate(withNames(name, "", ","+other)) == nil {
				t.Errorf("%s beside %s is accepted", name, other)
			}
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
			err := caddytest.Validate(`{"admin":{"disabled":true},"apps":{"http":{"servers":{
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

// Handlers of plugins can hide a zone.
func TestZonesOfPlugins(t *testing.T) {
	zone := `{"key":"{http.rate_limit.%s}","max_events":1,"window":"1s"}`
	for name, ok := range map[string]bool{"hidden.limit": true, "hidden.x": false} {
		err := caddytest.Validate(handlerConfig(`{"handler":"test_hold"},{"handler":"rate_limit","rate_limits":{"api":` + fmt.Sprintf(zone, name) + `}}`))
		if ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
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
		err := caddytest.Validate(handlerConfig(fmt.Sprintf(`{"handler":"rate_limit","rate_limits":{"a":{"key":"{http.request.remote.host/%s}","max_events":1,"window":"1s"}}}`, bits)))
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "such as {http.request.remote.host/24,64}")) {
			t.Errorf("%q: %v", bits, err)
		}
	}
}
