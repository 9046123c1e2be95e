package ratelimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// handlerConfig is a configuration with one handler.
func handlerConfig(handler string) string {
	return fmt.Sprintf(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["127.0.0.1:0"],"routes":[{"handle":[%s]}]}}}}}`, handler)
}

func TestJSON(t *testing.T) {
	const limit = `"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]`
	zone := func(settings string) string { return `"rate_limits":{"z":{` + settings + `}}` }
	const never = "so it would never apply"
	override := func(key, name string) string {
		return zone(fmt.Sprintf(`"key":%q,"override":{%q:{"unlimited":true}},`+limit, key, name))
	}
	tests := []struct {
		settings string
		want     string // of the error; "" for none
	}{
		{zone(limit), ""},
		{zone(`"max_events":5,"window":60000000000`) + `,"distributed":{"read_interval":"5s"},"storage":{"module":"file_system","root":"/tmp"},"jitter":0.1,"sweep_interval":"1m"`, ""},
		{zone(limit) + `,"distributed":null,"storage":null`, ""},
		{zone(`"window":"1d","max_events":7,"limits":[{"algorithm":"fixed_window","events":1,"window":"1s","align":"clock"}]`), ""},
		{zone(`"concurrency":10000000,"mode":"force",` + limit), ""},
		{zone(`"concurrency":10,"override":{"a":{"limits":[{"algorithm":"gcra","events":1,"window":"1s"}]}},"cost":2`), ""},
		{zone(`"concurrency":10,"override":{"a":{}}`), `override "a": it has no limit`},
		{zone(`"key":"{http.vars.client_ip}","override":{"203.0.113.7":{"unlimited":true},"10.0.0.0/8":{"unlimited":true}},` + limit), ""},
		// An override that no key of the zone can have is an error. Clients of a unix socket have no address.
		{override("{http.vars.client_ip}", "192.0.2.0/33"), never},
		{override("{http.vars.client_ip}", "192.0.2.1-192.0.2.9"), never},
		{override("{http.request.remote.host/24,64}", "fe80::1%eth0/64"), never},
		{override("{http.vars.client_ip}", ""), ""},
		{override("{http.request.remote.host}", "@"), ""},
		{override("{http.request.remote.host}", "/run/caddy.sock"), ""},
		{override("{http.request.header.Api-Key}", "private_ranges"), ""},
		{override("{http.vars.client_ip}|{http.request.uri.path}", "192.0.2.1|/"), ""},
		{zone(`"key":"{http.vars.client_ip}|a","override":{"203.0.113.7":{"unlimited":true}},` + limit), "exempt client_ip 203.0.113.7"},
		{zone(`"key":["{http.vars.client_ip}","{http.request.remote.host/24,64}"],"ipv6_prefix":56,"override":{"2001:db8::/64":{"unlimited":true}},` + limit), ""},
		{zone(`"exempt":[{"path":["/a"]},{}],` + limit), "exempt has a matcher set without matchers"},
		{zone(`"ban":{"duration":"1h"},"mode":"force",` + limit), ""},

		// Mistakes of users who know the Caddyfile, or another limiter.
		{zone(`"key":"$http_x_api_key",` + limit), `key "$http_x_api_key": keys have no nginx variables, so $http_x_api_key is the same text for all requests: write a placeholder, such as {http.vars.client_ip} or {http.request.header.X-Api-Key}`},
		{zone(`"key":"price $5 $A $",` + limit), ""},
		{`"zone":{"z":{` + limit + `}}`, `unknown field "zone" (did you mean rate_limits?)`},
		{zone(limit) + `,"shadow":true`, `unknown field "shadow": it belongs in rate_limits`},

		// A 0 that would become another number is an error, as in a Caddyfile.
		{zone(`"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":0}]`), "rate_limits.z.limits[0].burst must not be 0: leave it out for as many as events"},
		{zone(`"limits":[{"algorithm":"gcra","events":2,"window":"1s","burst":null}],"ban":null`), ""},
		{zone(`"ipv4_prefix":0,"concurrency":0,"limits":[{"algorithm":"sliding_log","events":2,"window":"1s","min_interval":0,"buckets":0}]`), ""},

		{zone(``), `zone "z": it has no limit`},
		{`"rate_limits":{"z":null}`, `zone "z": it is null`},
		{`"rate_limits":{"a{b":{` + limit + `}}`, `zone "a{b": "a{b" is not a valid zone name`},
		{zone(`"max_events":0,"window":"1m"`), "events (max_events in JSON) is missing or 0, and must be above 0: write for example events 10"},
		{zone(`"max_events":10,"window":0`), "window is missing or 0, and must be above 0: write for example window 1m"},
		{zone(`"limits":[{"algorithm":"leaky","events":1,"window":"1s"}]`), `limit 1 (leaky): unknown algorithm "leaky": write one of ` + strings.Join(algorithmNames(), ", ")},
		{zone(`"limits":[{"events":1,"window":"1s"}]`), "algorithm is missing: write one of"},
		{zone(`"limits":[{"algorithm":"calendar","events":1,"period":"month","window":"1h"}]`), "calendar has a period instead of a window: leave 1h out"},
		{zone(`"limits":[{"algorithm":"calendar","events":1,"window":"30d"}]`), `period must be day, week, month or year, not "": write for example calendar 1 month`},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":"1s","align":"clock"}]`), "gcra has no option align: it belongs to fixed_window"},
		{zone(`"limits":[{"algorithm":"sliding_log","events":5,"window":"1s","min_interval":"100ms"},{"algorithm":"sliding_log","events":5,"window":"1s"}]`), ""},
		{zone(`"limits":[{"algorithm":"token_bucket","events":1,"window":"1s","burst":5,"initial":0},{"algorithm":"token_bucket","events":1,"window":"1s","burst":5}]`), ""},
		{zone(`"key":"{client_ip}",` + limit), "key: {client_ip} works only in a Caddyfile, and is empty in JSON: write {http.vars.client_ip}"},
		{zone(`"settle":{"match":{"status_code":[4,101,599]}},` + limit), ""},
		{zone(`"cost":5,"settle":{"cost":"{http.response.header.X} max 5"},` + limit), ""},
		{zone(`"cost":5,"settle":{"cost":"{http.response.header.X} max 4"},` + limit), "each request reserves at least 5 with the zone's cost \"5\": write a max from 5, or a lower cost"},
		{zone(`"settle":{"cost":"{http.response.header.X} max 0"},` + limit), "has a max of 0, so each response would cost nothing: write a max from 1 to 2147483647, or cost 0"},
		{zone(`"factor":"1_000",` + limit), `factor must be a number from 0 or a placeholder, not "1_000"`},
		{zone(`"max_events":10,"window":"1min"`), `rate_limits.z.window must be a duration with a unit of ns, us, ms, s, m, h or d, not "1min": write "1m"`},
		{zone(`"limits":[{"algorithm":"gcra","events":1,"window":60}]`), `rate_limits.z.limits[0].window must be a duration with a unit of ns, us, ms, s, m, h or d, not 60: write "60s"`},
		{zone(`"events":10,"window":"1m"`), `rate_limits.z: unknown field "events" (did you mean max_events?)`},
		{zone(limit) + `,"password":"p"`, `unknown field "password": it belongs in redis`},
		{zone(`"frobnicate":true,` + limit), `rate_limits.z: unknown field "frobnicate": write one of ban, `},
		{zone(`"match":[{"colour":"red"}],` + limit), "http.matchers.colour"},
		{zone(`"delay":{"max":"1s","held":5},"mode":"binary",` + limit), ""},
		{zone(limit) + `,"storage":"anything"`, ""},
		{zone(limit) + `,"jitter":-1`, "jitter must be from 0 to 1000, not -1"},
		{zone(limit) + `,"headers":["unheard"]`, `headers has no form "unheard"`},
		{zone(limit) + `,"on_store_error":"local 1e-999999999"`, "must be above 0 and at most 1"},
		{zone(limit) + `,"on_store_error":"local 1e999999999"`, "must be above 0 and at most 1"},
		{zone(`"max_body":{"bytes":"64KiB"},` + limit), `max_body.bytes must be a whole number, not "64KiB": write 65536`},
		{zone(`"body_timeout":"1ms",` + limit), ""}, // which no server has
		{zone(limit) + `,"store":"redis"`, "store is redis, but no Redis is named"},
		{zone(`"key":"{http.request.ip}",` + limit), `zone "z": key: {http.request.ip} is always empty, because nothing provides it ` +
			`(did you mean {client_ip}, in JSON {http.vars.client_ip}?)`},
		{zone(limit) + `,"redis":{"address":["h:1"],"password":"{env.NO_SUCH_VARIABLE}"}`, "set it where Caddy runs"},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":null}`, ""},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":"{env.TEST_EMPTY}"}`, `hash_keys of redis: the environment variable "TEST_EMPTY" is not set, or empty`},
		{zone(limit) + `,"redis":{"address":["h:1"],"hash_keys":"{env.TEST_BLANK}"}`, "the secret of hash_keys is empty"},
		{zone(limit) + `,"redis":{"address":["h:1"],"timeout":"1ms","dial_timeout":"1ms"}`, ""}, // which no server has
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"CERTIFICATES/ca.pem","cert":"{env.TEST_DIRECTORY}/cert.pem","key":"{file.CERTIFICATES/key.pem}","server_name":"redis.internal","insecure_skip_verify":true}}`, ""},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"/no/such/file"}}`, `ca of tls of redis: can't use "/no/such/file": no such file or directory; write the path of a file in PEM form`},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"CERTIFICATES/"}}`, "ca of tls of redis: can't use"},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"{env.TEST_SECRET}"}}`, `ca of tls of redis: can't use "{env.TEST_SECRET}": no such file or directory`},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"ca":"{file.CERTIFICATES/key.pem}"}}`, "key.pem}\" holds no certificate"},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"cert":"CERTIFICATES/key.pem","key":"CERTIFICATES/key.pem"}}`, "do not belong together: write a certificate and its private key"},
		{zone(limit) + `,"redis":{"address":["h:1"],"tls":{"cert":"-----BEGIN SECRET","key":"-----BEGIN SECRET"}}`, "cert and key of tls of redis: the text there and the text there do not belong together"},
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
		errtest.Says(t, err, want, "max_keys", value)
	}
}

// A value of another kind is an error that says the path and the right kind, in each field. A 0 that would become
// another number is an error, too.
func TestKindsInJSON(t *testing.T) {
	checkKinds(t, reflect.TypeFor[map[string]Zone](), "rate_limits", `{"rate_limits":%s}`)
	checkKinds(t, reflect.TypeFor[Options](), "", "%s")
}

// checkKinds checks the values in a place of the JSON of a handler. A %s stands for the value in whole.
func checkKinds(t *testing.T, kind reflect.Type, place, whole string) {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	isDuration, opaque := kind == reflect.TypeFor[caddy.Duration](), kind == reflect.TypeFor[caddyhttp.RawMatcherSets]()
	if _, decodesItself := reflect.New(kind).Interface().(json.Unmarshaler); opaque || kind.Kind() == reflect.Interface || decodesItself && !isDuration {
		return
	}
	wrong, name := `["x"]`, map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.Int: "a whole number", reflect.Int64: "a whole number", reflect.Float64: "a number",
		reflect.String: "a string", reflect.Slice: "a list", reflect.Map: "an object", reflect.Struct: "an object with ",
	}[kind.Kind()]
	if kind.Kind() == reflect.Slice {
		wrong = `"x"`
	} else if isDuration {
		name = "a duration with a unit"
	}
	rejects := func(whole, value, want string) {
		if err := options.DecodeStrictly(fmt.Appendf(nil, whole, value), new(Handler)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s of %s: %v, want %s", value, whole, err, want)
		}
	}
	rejects(whole, wrong, cmp.Or(place, "it")+" must be "+name)
	switch kind.Kind() {
	case reflect.Map:
		checkKinds(t, kind.Elem(), place+".a", fmt.Sprintf(whole, `{"a":%s}`))
	case reflect.Slice:
		checkKinds(t, kind.Elem(), place+"[0]", fmt.Sprintf(whole, "[%s]"))
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(kind) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				path, inside := strings.TrimPrefix(place+"."+name, "."), fmt.Sprintf(whole, `{"`+name+`":%s}`)
				checkKinds(t, f.Type, path, inside)
				if zero := f.Tag.Get("zero"); zero != "" && f.Type.Kind() != reflect.String {
					rejects(inside, "0", path+" must not be 0: leave it out for "+zero)
				}
			}
		}
	}
}

func TestKeyAndCostRoundTrip(t *testing.T) {
	for _, text := range []string{`{"key":"a"}`, `{"key":["a","b"]}`, `{"key":""}`, `{"cost":5}`, `{"cost":2.5}`, `{"cost":"{http.vars.x}"}`, `{"factor":0.5}`, `{"delay":{"max":1000000000,"held":5}}`} {
		var z Zone
		errtest.None(t, json.Unmarshal([]byte(text), &z))
		if got, _ := json.Marshal(z); string(got) != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// Secrets come from the environment and from files, and only they are asked for.
func TestRedisPlaceholders(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	caddytest.WriteFile(t, file, "from file\n", 0o600)
	t.Setenv("TEST_REDIS_HOST", "redis.internal")
	core, logs := observer.New(zapcore.WarnLevel)
	certificates := redistest.NewCertificates(t)
	t.Setenv("TEST_CERTIFICATES", filepath.Dir(certificates.CA))
	c := Redis{
		Address: []string{"redis://user:{env.TEST_REDIS_HOST}@{env.TEST_REDIS_HOST}:1"}, Password: "{file." + file + "}", KeyPrefix: "{env.TEST_REDIS_HOST}",
		TLS: &RedisTLS{CA: "{env.TEST_CERTIFICATES}/ca.pem", Cert: "{file." + certificates.Cert + "}", Key: "{file." + certificates.Key + "}", ServerName: "{env.TEST_REDIS_HOST}"},
	}
	o, err := c.expandedOptions(zap.New(core))
	errtest.None(t, err)
	if o.Address != "redis://user:redis.internal@redis.internal:1" || o.Password != "from file" || o.KeyPrefix != "redis.internal" {
		t.Errorf("options %+v", o)
	}
	for name, got := range map[string]string{certificates.CA: o.TLS.CA, certificates.Cert: o.TLS.Cert, certificates.Key: o.TLS.Key} {
		if strings.TrimSpace(got) != strings.TrimSpace(caddytest.ReadFile(t, name)) {
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
	errtest.None(t, errtest.Of((&Redis{Address: []string{"redis://h:1"}}).expandedOptions(zap.New(core))))
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
