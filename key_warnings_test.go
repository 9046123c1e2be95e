package ratelimit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

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
			if err != nil {
				t.Fatal(err)
			}
			var whole struct {
				Apps struct {
					HTTP struct {
						Servers map[string]struct {
							Routes []struct{ Handle []struct{ Redis *Redis } }
						}
					}
				}
			}
			if err := json.Unmarshal([]byte(text), &whole); err != nil {
				t.Fatal(err)
			}
			core, logs := observer.New(zapcore.WarnLevel)
			o, err := whole.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0].Redis.expandedOptions(zap.NewNop())
			if err == nil {
				o, err = o.Normalized()
			}
			if err != nil {
				t.Fatal(err)
			}
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
