package ratelimit

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// mistakeBlocks are the Caddyfiles around the lines of the mistakes.
var mistakeBlocks = map[string]string{
	"zone":    ":80\nrate_limit {\nzone z {\ngcra 10 1s\n%s\n}\n}",
	"bare":    ":80\nrate_limit {\nzone z {\n%s\n}\n}",
	"handler": ":80\nrate_limit {\nzone z {\ngcra 10 1s\n}\n%s\n}",
	"redis":   ":80\nrate_limit {\nzone z {\ngcra 10 1s\n}\nredis h:1 {\n%s\n}\n}",
	"global":  "{\nrate_limit {\n%s\n}\n}\n:80",
}

// mistakes are lines of a block whose last one is wrong, with the error. A semicolon ends a line.
var mistakes = []struct{ block, lines, want string }{
	{"zone", "ban 1h after 2 after 3", `after takes one value, not 3: write for example after 5`},
	{"zone", "hold 429", `hold takes status, max, default, each with its value, not "429": write for example hold status 429 503 max 10m`},
	{"zone", "hold max 1m", `hold has no status: write the statuses of the responses, such as hold status 429 503`},
	{"zone", "hold status 429 200", `status takes statuses from 400 to 599, and 4xx and 5xx, not 200: write for example status 429 503`},
	{"zone", "hold status 4", `status takes statuses from 400 to 599, and 4xx and 5xx, not "4": write for example status 429 503`},
	{"zone", "hold status 499", `status takes statuses from 400 to 599, and 4xx and 5xx, not 499: write for example status 429 503`},
	{"zone", "hold status 429 max 1m default 2m", `default of hold is 2m0s, but no hold lasts longer than its max, 1m0s: write a smaller default, or a larger max`},
	{"zone", "hold status 429 max 0s", `max must be at least 1µs, not 0s: write for example max 10m`},
	{"zone", "hold status 429; ban 1h", `ban and hold don't go together, because a key has one ban in a zone: write them in two zones`},
	{"zone", "headers draft", `headers must be off, not "draft": write for example headers off`},
	{"zone", "ban 1ns", "ban must be a whole number of microseconds, not 1ns: write for example ban 1h after 5"},
	{"zone", "ban 1h max 59m", "ban: max must be from 1h, the duration, to 625499h56m53.685248s, not 59m: write the longest ban"},
	{"zone", "ban 1h scope site", `scope must be zone or handler, not "site": write for example scope handler`},
	{"zone", "ban 100000d", "ban: the duration must be at most 625499h56m53.685248s, not 2400000h"},
	{"bare", "concurrency 5 share {path}", "share needs concurrency and delay, because tenants share slots by waiting for them: write for example concurrency 50 and delay 10s, or leave out share"},
	{"bare", "concurrency 5 share tenant; delay 1s", `share "tenant" has no placeholder, so all requests belong to one tenant: write for example concurrency 5 share {http.auth.user.id}`},
	{"bare", "concurrency 5 weight 2; delay 1s", `share "" has no placeholder, so all requests belong to one tenant: write for example concurrency 5 share {http.auth.user.id}`},
	{"bare", `concurrency 5 share ""; delay 1s`, `share "" has no placeholder, so all requests belong to one tenant: write for example concurrency 5 share {http.auth.user.id}`},
	{"bare", "concurrency 5 share; delay 1s", "share has no value: write for example share {http.auth.user.id}"},
	{"bare", `concurrency 5 share "{path"; delay 1s`, `share "{path" has a brace without its counterpart: write placeholders as {name}, and a brace itself as \{`},
	{"bare", "concurrency 5 share {path} weight high; delay 1s", `weight of share "high" has "high" where a number from 0 or a placeholder is expected: write for example 2, {http.request.header.X-Cost}, or 5*{http.request.header.X-Output} + {http.request.header.X-Input}`},
	{"bare", "concurrency 5; ban 1h", "ban needs a limit, because only denials by limits count: write a limit, such as token_bucket 10 1s, or leave out ban"},
	{"zone", "ban 0s", "ban has no duration: write how long it lasts, such as 1h"},
	{"bare", "key {http.rate_limit.request.json.user}; gcra 10 1m; body_timeout 5", `body_timeout must be a duration with a unit of ns, us, ms, s, m, h or d, not "5": write body_timeout 5s`},
	{"bare", "sliding_window 10 1m { buckets 10 }", `unknown option "buckets" of sliding_window: it belongs in the block of sliding_log`},
	{"bare", "sliding_log 10 1m { buckets 2001 }", "sliding_log: buckets must be from 1 to 2000, not 2001: write into how many parts a window is divided, or leave it out to remember every instant"},
	{"bare", "token_bucket 10 1s burst 20", `token_bucket takes events, window and optionally a burst, not "10 1s burst 20": write token_bucket 10 1s 20`},
	{"bare", "gcra 10 1s burst=20", `gcra takes events, window and optionally a burst, not "10 1s burst=20": write gcra 10 1s 21`},
	{"zone", "token_bucket 10 1s; burst 20", `unknown option "burst" of a zone: it belongs in the line of a limit, as in token_bucket 10 1s 20`},
	{"bare", "gcra 10 1s 0", `gcra takes events, window and optionally a burst, not "10 1s 0": write gcra 10 1s`},
	{"bare", "key {header.X-Key}; calendar 10 month; delay 1s", "delay: calendar can't charge in advance, so it can't delay requests: write one of fixed_window, gcra, leaky_bucket, smooth, token_bucket"},
	{"bare", "key {header.X-Key}; calendar 10 day Local", `calendar: unknown time zone "Local": it differs from computer to computer; write its name in the time zone database, such as Europe/Berlin`},
	{"bare", "key {header.X-Key}; calendar 10 month { start_day 31 }", "calendar: start_day of a month must be from 1 to 28, the days of every month, not 31"},
	{"bare", "key {header.X-Key}; calendar 10 week { start_day 15 }", "calendar: start_day of a week must be monday to sunday, not 15"},
	{"bare", "key {header.X-Key}; calendar 10 year { start_day 15 }", "calendar: a year has no start_day: it belongs to week and month"},
	{"bare", "key {header.X-Key}; calendar 10 month { start_day first }", `calendar: start_day must be from 1 to 28 for a month, or monday to sunday for a week, not "first"`},
	{"bare", "key {header.X-Key}; fixed_window 10 1month", `fixed_window takes events and window, not "10 1month": write fixed_window 10 30d, or calendar 10 month`},
	{"bare", "key {header.X-Key}; calendar 10 30d", `calendar: period must be day, week, month or year, not "30d": write for example calendar 10 month`},
	{"bare", "key {header.X-Key}; calendar 10 day Europe/Berln", `calendar: unknown time zone "Europe/Berln" (did you mean Europe/Berlin?)`},
	{"bare", "concurrency 1; delay 1s; cost 2", "cost needs a limit, but the zone has only concurrency or hold: leave it out, or write a limit, such as token_bucket 10 1s; exempt lets requests pass without a slot"},
	{"zone", "cost header.X-Cost", `cost "header.X-Cost" has header.X-Cost, the name of a placeholder, without its braces: write {header.X-Cost}`},
	{"zone", "cost much", `cost "much" has "much" where a number from 0 or a placeholder is expected: write for example 2, {http.request.header.X-Cost}, or 5*{http.request.header.X-Output} + {http.request.header.X-Input}`},
	{"bare", "gcra 1100000000000001 2us 1800000000000000; delay 1s", "delay: gcra 1100000000000001 2µs 1800000000000000 is too large to be counted exactly with a delay: write fewer events, or a longer window"},
	{"zone", "mode uniform; delay 1s", "delay and mode uniform don't go together: a delayed request gets all of its cost, as in mode binary; leave out mode"},
	{"zone", "token_bucket 10 1s; sliding_window 10 1s; delay 1s", "delay: sliding_window can't charge in advance, so it can't delay requests: write one of fixed_window, gcra, leaky_bucket, smooth, token_bucket"},
	{"bare", "fixed_window 10k 1d", `fixed_window takes events and window, not "10k 1d": write fixed_window 10000 1d`},
	{"bare", "window 1h; events 20000000", "limit 1 (sliding_log): sliding_log remembers every event, so events must be at most 200000, not 20000000: write sliding_log 20000000 1h with buckets 1000, or sliding_window 20000000 1h"},
	{"bare", "window 1m; events 0", "events must be above 0, not 0: write how many events one window allows, or respond 403 instead of the limit to deny all requests"},
	{"bare", "fixed_window 99999999999999999999 1s", `fixed_window takes events and window, not "99999999999999999999 1s": write for example fixed_window 10 1s`},
	{"bare", "sliding_log 9000000000000000000 1s", "sliding_log: sliding_log 9000000000000000000 1s is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"bare", "gcra 0 1s", "gcra: events must be above 0, not 0: write how many events one window allows, or respond 403 instead of the limit to deny all requests"},
	{"zone", "exempt ip 203.0.113.0/24", `exempt has no matcher "ip" (did you mean client_ip?): write for example exempt client_ip 203.0.113.0/24`},
	{"zone", "exempt path", "exempt path takes at least one value: write for example exempt client_ip 203.0.113.0/24"},
	{"bare", "fixed_window 10 1s; factor 2", "factor and fixed_window 10 1s don't go together: factor divides the burst, and this limit has none; write a limit with a burst, such as token_bucket"},
	{"bare", "token_bucket 10 1s { initial 5 }; factor {header.X-Factor}", "initial and a factor with placeholders don't go together: the factor changes the burst, and initial depends on the burst; leave out one of the two"},
	{"bare", "smooth 10 1s { warm_up 10s }; factor 2", "factor and smooth 10 1s warming up for 10s don't go together: factor divides the burst, and this limit has none; write a limit with a burst, such as token_bucket"},
	{"zone", "factor header.X-Factor", `factor "header.X-Factor" is the name of a placeholder without its braces: write {header.X-Factor}`},
	{"handler", "headers x_ratelimit x_ratelimit_epoch", "headers x_ratelimit and x_ratelimit_epoch write the same fields: choose one"},
	{"handler", "headers sharkey draft x_ratelimit", "headers sharkey and x_ratelimit write the same fields: choose one"},
	{"handler", "headers draft draft", "headers names draft twice: write it once"},
	{"handler", "headers draft_07", `headers has no form "draft_07": write draft, draft_06, x_ratelimit, x_ratelimit_epoch, sharkey or off`},
	{"handler", "key {client_ip}", `unknown option "key" of rate_limit: it belongs in a zone, as in zone api { ... } or the tls block of redis`},
	{"zone", "redis 127.0.0.1:6379", `unknown option "redis" of a zone: it belongs in the directive rate_limit or its global option`},
	{"bare", "token_bucket 10 1m { initial 11 }", "token_bucket: initial must be from 0 to 10, the burst, not 11: write how many events a new budget holds"},
	{"bare", "leaky_bucket 10 1m { initial 1 }", `unknown option "initial" of leaky_bucket: it belongs in the block of smooth or the block of token_bucket`},
	{"bare", "token_bucket 10 1m { initial empty }", `initial must be a whole number, not "empty": write for example initial 0`},
	{"zone", "ipv4_prefix 99999999999999", "ipv4_prefix is out of range with 99999999999999: write for example ipv4_prefix 24"},
	{"zone", `key "{client_ip"`, `key "{client_ip" has a brace without its counterpart: write placeholders as {name}, and a brace itself as \{`},
	{"zone", "key {http.request.remote.host/64}", "key: {http.request.remote.host/64} is empty for some addresses: write how many bits count of IPv4, up to 32, and of IPv6, up to 128, such as {http.request.remote.host/24,64}"},
	{"zone", "key $binary_remote_addr", `key "$binary_remote_addr": keys have no nginx variables, so $binary_remote_addr is the same text for all requests: write a placeholder, such as {client_ip} or {header.X-Api-Key}`},
	{"zone", "key {client_ip};", `key "{client_ip};" ends in a semicolon, which is the same text for all requests: leave it out`},
	{"zone", "key '{client_ip} {path}'", `key "'{client_ip}" begins with a single quote, but a Caddyfile has only double quotes: write for example "{client_ip} {path}"`},
	{"zone", "key client_ip", `key "client_ip" is the name of a placeholder, and without braces the same for all requests: write {client_ip}`},
	{"bare", "legacy 10 10us", "legacy: duration must be from 1ms to 298h15m41.824s, not 10µs"},
	{"bare", "legacy 0 5s", "legacy: max must be from 1 to 1073741824, not 0: write how many calls one duration allows"},
	{"bare", "legacy 10 10s never", `legacy takes max, duration and optionally min_interval, not "10 10s never": write for example legacy 10 5s 1s`},
	{"bare", "fixed_window 10 1s { laign clock }", `unknown option "laign" of fixed_window (did you mean align?): write for example align clock`},
	{"bare", "fixed_window 10 1s { align moon }", `fixed_window: align must be first or clock, not "moon"`},
	{"bare", "key {header.X-Key}; sliding_log 100 / 1m", `sliding_log takes events and window, not "100 / 1m": write sliding_log 100 1m`},
	{"zone", "match method POST path /login", `"path" is no method: if several matchers must match, write each on its own line, in braces`},
	{"zone", "match paht /login", `match has no matcher "paht" (did you mean path?): write for example match path /api/*`},
	{"zone", "match status 401 403", "a request has no status: to charge only some responses, write settle { match status 401 }"},
	{"bare", "key {http.rate_limit.request.json.user}; gcra 10 1m; max_body 11MiB", `max_body must be from 1 byte to 10MiB (10485760), not "11MiB": write for example max_body 64KiB`},
	{"handler", "tokenbucket 10 1s", `unknown option "tokenbucket" of rate_limit (did you mean token_bucket?): it belongs in a zone, as in zone api { ... }`},
	{"zone", "bypass path /health", `unknown option "bypass" of a zone (did you mean exempt?): write for example exempt client_ip 203.0.113.0/24`},
	{"zone", "location /api/*", `unknown option "location" of a zone (did you mean match?): write for example match path /api/*`},
	{"handler", "memory { max_keys 5 }", `unknown option "memory" of rate_limit: it belongs in the global option rate_limit`},
	{"bare", "sliding_log 10 10s { min_interval 100000d }", "sliding_log: min_interval must be from 1µs to 1250999h53m47.370496s, not 2400000h"},
	{"bare", "sliding_log 10 1m { min_interval 0 }", "min_interval must be at least 1µs, not 0s: write for example min_interval 1s"},
	{"bare", "key {header.X-Key}; calendar 10 month; notify 101%", "notify must be from 1% to 100%, not 101: write for example notify 80% 100%"},
	{"bare", "key {header.X-Key}; calendar 10 month; notify 100% 80%", "notify has shares that do not grow: 80% follows 100%: write for example notify 80% 100%"},
	{"bare", "key {header.X-Key}; fixed_window 10 1d; notify 80%", "notify needs a calendar, because only its periods have a count: write for example calendar 100000 month"},
	{"handler", "redis 127.0.0.1:6379; on_store_error local 3/2", `the share of on_store_error local must be above 0 and at most 1, not "3/2": write for example 1/3`},
	{"handler", "redis 127.0.0.1:6379; on_store_error open", `on_store_error must be local, local with a share as in local 1/3, allow or deny, not "open": write for example on_store_error local`},
	{"zone", "status 430 { x }", "status takes no block"},
	{"zone", "key {client_ip}; ipv6_prefix 64; override 2001:db8::1 unlimited", `override "2001:db8::1" is narrower than the keys of the zone, which are networks: write 2001:db8::/64`},
	{"zone", "key {client_ip}; override ::ffff:203.0.113.7 unlimited", `override "::ffff:203.0.113.7" is not the usual form of this address: write 203.0.113.7`},
	{"zone", "key {client_ip}; override ::ffff:0:0/96 unlimited", `override "::ffff:0:0/96" is not the usual form of this address: write 0.0.0.0/0`},
	{"zone", "key {header.Authorization}; override 203.0.113.7 unlimited", `override "203.0.113.7" is for addresses, but no value of key is just an address placeholder: write {client_ip} as a value of key, or let these requests pass with exempt client_ip 203.0.113.7`},
	{"zone", "override 203.0.113.7 { concurrency 5 }", `override "203.0.113.7": unknown option "concurrency" of override: it belongs in a zone, as in zone api { ... }`},
	{"zone", "key {client_ip}; ipv4_prefix 24; override 203.0.113.7/24 unlimited", `override "203.0.113.7/24" is not a network: write 203.0.113.0/24`},
	{"zone", "key {client_ip}; override private_ranges unlimited", `override "private_ranges" is not an address, but all keys of the zone are addresses, so it would never apply: write an address or a network, such as 203.0.113.0/24`},
	{"zone", "override friend", `override "friend": it has no limit: write at least one, such as token_bucket 10 1s, or unlimited`},
	{"zone", "key {client_ip}; override {client_ip} unlimited", `override "{http.vars.client_ip}" has a placeholder, which is not replaced here: write one key as it is, such as 203.0.113.7`},
	{"zone", "override friend unlimited; override friend unlimited", `override "friend" is given twice: write it once`},
	{"bare", "key_case lower; token_bucket 10 1m; override Alice unlimited; override alice { token_bucket 20 1m }; key {header.X-User}", `override "Alice" and override "alice" are for the same key, because key_case is lower: write one of them`},
	{"bare", "key {header.X-Api-Key}; concurrency 3; override vip unlimited", "override needs a limit, but the zone has only concurrency or hold: leave it out, or write a limit, such as token_bucket 10 1s; exempt lets requests pass without a slot"},
	{"zone", "override {$NOT_SET_HERE} unlimited", "override takes a key before unlimited: write for example override 203.0.113.7 unlimited, or, if the key is an environment variable, set it"},
	{"zone", "override friend always", `override "friend": it takes unlimited, or limits in braces, not "always"`},
	{"zone", "settle { cost {http.rate_limit.request.json.tokens} }", "cost of settle: {http.rate_limit.request.json.tokens} is empty here, because settle looks at the response: use it in key, plan, cost or factor"},
	{"zone", `plan "{plan" { pro unlimited }`, `plan "{plan" has a brace without its counterpart: write placeholders as {name}, and a brace itself as \{`},
	{"bare", "mode nary; plan {header.X-Plan} { pro { gcra 5 1s }; default { smooth 5 1s } }", "default of plan: mode nary and smooth don't go together: smooth works only in mode binary; leave out mode, or write another limit"},
	{"zone", "plan {header.X-Plan}", "plan has no plans: write at least one in its block, with limits in braces or as in free unlimited"},
	{"zone", "gcra 1 1s; plan {header.X-Plan} { free { gcra 1 1s; gcra 1 1s } }", `plan "free": limits 1 and 2 are the same, gcra 1 1s: remove one`},
	{"bare", "plan {header.X-Plan} { free unlimited }", "plan has no default, and the zone has no limits: write default with limits in braces, or default unlimited, for all other values"},
	{"zone", "plan {header.X-Plan} {header.X-Other} { free unlimited }", `plan takes one value, not also "{http.request.header.X-Other}": write the plans in braces`},
	{"zone", "plan {header.X-Plan} { free unlimited; default unlimited }", "both default and the limits of the zone are for values that plan doesn't list: write one of the two"},
	{"bare", "gcra 5 1m; plan {header.X-Plan} { pro unlimited { gcra 6 1m } }", `plan "pro": unlimited and limits don't go together: write unlimited, or limits in braces`},
	{"zone", "plan tier { pro unlimited }", `plan "tier" has no placeholder, so it is the same for all requests: write for example plan {http.auth.user.plan}`},
	{"handler", "problem_json on", `problem_json takes nothing or off, not "on": write it alone, or leave it out`},
	{"bare", "gcra 1 40000d 2", "gcra: gcra 1 960000h 2 is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"bare", "gcra 1 365d 1000000", "gcra: gcra 1 8760h 1000000 is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"bare", "token_bucket 4999 30d", "token_bucket: token_bucket 4999 720h is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"handler", "redis ::1", `redis address "::1" is not host:port, with a port from 1 to 65535: write [::1]:6379, or for a unix socket its absolute path`},
	{"handler", "redis 10.0.0.1:6379 10.0.0.2:6379 { cluster; db 1 }", "cluster can't be combined with master_name or db: leave those out"},
	{"handler", "redis 10.0.0.1:6379 10.0.0.2 { cluster }", `with cluster each redis address is host:port of a node, but "10.0.0.2" is not: write 10.0.0.2:6379, and username, password and tls as options`},
	{"handler", "redis redis://10.0.0.1:6379 { cluster }", "with cluster each redis address is host:port of a node, but one is not: write for example 127.0.0.1:6379, and username, password and tls as options"},
	{"redis", `hash_keys ""`, "the secret of hash_keys is empty: write for example {env.RATE_LIMIT_SECRET}, or leave out hash_keys to store keys as they are"},
	{"handler", "redis localhost:6379 db 1", "redis takes one address, not 3: write for example redis 127.0.0.1:6379, and options in its block; if these are nodes of a cluster, write cluster in its block, and if they are Sentinels, master_name mymaster"},
	{"redis", "max_connections 20", `unknown option "max_connections" of redis: write one of address, username, password, db, key_prefix, hash_keys, batch, timeout, dial_timeout, cluster, declare_keys, master_name, sentinel_username, sentinel_password, tls`},
	{"handler", "redis localhost", `redis address "localhost" is not host:port, with a port from 1 to 65535: write localhost:6379, or for a unix socket its absolute path`},
	{"handler", "redis", "redis takes an address: write for example redis 127.0.0.1:6379 ({$NAME} is empty if this environment variable is not set)"},
	{"redis", "password correct SECRET", "password takes one value, not 2: write for example password {env.REDIS_PASSWORD}"},
	{"handler", "redis 10.0.0.1:66379", `redis address "10.0.0.1:66379" is not host:port, with a port from 1 to 65535: write for example 127.0.0.1:6379, or for a unix socket its absolute path`},
	{"handler", "redis { master_name mymaster }", "redis with master_name takes the addresses of Sentinels: write for example redis 10.0.0.1:26379 10.0.0.2:26379 10.0.0.3:26379"},
	{"handler", "redis 10.0.0.1:26379 10.0.0.2 { master_name mymaster }", `with master_name each redis address is host:port of a Sentinel, but "10.0.0.2" is not: write 10.0.0.2:26379, and username, password, db and tls as options`},
	{"handler", "redis 10.0.0.1:26379 { sentinel_password {env.TEST_SECRET} }", "sentinel_username and sentinel_password need master_name: write the name by which the Sentinels know the primary"},
	{"handler", "redis redis://user:SECRET@10.0.0.1:26379 { master_name mymaster }", "with master_name each redis address is host:port of a Sentinel, but one is not: write for example 127.0.0.1:26379, and username, password, db and tls as options"},
	{"redis", "timeout 100", `timeout must be a duration with a unit of ns, us, ms, s, m, h or d, not "100": write for example timeout 100ms`},
	{"redis", "tls { cert /etc/redis/cert.pem }", "cert and key of tls go together: write both, or leave out both"},
	{"redis", "tls { ciphers strong }", `unknown option "ciphers" of tls: write one of ca, cert, key, server_name, insecure_skip_verify`},
	{"handler", "redis unix:///run/redis.sock?db=", "redis URL is malformed (not shown, because it may hold a password): write unix://[user[:password]@]/path[?db=number], and percent-encode special characters of the password, such as %40 for @ and %2F for /"},
	{"handler", "redis /run/redis.sock { tls }", "tls and a unix socket don't go together: leave tls out, or write host:port"},
	{"handler", "redis redis://localhost:6379/cache", "redis URL is malformed (not shown, because it may hold a password): write redis://[user[:password]@]host[:port][/db], and percent-encode special characters of the password, such as %40 for @ and %2F for /"},
	{"handler", "redis https://host", "redis URL must have the scheme redis, rediss or unix: write host:port or redis://[user[:password]@]host[:port][/db]"},
	{"redis", "username caddy", "username needs a password: write password {env.REDIS_PASSWORD}, or leave username out"},
	{"zone", "settle { cost {http.response.header.X} max 0 }", `cost of settle "{http.response.header.X} max 0" has a max of 0, so each response would cost nothing: write a max from 1 to 2147483647, or cost 0`},
	{"zone", "settle { cost {http.response.header.X} max -1 }", `cost of settle "{http.response.header.X} max -1" has the max "-1": write a whole number from 0 to 2147483647, as in {http.request.header.X-Cost} max 4000`},
	{"zone", "settle { cost {http.response.header.X} max 4k }", `cost of settle "{http.response.header.X} max 4k" has the max "4k": write a whole number from 0 to 2147483647, as in {http.request.header.X-Cost} max 4000`},
	{"zone", "settle { cost {http.response.header.X} max 2147483648 }", `cost of settle "{http.response.header.X} max 2147483648" has the max "2147483648": write a whole number from 0 to 2147483647, as in {http.request.header.X-Cost} max 4000`},
	{"zone", "settle { cost {http.response.header.X} min 20 max 10 }", `cost of settle "{http.response.header.X} min 20 max 10" has a min of 20 above its max of 10: write a max from 20, or a lower min`},
	{"zone", "cost 1000; settle { cost {http.response.header.X} max 999 }", `cost of settle "{http.response.header.X} max 999" has a max of 999, but each request reserves at least 1000 with the zone's cost "1000": write a max from 1000, or a lower cost`},
	{"zone", "cost {query.n} + 9.5; settle { cost {http.response.header.X} max 9 }", `cost of settle "{http.response.header.X} max 9" has a max of 9, but each request reserves at least 10 with the zone's cost "{http.request.uri.query.n} + 9.5": write a max from 10, or a lower cost`},
	{"zone", "cost {query.n} + 9.5; settle { cost {http.response.header.X} max 10 }", ""},
	{"zone", "cost 1000; settle { cost 5 }", ""},
	{"zone", "settle { cost {http.response.header.X}; max 10 }", `unknown option "max" of settle: it belongs in the line of a cost, as in cost {http.response.header.X-Tokens} max 4000`},
	{"zone", "settle", "settle has neither match nor cost: write which responses are charged, such as match status 401, or their true cost, such as cost {http.response.header.X-Tokens}"},
	{"zone", "settle { match status 4XX }", "match takes status or header, with values: write for example match status 401 403"},
	{"zone", "settle { match status 4xx 600 }", "match of settle: no response has status 600: write one from 100 to 599, or a class such as 4xx (in JSON 4)"},
	{"zone", "settle { match status 401; match header X-Failed 1 }", "match is given twice: write it once"},
	{"zone", "mode force; settle { match status 401 }", "settle and mode force don't go together: only mode binary charges exactly the cost; leave out mode"},
	{"bare", "smooth 1 1s; settle { cost {http.response.header.X-Tokens} }", "cost of settle and smooth don't go together: it can't be charged after the response; write another limit, or match alone"},
	{"zone", "settle { status 401 }", `unknown option "status" of settle: it belongs in a zone, as in zone api { ... } or match of settle, as in match status 401`},
	{"zone", "enforce 25; shadow", "shadow and enforce 25 don't go together: shadow denies no request; leave out one of the two"},
	{"zone", "shadow on", `shadow takes no value, not "on": write it alone, or leave it out`},
	{"bare", "smooth 10 1s 20 { warm_up 10s }", "smooth: burst and warm_up don't go together: leave out 20; with warm_up, events saved up while idle are spent slowly, never at once"},
	{"bare", "smooth 10 1s { cold_factor 3 }", "smooth: cold_factor needs warm_up: write warm_up as well, such as 10s, or leave out cold_factor"},
	{"bare", "smooth 10 1s { warm_up 10s; cold_factor 1.0001 }", "smooth: cold_factor must be from 1 to 1000, with up to three decimals, not 1.0001: write for example 3 or 2.5"},
	{"bare", "smooth 10 1s { warm_up 10s; cold_factor 1001 }", "smooth: cold_factor must be from 1 to 1000, not 1001: write how many times as much an event costs when cold"},
	{"bare", "smooth 10 1s { warm_up 10s; initial 0 }", "smooth: initial and warm_up don't go together: with warm_up a new budget is cold, and holds nothing to begin with"},
	{"bare", "gcra 10 1s; smooth 10 1s; mode nary", "mode nary and smooth don't go together: smooth works only in mode binary; leave out mode, or write another limit"},
	{"bare", "smooth 10 1s { warm_up 10ns }", "warm_up must be at least 1µs, not 10ns: write for example warm_up 10s"},
	{"bare", "smooth 10 1s { warm_up 100000d }", "smooth: smooth 10 1s warming up for 2400000h is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"bare", "gcra 10 500ns", "gcra: window must be a whole number of microseconds, not 500ns: write for example 1µs"},
	{"bare", "events 10; window 100000d", "sliding_log 1 2400000h is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"bare", "events 5; window 0s", "window must be above 0, not 0s: write a duration of at least 1us, such as 1m"},
	{"bare", "fixed_window 10 100000d", "fixed_window: fixed_window 10 2400000h is too large to be counted exactly: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times"},
	{"handler", "zone z { gcra 1 1s }", `zone "z" is given twice in one rate_limit: write its options together, or give one another name`},
}

// An error says what is wrong and what to write instead, and ends with the file and line of the option.
func TestMistakes(t *testing.T) {
	for _, test := range mistakes {
		if got := mistakeIn(t, test.block, test.lines); got != test.want {
			t.Errorf("%s\n got %s\nwant %s", test.lines, got, test.want)
		}
	}
}

var (
	errorAtLine = regexp.MustCompile(`(.*), at Caddyfile:([0-9]+)$`)
	multiline   = strings.NewReplacer("; ", "\n", " { ", " {\n", " }", "\n}")
)

// mistakeIn returns the error of a mistake without its place, which must be one of the lines; "" if there is none.
func mistakeIn(t *testing.T, block, lines string) string {
	t.Helper()
	text := strings.Replace(mistakeBlocks[block], "%s", multiline.Replace(lines), 1)
	_, err := caddytest.Adapt(t, []byte(text))
	if err == nil {
		return ""
	}
	parts := errorAtLine.FindStringSubmatch(err.Error())
	if parts == nil {
		return "no place: " + err.Error()
	}
	got := strings.TrimPrefix(strings.TrimPrefix(parts[1], "parsing caddyfile tokens for 'rate_limit': "), `zone "z": `)
	if strings.ContainsAny(got, "<>&") || strings.ContainsAny(got[len(got)-1:], ".:;,?!") {
		t.Errorf("%s: the admin API escapes < > and &, and no punctuation stands before the place: %s", lines, got)
	}
	number, _ := strconv.Atoi(parts[2])
	if line := strings.Split(text, "\n")[number-1]; !slices.Contains(strings.Split(multiline.Replace(lines), "\n"), line) {
		t.Errorf("%s: the place is %q", lines, line)
	}
	return got
}

// Each option rejects a value that it can't have, a second value of its kind, and a second line. The error names the
// option, and says what to write instead.
func TestMistakesOfAllOptions(t *testing.T) {
	z, o, r := new(Zone), new(Options), new(Redis)
	helps := regexp.MustCompile(` (write|must|takes) `)
	for block, all := range map[string][]options.Option{"zone": z.options(), "handler": o.blockOptions(), "redis": r.blockOptions()} {
		name := map[string]string{"zone": "a zone", "handler": "rate_limit", "redis": "redis"}[block]
		for _, o := range all {
			if o.Read == nil || slices.Contains([]string{"address", "distributed", "storage"}, o.Name) { // which take anything
				continue
			}
			line := strings.TrimSpace(o.Name + " " + o.Example)
			misspelled := fmt.Sprintf("unknown option %q of %s (did you mean %s?): write for example %s", o.Name+"z", name, o.Name, line)
			if got := mistakeIn(t, block, o.Name+"z"); got != misspelled {
				t.Errorf("%s\nwant %s", got, misspelled)
			}
			if twice := o.Name + " is given twice: write it once"; !o.Repeatable {
				if got := mistakeIn(t, block, line+"\n"+line); got != twice {
					t.Errorf("%s\nwant %s", got, twice)
				}
			}
			for _, value := range []string{"", "zz", "-1", "0", "1ns", "-5s", "NaN", "zz zz zz"} {
				got := mistakeIn(t, block, o.Name+" "+value)
				if got != "" && !(strings.Contains(got, o.Name) && helps.MatchString(got)) {
					t.Errorf("%s %s: %s", o.Name, value, got)
				}
				if got == "" && value == "" && o.Example != "" {
					t.Errorf("%s has no value", o.Name)
				}
			}
		}
	}
}

// The error of a value out of range says the range, and both ends of it are accepted.
func TestRanges(t *testing.T) {
	for _, test := range []struct{ block, option, least, most, below, above string }{
		{"zone", "ipv4_prefix", "0", "32", "-1", "33"},
		{"zone", "ipv6_prefix", "0", "128", "-1", "129"},
		{"zone", "concurrency", "1", "10000000", "0", "10000001"},
		{"zone", "status", "400", "599", "399", "600"},
		{"zone", "enforce", "0", "100", "-0.5", "100.5"},
		{"zone", "body_timeout", "1ms", "", "999µs", ""},
		{"handler", "jitter", "0", "1000", "-0.5", "1000.5"},
		{"handler", "sweep_interval", "1ms", "", "999µs", ""},
		{"redis", "batch", "0", "1000", "-1", "1001"},
		{"redis", "db", "0", "2147483647", "-1", ""},
		{"redis", "timeout", "1ms", "", "999µs", ""},
		{"redis", "dial_timeout", "1ms", "", "999µs", ""},
	} {
		span := fmt.Sprintf("%s must be from %s to %s, not ", test.option, test.least, test.most)
		if test.most == "" {
			span = fmt.Sprintf("%s must be at least %s, not ", test.option, test.least)
		}
		for value, ok := range map[string]bool{test.least: true, test.most: true, test.below: false, test.above: false} {
			got := mistakeIn(t, test.block, test.option+" "+value)
			if value != "" && (got == "") != ok || !ok && value != "" && !strings.HasPrefix(got, span+value+": write ") {
				t.Errorf("%s %s: %q, want %s", test.option, value, got, span)
			}
		}
	}
}

// A limit that an error suggests can be read, whatever stands there instead.
func TestSuggestedLimits(t *testing.T) {
	words := strings.Fields("0 5 10/s / 1s 7d daily per s burst=0 burst=5 20 Europe/Berlin")
	suggestion := regexp.MustCompile(`: write (?:for example )?(.*), at `)
	suggested := make(map[string]bool)
	for _, first := range append(words, "10") {
		for _, second := range words {
			for _, third := range append(words, "") {
				for _, name := range limitOptions {
					line := name + " " + first + " " + second + " " + third
					_, err := readLimitLine(line)
					if err == nil {
						continue
					}
					s := suggestion.FindStringSubmatch(err.Error())
					if s == nil || suggested[s[1]] || !slices.Contains(limitOptions, strings.Fields(s[1])[0]) {
						continue
					}
					suggested[s[1]] = true
					if _, again := readLimitLine(s[1]); again != nil {
						t.Errorf("%s: %v, and then: %v", line, err, again)
					}
				}
			}
		}
	}
	for _, want := range []string{"calendar 10 month", "gcra 10 1s", "sliding_log 5 1s", "gcra 10 1s 6"} {
		if !suggested[want] {
			t.Errorf("%s is never suggested", want)
		}
	}
}

func readLimitLine(line string) (*Zone, error) {
	z := new(Zone)
	d := caddyfile.NewTestDispenser("zone {\n" + strings.NewReplacer(" { ", " {\n", " }", "\n}").Replace(line) + "\n}")
	d.Next()
	return z, readBlock(d, "a zone", z.options(), nil)
}

// Zones of one name must agree on each setting that identifies them, however it is written. They can exempt other requests.
func TestDisagreements(t *testing.T) {
	differs := map[string]string{
		"key": "key static", "ipv4_prefix": "ipv4_prefix 24", "ipv6_prefix": "ipv6_prefix 64", "key_case": "key_case lower",
		"limits": "gcra 20 1s", "mode": "mode nary", "factor": "factor 2", "concurrency": "concurrency 1",
		"override": "override a unlimited", "runtime_overrides": "runtime_overrides",
		"plan": "plan {header.P} {\na unlimited\n}", "notify": "calendar 9 day\nnotify 80%", "ban": "ban 1h",
		"hold": "hold status 429", "share": "concurrency 1 share {path}\ndelay 1s",
	}
	for _, s := range zoneSettings() {
		if (differs[s.Name] != "") != s.identifies {
			t.Errorf("%s: identifies is %v, and the table has %q", s.Name, s.identifies, differs[s.Name])
		}
		if !s.identifies {
			continue
		}
		zone := func(line string) string { return "rate_limit {\nzone z {\ngcra 10 1s\n" + line + "\n}\n}\n" }
		first := map[string]string{"notify": "calendar 9 day", "share": "concurrency 1"}[s.Name] // what the setting needs
		_, err := caddytest.Adapt(t, []byte(":80\n"+zone(first)+zone(differs[s.Name])))
		if err == nil || !strings.Contains(err.Error(), "defined twice with different settings: "+s.Name+" is ") {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
	for _, test := range []struct{ one, other, want string }{ // JSON is checked when it is provisioned
		{`"ban":{"duration":"1h"}`, `"ban":{"duration":"60m","after":1,"max":"1h"}`, ""},
		{`"ban":{"duration":"1h"}`, `"ban":{"duration":"1h","scope":"zone"}`, ""},
		{`"ban":{"duration":"1h"}`, `"ban":null`, `ban is "1h0m0s after 1 max 1h0m0s" and not set`},
		{`"ban":{"duration":"1h"}`, `"ban":{"duration":"1h","scope":"handler"}`, `ban is "1h0m0s after 1 max 1h0m0s" and "1h0m0s after 1 max 1h0m0s scope handler"`},
		{`"ban":{"duration":"1h"}`, `"ban":{"duration":"1h","max":"2h"}`, `ban is "1h0m0s after 1 max 1h0m0s" and "1h0m0s after 1 max 2h0m0s"`},
		{`"exempt":[{"path":["/a"]}]`, `"exempt":null`, ""},
	} {
		zone := `{"handler":"rate_limit","rate_limits":{"z":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}],%s}}}`
		err := caddytest.Validate(handlerConfig(fmt.Sprintf(zone+","+zone, test.one, test.other)))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s and %s: %v, want %q", test.one, test.other, err, test.want)
		}
	}
}
