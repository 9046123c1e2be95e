package ratelimit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// handlerConfig is a configuration with one handler.
func handlerConfig(handler string) string {
	return fmt.Sprintf(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["127.0.0.1:0"],"routes":[{"handle":[%s]}]}}}}}`, handler)
}

func TestJSON(t *testing.T) {
	const limit = `"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]`
	zone := func(settings string) string { return `"rate_limits":{"z":{` + settings + `}}` }
	tests := []struct {
		settings string
		want     string // of the error; "" for none
	}{
		{zone(limit), ""},
		{zone(`"max_events":5,"window":"1m","match":[{"method":["GET"]}],"key":"static"`), ""},
		{zone(`"max_events":5,"window":60000000000`) + `,"distributed":{"read_interval":"5s"},"storage":{"module":"file_system","root":"/tmp"},"jitter":0.1,"sweep_interval":"1m"`, ""},
		{zone(limit) + `,"distributed":null,"storage":null`, ""},
		{zone(`"key":["{http.request.header.A}","b"],"cost":"{http.request.header.C}",` + limit), ""},
		{zone(`"cost":2.5,` + limit), ""},
		{zone(`"cost":"5*{http.request.header.A} or {http.request.header.B} + 0.5*{http.request.header.C} min 1 max 9",` + limit), ""},
		{zone(`"settle":{"cost":"2*{http.response.header.A} + {http.response.header.B}"},` + limit), ""},
		{zone(`"settle":{"cost":"{http.response.header.A} max 9"},` + limit), `cost of settle "{http.response.header.A} max 9" has min or max: write them in cost`},
		{zone(`"cost":"{http.request.header.A} 5",` + limit), `has "5" where the next term or the end is expected`},
		{zone(`"cost":0,` + limit), ""},
		{zone(`"window":"1d","max_events":7,"limits":[{"algorithm":"fixed_window","events":1,"window":"1s","align":"clock"}]`), ""},
		{`"return_errors":true,"log_key":false`, ""},
		{zone(`"shadow":true,` + limit), ""},
		{zone(`"enforce":0,` + limit), ""},
		{zone(`"concurrency":10`), ""},
		{zone(`"concurrency":10000000,"mode":"force",` + limit), ""},
		{zone(`"concurrency":-1`), "concurrency must be from 1 to 10000000, not -1"},
		{zone(`"concurrency":10000001,` + limit), "concurrency must be from 1 to 10000000, not 10000001"},
		{zone(`"concurrency":10,"mode":"force"`), "mode needs a limit, but the zone has only concurrency"},
		{zone(`"concurrency":10,"override":{"a":{"unlimited":true}},"cost":2`), "cost needs a limit, but the zone has only concurrency"},
		{zone(`"concurrency":10,"override":{"a":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}},"cost":2`), ""},
		{zone(`"concurrency":10,"override":{"a":{}}`), `override "a": it has no limit`},
		{zone(`"override":{"a":{"unlimited":true,"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}},` + limit), "unlimited and limits don't go together"},
		{zone(`"key":"{http.vars.client_ip}","override":{"203.0.113.7":{"unlimited":true},"10.0.0.0/8":{"unlimited":true}},` + limit), ""},
		{zone(`"override":{"203.0.113.7":{"unlimited":true}},` + limit), "no value of key is an address placeholder alone"},
		{zone(`"key":"{http.vars.client_ip}|a","override":{"203.0.113.7":{"unlimited":true}},` + limit), "exempt client_ip 203.0.113.7"},
		{zone(`"key":["{http.vars.client_ip}","{http.request.remote.host/24,64}"],"ipv6_prefix":56,"override":{"2001:db8::/64":{"unlimited":true}},` + limit), ""},
		{
			zone(`"key":["{http.vars.client_ip}","{http.request.remote.host/24,64}"],"ipv6_prefix":56,"override":{"2001:db8::/65":{"unlimited":true}},` + limit),
			`"2001:db8::/65" is narrower than the keys of the zone, which are networks: write 2001:db8::/64`,
		},
		{zone(`"key":"{http.request.remote.host/24}","override":{"203.0.113.7":{"unlimited":true}},` + limit), "write 203.0.113.0/24"},
		{zone(`"concurrency":10,"override":{"a":{"unlimited":true}}`), `override "a" unlimited lifts only limits, and the zone has only concurrency: write exempt`},
		{zone(`"concurrency":10,"runtime_overrides":true,"override":{"a":{"unlimited":true}}`), `override "a" unlimited lifts only limits`},
		{zone(`"exempt":[{"path":["/a"]},{}],` + limit), "exempt has a matcher set without matchers"},
		{zone(`"exempt":[{"colour":"red"}],` + limit), "exempt: "},
		{zone(`"ban":{"duration":"1h","scope":"site"},` + limit), `scope must be zone or handler, not "site"`},
		{zone(`"concurrency":10,"plan":{"by":"{http.vars.p}","values":{"a":{"unlimited":true}}}`), "plan has no default"},
		{zone(`"ban":{"duration":"1h","after":5,"max":"24h"},` + limit), ""},
		{zone(`"ban":{"duration":"1h"},"mode":"force",` + limit), ""},
		{zone(`"ban":{},` + limit), "ban has no duration: write how long it lasts"},
		{zone(`"ban":{"duration":"-1s"},` + limit), "ban: the duration must be at least 1us, not -1s"},
		{zone(`"ban":{"duration":"1h","after":-1},` + limit), "ban: after must be from 1 to 2147483647, not -1"},
		{zone(`"ban":{"duration":"1h","max":"1m"},` + limit), "ban: max must be from 1h, the duration, to "},
		{zone(`"ban":{"duration":"1h","for":1},` + limit), `unknown field "for"`},
		{zone(`"ban":{},"plan":{"by":"{http.request.header.A}","values":{"a":{"unlimited":true}},"default":{"unlimited":true}}`), "ban has no duration"},
		{zone(`"limits":[{"algorithm":"ban","events":1,"window":"1s"}]`), `unknown algorithm "ban"`},
		{zone(`"shadow":true,"enforce":25,` + limit), "shadow and enforce 25 don't go together"},
		{zone(`"enforce":100.1,` + limit), "enforce must be from 0 to 100, not 100.1"},

		// Mistakes of users who know the Caddyfile, or another limiter.
		{zone(`"key":"$http_x_api_key",` + limit), `key "$http_x_api_key": keys have no variables of nginx, so $http_x_api_key is the same text for all requests: write a placeholder, such as {http.request.header.X-Api-Key}`},
		{zone(`"key":"$remote_addr|{http.request.uri.path}",` + limit), "such as {http.vars.client_ip}"},
		{zone(`"key":"$cookie_Sid $arg_a",` + limit), "such as {http.request.cookie.Sid}"},
		{zone(`"key":"price $5 $A $",` + limit), ""},
		{zone(`"key":"path",` + limit), "write {http.request.uri.path}"},
		{zone(`"key":"{http.request.json.user}",` + limit), "did you mean {http.rate_limit.request.json.user}?"},
		{zone(`"settle":{"cost":"{http.request.body.tokens}"},` + limit), "did you mean {http.rate_limit.response.json.tokens}?"},
		{`"zones":{"z":{` + limit + `}}`, "zones must be a list, not an object (did you mean rate_limits?)"},
		{`"zone":{"z":{` + limit + `}}`, `unknown field "zone" (did you mean rate_limits?)`},
		{zone(limit) + `,"shadow":true`, `unknown field "shadow": it belongs in rate_limits, as in "rate_limits": {"api": {"shadow": ...}}`},
		{zone(`"limits":["gcra 10 1s"]`), `rate_limits.z.limits[0] must be an object, not "gcra 10 1s": write for example {"algorithm": "gcra", "events": 10, "window": "1s"}`},
		{zone(`"body_timeout":1000,` + limit), "body_timeout must be at least 1ms, not 1µs: write for example 5s"},

		// A 0 that would become another number is an error, as in a Caddyfile.
		{zone(`"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":0}]`), "rate_limits.z.limits[0].burst must not be 0: leave it out for as many as events"},
		{zone(`"override":{"a":{"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":0}]}},` + limit), "rate_limits.z.override.a.limits[0].burst must not be 0"},
		{zone(`"plan":{"by":"{http.request.header.A}","default":{"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":0}]}}`), "rate_limits.z.plan.default.limits[0].burst must not be 0"},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","warm_up":"1s","cold_factor":0.0}]`), "cold_factor must not be 0: leave it out for 3"},
		{zone(`"delay":{"max":"1s","held":0},` + limit), "rate_limits.z.delay.held must not be 0: leave it out for 1000"},
		{zone(`"ban":{"duration":"1h","after":0},` + limit), "rate_limits.z.ban.after must not be 0: leave it out for 1"},
		{zone(`"ban":{"duration":"1h","max":"0s"},` + limit), "rate_limits.z.ban.max must not be 0: leave it out for duration"},
		{zone(`"max_body":{"bytes":0},` + limit), "rate_limits.z.max_body.bytes must not be 0: leave it out for 65536"},
		{zone(`"body_timeout":"0s",` + limit), "rate_limits.z.body_timeout must not be 0: leave it out for 5s"},
		{zone(`"status":0,` + limit), "rate_limits.z.status must not be 0: leave it out for 429"},
		{zone(limit) + `,"redis":{"address":["h:1"],"timeout":0}`, "redis.timeout must not be 0: leave it out for 100ms"},
		{zone(limit) + `,"redis":{"address":["h:1"],"dial_timeout":0}`, "redis.dial_timeout must not be 0: leave it out for 1s"},
		{zone(`"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":null}],"ban":null`), ""},
		{zone(`"ipv4_prefix":0,"concurrency":0,"limits":[{"algorithm":"sliding_log","events":2,"window":"1s","min_interval":0,"buckets":0}]`), ""},

		{zone(``), `zone "z": it has no limit`},
		{`"rate_limits":{"z":null}`, `zone "z": it is null`},
		{`"rate_limits":{"a{b":{` + limit + `}}`, `zone "a{b": "a{b" is not a valid zone name`},
		{`"rate_limits":{"":{` + limit + `}}`, `zone "": "" is not a valid zone name`},
		{zone(`"max_events":0,"window":"1m"`), "events (max_events in JSON) is missing or 0, and must be above 0: write for example events 10"},
		{zone(`"max_events":10,"window":0`), "window is missing or 0, and must be above 0: write for example window 1m"},
		{zone(`"cost":"1_000",` + limit), `cost "1_000" has "1_000", which is neither a number from 0 nor a placeholder: write for example 2, {http.request.header.X-Cost}, or`},
		{zone(`"max_events":-1,"window":"1m"`), "events must be above 0, not -1"},
		{zone(`"max_events":1,"window":"-1m"`), "window must be above 0, not -1m"},
		{zone(`"limits":[{"algorithm":"sliding_log","events":200001,"window":"1s"}]`), "sliding_log remembers every event, so events must be at most 200000, not 200001: write sliding_log 200001 1s with buckets 1000, or sliding_window 200001 1s"},
		{zone(`"limits":[{"algorithm":"leaky","events":1,"window":"1s"}]`), `limit 1 (leaky): unknown algorithm "leaky": write one of ` + strings.Join(algorithmNames(), ", ")},
		{zone(`"limits":[{"events":1,"window":"1s"}]`), "algorithm is missing: write one of"},
		{zone(`"limits":[{"algorithm":"gcra","window":"1s"}]`), "events must be above 0, not 0"},
		{zone(`"limits":[{"algorithm":"gcra","events":1}]`), "window must be above 0, not 0s"},
		{zone(`"limits":[{"algorithm":"calendar","events":1,"period":"month","window":"1h"}]`), "calendar has no window, but a period: leave 1h out"},
		{zone(`"limits":[{"algorithm":"calendar","events":1,"window":"30d"}]`), `period must be day, week, month or year, not "": write calendar 1 month`},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1h","period":"day"}]`), "gcra has no period and no time zone: they belong to calendar"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1h","start_day":5}]`), "gcra has no option start_day: it belongs to calendar"},
		{zone(`"limits":[{"algorithm":"calendar","events":1,"period":"week","start_day":15}]`), "start_day of a week must be monday to sunday, not 15"},
		{zone(`"limits":[{"algorithm":"calendar","events":1,"period":"month","start_day":1.5}]`), `start_day must be from 1 to 28 for a month, or monday to sunday for a week, not "1.5"`},
		{zone(`"limits":[{"algorithm":"fixed_window","events":1,"window":"1s","burst":5}]`), "fixed_window takes no burst, not 5"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","align":"clock"}]`), "gcra has no option align: it belongs to fixed_window"},
		{zone(`"limits":[{"algorithm":"sliding_log","events":5,"window":"1s","min_interval":"100ms"},{"algorithm":"sliding_log","events":5,"window":"1s"}]`), ""},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","min_interval":"1s"}]`), "gcra has no option min_interval: it belongs to sliding_log"},
		{zone(`"limits":[{"algorithm":"sliding_log","events":1,"window":"1s","min_interval":"-1s"}]`), "min_interval must be from 1µs to"},
		{zone(`"limits":[{"algorithm":"sliding_log","events":1,"window":"1s","min_interval":"10ns"}]`), "min_interval must be a whole number of microseconds, not 10ns: write for example 1µs"},
		{zone(`"limits":[{"algorithm":"fixed_window","events":1,"window":"1s","align":"x"}]`), `align must be first or clock, not "x"`},
		{zone(`"limits":[{"algorithm":"fixed_window","events":1,"window":"1s","align":"first"},{"algorithm":"fixed_window","events":1,"window":"1000ms"}]`), "limits 1 and 2 are the same"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","burst":-1}]`), "burst must be above 0, not -1"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","initial":1}]`), "gcra has no option initial: it belongs to smooth and token_bucket"},
		{zone(`"limits":[{"algorithm":"token_bucket","events":1,"window":"1s","burst":5,"initial":0},{"algorithm":"token_bucket","events":1,"window":"1s","burst":5}]`), ""},
		{zone(`"limits":[{"algorithm":"token_bucket","events":1,"window":"1s","initial":2}]`), "initial must be from 0 to 1, the burst, not 2"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","buckets":1}]`), "gcra has no option buckets: it belongs to sliding_log"},
		{zone(`"limits":[{"algorithm":"sliding_log","events":20000000,"window":"1d","buckets":100}]`), ""},
		{zone(`"limits":[{"algorithm":"sliding_log","events":1,"window":"1s","buckets":-1}]`), "buckets must be from 1 to 2000, not -1"},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","warm_up":"10s"}]`), ""},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","warm_up":"10ns"}]`), "warm_up must be a whole number of microseconds, not 10ns: write for example 1µs"},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","warm_up":"-1s"}]`), "warm_up must be at least 1µs, not -1s: write how long"},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","warm_up":"1s","cold_factor":0.9}]`), "cold_factor must be from 1 to 1000, not 0.9"},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","warm_up":"1s","cold_factor":1e300}]`), "cold_factor must be from 1 to 1000"},
		{zone(`"limits":[{"algorithm":"smooth","events":1,"window":"1s","cold_factor":2}]`), "cold_factor needs warm_up"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","warm_up":"1s"}]`), "gcra has no option warm_up: it belongs to smooth"},
		{zone(`"mode":"force","limits":[{"algorithm":"smooth","events":1,"window":"1s"}]`), "mode force and smooth don't go together"},
		{zone(`"key":5,` + limit), "rate_limits.z.key must be a string or a list of strings, not 5"},
		{zone(`"key":"{client_ip}",` + limit), "key: {client_ip} works only in a Caddyfile, and is empty in JSON: write {http.vars.client_ip}"},
		{zone(`"key":"{header.X-User}",` + limit), "key: {header.X-User} works only in a Caddyfile, and is empty in JSON: write {http.request.header.X-User}"},
		{zone(`"key":["{http.vars.client_ip}","client_ip"],` + limit), `key "client_ip" is the name of a placeholder`},
		{zone(`"key":"http.vars.client_ip",` + limit), `key "http.vars.client_ip" is the name of a placeholder`},
		{zone(`"key":"{http.vars.client_ip",` + limit), `key "{http.vars.client_ip" has a brace without its counterpart`},
		{zone(`"key":"{foo.bar}",` + limit), ""}, // a plugin may provide it
		{zone(`"key":"everybody",` + limit), ""},
		{zone(`"cost":"a{b",` + limit), `cost "a{b" has a brace without its counterpart`},
		{zone(`"settle":{"match":{"status_code":[4,101,599]}},` + limit), ""},
		{zone(`"settle":{"match":{"status_code":[401,0]}},` + limit), "no response has status 0"},
		{zone(`"settle":{"match":{"status_code":[99]}},` + limit), "no response has status 99"},
		{zone(`"override":{"{http.vars.client_ip}":{"unlimited":true}},` + limit), `override "{http.vars.client_ip}" has a placeholder`},
		{zone(`"factor":"1_000",` + limit), `factor must be a number from 0 or a placeholder, not "1_000"`},
		{zone(`"factor":"Infinity",` + limit), `factor must be a number from 0 or a placeholder, not "Infinity"`},
		{zone(`"factor":"0x1p4",` + limit), `factor must be a number from 0 or a placeholder, not "0x1p4"`},
		{zone(`"cost":"much",` + limit), `cost "much" has "much", which is neither a number from 0 nor a placeholder`},
		{zone(`"cost":-1,` + limit), `cost "-1" has the negative number -1`},
		{zone(`"cost":[1],` + limit), "rate_limits.z.cost must be a number or a string with placeholders, not [1]"},
		{zone(`"max_events":"10","window":"1m"`), `rate_limits.z.max_events must be a whole number, not "10": write 10`},
		{zone(`"max_events":1.5,"window":"1m"`), "rate_limits.z.max_events must be a whole number, not 1.5"},
		{zone(`"max_events":"ten","window":"1m"`), `rate_limits.z.max_events must be a whole number, not "ten"`},
		{zone(`"max_events":10,"window":"1min"`), `rate_limits.z.window must be a duration, not "1min": write "1m"`},
		{zone(`"max_events":10,"window":true`), `rate_limits.z.window must be a duration, not true: write for example "1m"`},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s"},{"algorithm":"gcra","events":[],"window":"1s"}]`), "rate_limits.z.limits[1].events must be a whole number, not a list"},
		{zone(`"limits":{"algorithm":"gcra"}`), "rate_limits.z.limits must be a list, not an object: write it in brackets"},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":60}]`), `rate_limits.z.limits[0].window must be a duration, not 60: write "60s"`},
		{zone(limit) + `,"redis":"localhost:6379"`, "rate_limit: redis must be an object, not a string: write in braces address, batch, cluster, db, dial_timeout, hash_keys, key_prefix, master_name, password, sentinel_password, "},
		{zone(`"ban":"1h",` + limit), "rate_limits.z.ban must be an object, not a string: write in braces after, duration, max"},
		{zone(`"concurrency":5,"ban":{"duration":"1h"}`), "ban needs a limit"},
		{zone(`"cost":"http.request.header.X",` + limit), "without its braces: write {http.request.header.X}"},
		{zone(`"settle":{"match":{"status_code":["4xx"]}},` + limit), `status_code[0] must be a whole number, not "4xx": write 4`},
		{zone(`"shadow":"yes",` + limit), `rate_limits.z.shadow must be true or false without quotes, not "yes"`},
		{zone(`"enforce":"25",` + limit), `rate_limits.z.enforce must be a number, not "25": write 25`},
		{zone(`"settle":{"match":{"status_code":[401,"403"]}},` + limit), `rate_limits.z.settle.match.status_code[1] must be a whole number, not "403": write 403`},
		{zone(`"override":{"a":{"limits":[{"algorithm":"gcra","burst":{}}]}},` + limit), "rate_limits.z.override.a.limits[0].burst must be a whole number, not an object"},
		{zone(`"events":10,"window":"1m"`), `rate_limits.z: unknown field "events" (did you mean max_events?)`},
		{zone(`"max_requests":100,"window":"1m"`), `rate_limits.z: unknown field "max_requests" (did you mean max_events?)`},
		{zone(`"maxRequests":100,"window":"1m"`), `rate_limits.z: unknown field "maxRequests" (did you mean max_events?)`},
		{zone(`"max_events":100,"window_size":"1m"`), `rate_limits.z: unknown field "window_size" (did you mean window?)`},
		{zone(`"max_events":100,"window":"1m","match_path":["/a"]`), `rate_limits.z: unknown field "match_path" (did you mean match?)`},
		{
			zone(`"max_events":100,"window":"1m","burst":20`),
			`rate_limits.z: unknown field "burst": it belongs in limits, as in "limits": [{"algorithm": "token_bucket", "burst": ...}]`,
		},
		{zone(`"align":"clock",` + limit), `it belongs in limits, as in "limits": [{"algorithm": "fixed_window", "align": ...}]`},
		{zone(`"after":5,` + limit), `rate_limits.z: unknown field "after": it belongs in ban, as in "ban": {"after": ...}`},
		{zone(limit) + `,"password":"p"`, `unknown field "password": it belongs in redis, as in "redis": {"password": ...}`},
		{zone(`"overrides":true,` + limit), `rate_limits.z: unknown field "overrides" (did you mean runtime_overrides?)`},
		{zone(`"frobnicate":true,` + limit), `rate_limits.z: unknown field "frobnicate": write one of ban, `},
		{zone(limit) + `,"redis":"h:1"`, "redis must be an object, not a string"},
		{zone(limit) + `,"redis":{"address":"h:1"}`, "redis.address must be a list, not a string: write it in brackets"},
		{zone(limit) + `,"redis":{"address":["h:1"],"password":12345}`, "redis.password must be a string, not a number"},
		{zone(limit) + `,"on_store_error":5`, `on_store_error must be a string or an object, such as "allow"`},
		{zone(limit) + `,"on_store_error":{"mode":5}`, "on_store_error.mode must be a string, not a number"},
		{zone(`"status":200,` + limit), "status must be from 400 to 599, not 200"},
		{zone(`"ipv4_prefix":33,` + limit), "ipv4_prefix must be from 1 to 32, not 33"},
		{zone(`"ipv6_prefix":-1,` + limit), "ipv6_prefix must be from 1 to 128, not -1"},
		{zone(`"match":[{"colour":"red"}],` + limit), "http.matchers.colour"},
		{zone(`"mode":"nary",` + limit), ""},
		{zone(`"mode":"strict",` + limit), `mode must be binary, nary, uniform or force, not "strict"`},
		{zone(`"delay":{"max":"1s"},` + limit), ""},
		{zone(`"delay":{"max":"1s","held":5},"mode":"binary",` + limit), ""},
		{zone(`"delay":{},` + limit), "delay must be above 0, not 0s: write the longest delay"},
		{zone(`"delay":{"max":"1s","held":-1},` + limit), "delay must have places for at least 1 request, not -1"},
		{zone(`"delay":{"max":"1s","places":5},` + limit), `unknown field "places"`},
		{zone(`"delay":{"max":"1s"},"mode":"nary",` + limit), "delay and mode nary don't go together"},
		{zone(`"delay":{"max":"1s"},"max_events":5,"window":"1m"`), "delay: sliding_log can't charge in advance"},
		{zone(`"factor":2,` + limit), ""},
		{zone(`"factor":0.5,` + limit), ""},
		{zone(`"factor":"{http.request.header.F}",` + limit), ""},
		{zone(`"factor":-2,` + limit), `factor must be a number from 0 or a placeholder, not "-2"`},
		{zone(`"factor":2,"max_events":5,"window":"1m"`), "factor and sliding_log 5 1m don't go together"},
		{zone(limit) + `,"storage":"anything"`, ""},
		{zone(limit) + `,"on_store_error":"allow"`, ""},
		{zone(limit) + `,"on_store_error":{"mode":"local","share":"1/3"}`, ""},
		{zone(limit) + `,"on_store_error":{"share":"0.25"}`, ""},
		{zone(limit) + `,"on_store_error":{}`, "on_store_error is empty: write local, local with a share as in local 1/3, allow or deny"},
		{zone(limit) + `,"on_store_error":{"mode":"allow","share":"1/3"}`, "on_store_error allow takes no share"},
		{zone(limit) + `,"on_store_error":{"shares":"1/3"}`, `unknown field "shares"`},
		{zone(limit) + `,"on_store_error":"open"`, `on_store_error must be local, local with a share as in local 1/3, allow or deny, not "open"`},
		{zone(limit) + `,"on_store_error":{"mode":"local","share":"2"}`, `must be above 0 and at most 1, not "2"`},
		{zone(limit) + `,"on_store_error":{"mode":"local","share":"0/3"}`, `must be above 0 and at most 1, not "0/3"`},
		{zone(limit) + `,"on_store_error":{"mode":"local","share":"1/0"}`, `must be above 0 and at most 1, not "1/0"`},
		{zone(limit) + `,"on_store_error":{"mode":"local","share":"1e-999999999"}`, "must be above 0 and at most 1"},
		{zone(limit) + `,"jitter":-1`, "jitter must be a fraction from 0 to 1000, not -1"},
		{zone(limit) + `,"headers":["draft","x"]`, `headers has no form "x"`},
		{zone(`"max_body":{"bytes":"64KiB"},` + limit), `max_body.bytes must be a whole number, not "64KiB": write 65536`},
		{zone(`"body_timeout":5,` + limit), `rate_limits.z.body_timeout must be a duration, not 5: write "5s"`},
		{zone(`"body_timeout":"999us",` + limit), "body_timeout must be at least 1ms, not 999µs: write for example 5s"}, // which no server has
		{zone(`"body_timeout":"1ms",` + limit), ""},                                                                     // which no server has
		{zone(limit) + `,"sweep_interval":"-1m"`, "sweep_interval must be at least 1ms, not -1m0s"},
		{zone(limit) + `,"store":"redis"`, "store is redis, but no Redis is named"},
		{zone(`"key":"{http.request.ip}",` + limit), `zone "z": key: {http.request.ip} is always empty, because nothing provides it ` +
			`(did you mean {client_ip}, in JSON {http.vars.client_ip}?)`},
		{zone(limit) + `,"redis":{"address":["h:1"],"password":"{env.NO_SUCH_VARIABLE}","position":"Caddyfile:7"}`, "set it where Caddy runs, at Caddyfile:7"},
		{zone(limit) + `,"store":"disk"`, `store must be memory or redis, not "disk"`},
		{zone(limit) + `,"redis":{}`, "redis takes an address"},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":null}`, ""},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":"{env.TEST_SECRET}"}`, ""},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":""}`, "the secret of hash_keys is empty: write for example {env.RATE_LIMIT_SECRET}"},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":" "}`, "the secret of hash_keys is empty"},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":"{env.TEST_EMPTY}"}`, `hash_keys of redis: the environment variable "TEST_EMPTY" is not set, or empty`},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":"{env.TEST_BLANK}"}`, "the secret of hash_keys is empty"},
		{zone(limit) + `,"redis":{"address":["h:1"],"timeout":1}`, `redis.timeout must be a duration, not 1: write "1s"`},
		{zone(limit) + `,"redis":{"address":["h:1"],"timeout":"1ms","dial_timeout":"1ms"}`, ""}, // which no server has
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{}}`, ""},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"CERTIFICATES/ca.pem","cert":"{env.TEST_DIRECTORY}/cert.pem","key":"{file.CERTIFICATES/key.pem}","server_name":"redis.internal","insecure_skip_verify":true}}`, ""},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"cert":"CERTIFICATES/cert.pem"}}`, "cert and key of tls go together"},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"verify":false}}`, `unknown field "verify"`},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"/no/such/file"}}`, `ca of tls of redis: can't use "/no/such/file": no such file or directory; write the path of a file in PEM form`},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"CERTIFICATES/"}}`, "ca of tls of redis: can't use"},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"{env.TEST_SECRET}"}}`, `ca of tls of redis: can't use "{env.TEST_SECRET}": no such file or directory`},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"{file.CERTIFICATES/key.pem}"}}`, `ca of tls of redis: "{file.CERTIFICATES/key.pem}" holds no certificate`},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"cert":"CERTIFICATES/key.pem","key":"CERTIFICATES/key.pem"}}`, "do not belong together: write a certificate and its private key"},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"cert":"-----BEGIN SECRET","key":"-----BEGIN SECRET"}}`, "the text there and the text there do not belong together"},
		{zone(limit) + `,"redis":{"address":["/run/redis.sock"]}`, ""},
		{zone(limit) + `,"redis":{"address":["unix:///run/redis.sock?db=1"]}`, ""},
		{zone(limit) + `,"redis":{"address":["unix://{env.TEST_SECRET}@/run/redis.sock"],"tls":{}}`, "tls and a unix socket don't go together"},
		{zone(limit) + `,"redis":{"address":["rediss://:{env.TEST_SECRET}@h:1"]}`, ""},
		{zone(limit) + `,"redis":{"address":["a:1","b:2"],"master_name":"m","sentinel_username":"u","sentinel_password":"{env.TEST_SECRET}","tls":{}}`, ""},
		{zone(limit) + `,"redis":{"address":["a:1","b:2"]}`, "redis takes one address, not 2"},
		{zone(limit) + `,"redis":{"address":["a:1","{env.TEST_HOST}"],"master_name":"m"}`, `with master_name each redis address is host:port of a Sentinel, but "nowhere" is not`},
		{zone(limit) + `,"redis":{"address":["a:1"],"master_name":"m","sentinel_password":"{env.NO_SUCH_VARIABLE}"}`, `sentinel_password of redis: the environment variable "NO_SUCH_VARIABLE" is not set, or empty`},
		{zone(limit) + `,"redis":{"address":["a:1"],"sentinel_username":"u"}`, "sentinel_username and sentinel_password need master_name"},
		{zone(limit) + `,"redis":{"address":["redis://:{env.TEST_SECRET}@h:1"],"username":"u"}`, ""},
		{zone(limit) + `,"redis":{"address":["{env.TEST_HOST}:1"],"username":"u"}`, "username needs a password"},
		{zone(limit) + `,"redis":{"address":["{env.NO_SUCH_VARIABLE}"]}`, `address of redis: the environment variable "NO_SUCH_VARIABLE" is not set, or empty`},
	}
	directory := filepath.Dir(redistest.NewCertificates(t).CA)
	t.Setenv("TEST_DIRECTORY", directory)
	t.Setenv("TEST_SECRET", "SECRET")
	t.Setenv("TEST_HOST", "nowhere")
	t.Setenv("TEST_EMPTY", "")
	t.Setenv("TEST_BLANK", " ")
	for _, test := range tests {
		err := caddytest.Validate(handlerConfig(`{"handler":"rate_limit",` + strings.ReplaceAll(test.settings, "CERTIFICATES/", directory+"/") + `}`))
		test.want = strings.ReplaceAll(test.want, "CERTIFICATES/", directory+"/")
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.settings, err)
		case err != nil && strings.Contains(err.Error(), "Go "):
			t.Errorf("%s: error %v names a type of Go", test.settings, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", test.settings, err, test.want)
		}
	}
	for value, want := range map[string]string{"0": "rate_limit: memory.max_keys must not be 0: leave it out for 1000000", "-5": "max_keys must be above 0, not -5", `"5"`: `rate_limit: memory.max_keys must be a whole number, not "5": write 5`} {
		err := caddytest.Validate(`{"admin":{"disabled":true},"apps":{"rate_limit":{"memory":{"max_keys":` + value + `}}}}`)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("max_keys %s: %v", value, err)
		}
	}
}

func TestKeyAndCostRoundTrip(t *testing.T) {
	for _, text := range []string{`{"key":"a"}`, `{"key":["a","b"]}`, `{"key":""}`, `{"cost":5}`, `{"cost":2.5}`, `{"cost":"{http.vars.x}"}`, `{"factor":0.5}`, `{"delay":{"max":1000000000,"held":5}}`} {
		var z Zone
		if err := json.Unmarshal([]byte(text), &z); err != nil {
			t.Fatal(err)
		}
		if got, _ := json.Marshal(z); string(got) != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// Secrets come from the environment and from files, and only they are asked for.
func TestRedisPlaceholders(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_REDIS_HOST", "redis.internal")
	core, logs := observer.New(zapcore.WarnLevel)
	certificates := redistest.NewCertificates(t)
	t.Setenv("TEST_CERTIFICATES", filepath.Dir(certificates.CA))
	c := Redis{
		Address: []string{"redis://user:{env.TEST_REDIS_HOST}@{env.TEST_REDIS_HOST}:1"}, Password: "{file." + file + "}", KeyPrefix: "{env.TEST_REDIS_HOST}",
		TLS: &RedisTLS{CA: "{env.TEST_CERTIFICATES}/ca.pem", Cert: "{file." + certificates.Cert + "}", Key: "{file." + certificates.Key + "}", ServerName: "{env.TEST_REDIS_HOST}"},
	}
	o, err := c.expandedOptions(zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	if o.Address != "redis://user:redis.internal@redis.internal:1" || o.Password != "from file" || o.KeyPrefix != "redis.internal" {
		t.Errorf("options %+v", o)
	}
	for name, got := range map[string]string{certificates.CA: o.TLS.CA, certificates.Cert: o.TLS.Cert, certificates.Key: o.TLS.Key} {
		if want, err := os.ReadFile(name); err != nil || strings.TrimSpace(got) != strings.TrimSpace(string(want)) {
			t.Errorf("%s became %q", name, got)
		}
	}
	if o.TLS.ServerName != "redis.internal" {
		t.Errorf("server_name became %q", o.TLS.ServerName)
	}
	sentinel := Redis{Address: []string{"{env.TEST_REDIS_HOST}:1", "b:2"}, MasterName: "{env.TEST_REDIS_HOST}", SentinelUsername: "{env.TEST_REDIS_HOST}", SentinelPassword: "{file." + file + "}"}
	o, err = sentinel.expandedOptions(zap.New(core))
	if err != nil || o.Address != "redis.internal:1,b:2" || o.MasterName != "redis.internal" || o.SentinelUsername != "redis.internal" || o.SentinelPassword != "from file" {
		t.Errorf("options %+v, %v", o, err)
	}
	if _, err := (&Redis{Address: []string{"redis://h:1"}}).expandedOptions(zap.New(core)); err != nil {
		t.Fatal(err)
	}
	if logs.Len() != 0 {
		t.Errorf("warnings %v about a password that is not readable", logs.All())
	}
	for _, readable := range []Redis{
		{Address: []string{"h:1"}, Password: "SECRET"},
		{Address: []string{"h:1"}, MasterName: "m", SentinelPassword: "SECRET"},
		{Address: []string{"unix://u:SECRET@/run/redis.sock"}},
		{Address: []string{"redis://u:SECRET@h:1"}},
		{Address: []string{"redis://u:SECRET@{env.TEST_REDIS_HOST}:1"}},
		{Address: []string{"redis://{env.TEST_REDIS_HOST}:SECRET@h:1"}},
	} {
		if _, err := readable.expandedOptions(zap.New(core)); err != nil || logs.Len() != 1 || strings.Contains(fmt.Sprint(logs.All()), "SECRET") {
			t.Errorf("%+v: %v, warnings %v; want one, without the password", readable, err, logs.All())
		}
		logs.TakeAll()
	}
}
