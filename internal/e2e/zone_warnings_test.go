package e2e

import (
	"regexp"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A setting that can't mean what it says gets one warning, when the configuration loads.
func TestWarningsOfSettings(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site(`
		zone too_dear {
			cost 20
			fixed_window 10 1h
		}
		zone plan_too_dear {
			cost 20
			mode uniform
			plan {header.X-Plan} {
				free {
					gcra 10 1h
				}
				default unlimited
			}
		}
		zone every_post {
			match method POST
			match path /login
			gcra 10 1h
		}
		zone every_get_exempt {
			exempt method GET
			exempt path /login
			gcra 10 1h
		}
		zone account {
			match method POST
			key {http.rate_limit.request.json.user}
			gcra 10 1h
			ban 1h scope handler
		}
		zone account_or_header {
			key {http.rate_limit.request.json.user} {header.X-User}
			gcra 10 1h
			ban 1h scope handler
		}
		zone one_block {
			match {
				method POST
				path /login
			}
			match path /signup
			gcra 10 1h
		}
		zone just_fits {
			cost 20
			token_bucket 10 1h 20
		}
		zone takes_what_fits {
			cost 20
			mode nary
			fixed_window 10 1h
		}
		zone paid_afterwards {
			cost 20
			smooth 10 1h
		}
		zone second_unused {
			key {path} {header.X-Api-Key}
			gcra 10 1h
		}
		zone text_first {
			key everybody {header.X-Api-Key}
			gcra 10 1h
		}
		zone option_in_key {
			key {client_ip} ipv6_prefix 64
			gcra 10 1h
		}
		zone option_after_header {
			key {header.X-Api-Key} ban
			gcra 10 1h
		}
		zone second_used {
			key {header.X-Api-Key} {path}
			gcra 10 1h
		}
		zone combined {
			key "{path} {header.X-Api-Key}"
			gcra 10 1h
		}
		zone one_budget {
			key remote_ip
			gcra 10 1h
		}
		zone text_last {
			key {header.X-Api-Key} anonymous
			gcra 10 1h
		}
		zone prefix_unused {
			key {header.X-Api-Key} "{client_ip} {header.X-User}"
			ipv6_prefix 64
			gcra 10 1h
		}
		zone prefix_used {
			key {header.X-Api-Key} {client_ip}
			ipv6_prefix 64
			gcra 10 1h
		}
		zone whole_body {
			key {http.request.body}
			gcra 10 1h
		}
		zone match_body {
			match expression "{http.rate_limit.request.json.kind} == 'order'"
			gcra 10 1h
		}
		zone exempt_body {
			match method POST
			exempt vars {http.rate_limit.request.form.kind} free
			key {http.rate_limit.request.form.kind}
			gcra 10 1h
		}
	`))
	for message, want := range map[string]string{
		"if one match of the zone":     "every_post ",
		"if one exempt of the zone":    "every_get_exempt ",
		"scope handler of ban has no":  "account ",
		"each request costs more":      "plan_too_dear too_dear ",
		"a value of key is never empt": "second_unused text_first ",
		"a matcher of the zone has a":  "exempt_body match_body ",
		"a value of key is the name":   "option_after_header option_in_key ",
		"key has no placeholder":       "one_budget ",
		"remote.host/32,64} for the":   "prefix_unused ",
		"a key has the whole body":     "whole_body ",
	} {
		got := ""
		for _, m := range regexp.MustCompile(message+`.*"zone":"(\w+)"`).FindAllStringSubmatch(c.Logged(), -1) {
			got += m[1] + " "
		}
		if got != want {
			t.Errorf("%q: zones %q, want %q", message, got, want)
		}
	}
}
