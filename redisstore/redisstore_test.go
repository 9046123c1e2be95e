package redisstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const patient = redisstore.Patient

func open(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	o.Timeout, o.DialTimeout = cmp.Or(o.Timeout, patient), patient
	s := redisstore.MustNew(t, o)
	t.Cleanup(func() {
		redisstore.Kill(s)
		_ = s.Close()
	})
	return s
}

// On a server that the test starts, a user with the permissions in docs/redis.md can do everything, over TLS and behind
// a deny cache, too. A server that runs already has other users, and there nothing stands before the store.
func TestConforms(t *testing.T) {
	var o redisstore.Options
	if redistest.Runs() {
		o.Address, _ = redistest.Running(t)
	} else {
		certificates := redistest.NewCertificates(t)
		server := redistest.StartTLS(t, certificates)
		errtest.None(t, server.Client.ACLSetUser(t.Context(), "caddy", append(documentedRules(t, userRules), "+scan")...).Err())
		o = redisstore.Options{Address: server.Addr, TLS: read(t, certificates), Username: "caddy", Password: "secret"}
	}
	n := 0
	storetest.Run(t, func(t *testing.T) storetest.Store {
		n++
		o.KeyPrefix = fmt.Sprint("caddy_rl:", n) // which the permissions include
		s := open(t, o)
		if redistest.Runs() {
			return s
		}
		return &storetest.Decorated{Store: store.NewDenyCache(s), Inner: s, LateRefunds: true}
	})
}

// Lists of keys need a permission more.
func TestPermissionToList(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	errtest.None(t, server.Client.ACLSetUser(t.Context(), "caddy", documentedRules(t, userRules)...).Err())
	r, err := redisstore.Open(redisstore.Options{Address: server.Addr, Username: "caddy", Password: "secret", Timeout: patient, DialTimeout: patient}, redisstore.Hooks{})
	errtest.None(t, err)
	defer r.Close()
	errtest.Report(t, r.Check(t.Context()), "lists are permitted separately")
	for range 10 { // which is no reason not to ask Redis any more
		_, err = r.List(t.Context(), store.Listing{Zone: "z", Limit: 1})
	}
	var failed *store.Error
	if !errors.As(err, &failed) || failed.Reason != store.ReasonPermission || !strings.Contains(err.Error(), "allow it with +scan") || r.Stats().Failing > 0 {
		t.Errorf("without SCAN: %v, and %d fail", err, r.Stats().Failing)
	}
}

// userRules finds the rules of the Redis user.
const userRules = `ACL SETUSER caddy (reset on .*)`

// documentedRules returns the rules in docs/redis.md that a pattern finds.
func documentedRules(t *testing.T, pattern string) []string {
	t.Helper()
	page, err := os.ReadFile("../docs/redis.md")
	errtest.None(t, err)
	listed := regexp.MustCompile(pattern).FindSubmatch(page)
	if listed == nil {
		t.Fatalf("docs/redis.md has no rules like %s", pattern)
	}
	return strings.Fields(strings.ReplaceAll(string(listed[1]), "'", ""))
}

// correct makes corrections, waits for them, and returns the first error.
func correct(s store.Store, corrections ...store.Correction) (err error) {
	type waits interface {
		CorrectAt(ctx context.Context, now algorithms.Micros, corrections []store.Correction) error
	}
	if s, ok := s.(waits); ok {
		return s.CorrectAt(context.Background(), 0, corrections)
	}
	failures := make(chan error, len(corrections))
	s.Correct(corrections, func(failure error) { failures <- failure })
	for _, c := range corrections { // a later take finds them made
		_, _ = s.Take(context.Background(), []store.ZoneRequest{{Zone: c.Request.Zone, Key: c.Request.Key}})
	}
	select {
	case err = <-failures:
	case <-time.After(20 * time.Millisecond): // a failure comes at once, and its absence is the success
	}
	return err
}

// refund refunds n events of each limit of requests.
func refund(s store.Store, requests []store.ZoneRequest, n int64) error {
	return correct(s, storetest.Refunds(requests, n)...)
}

// request returns a request of a key with a limit of 10. Nothing comes back while a test runs.
func request(t testing.TB, key string) []store.ZoneRequest {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 10, Window: 3_600_000_000_000})
	return []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}}
}

func TestKeysAndExpiry(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	s := open(t, redisstore.Options{Address: server.Addr, KeyPrefix: "p"})
	initial := int64(5)
	quotas := append(storetest.Quotas(10, 60_000_000), algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 60_000_000, Initial: &initial})
	for _, q := range quotas {
		began := time.Now()
		r := []store.ZoneRequest{{Zone: "my zone", Key: "a{b}%\n", Cost: 1, Limits: []store.Limit{storetest.Limit(t, "my zone", q)}}}
		for range 2 {
			errtest.None(t, errtest.Of(s.Take(context.Background(), r)))
		}
		name := "p:{a%7Bb%7D%25%0A}:" + r[0].Limits[0].ID
		ttl := server.Client.PTTL(context.Background(), name).Val()
		want := time.Duration(r[0].Outcome.Decisions[0].ResetAfter) * time.Microsecond
		if q.Initial != nil {
			want += time.Minute // for so long it is known to be full
		}
		step := time.Duration(quantum(r[0].Limits[0])) * time.Microsecond
		took := time.Since(began) + time.Millisecond // Redis may stand still between reading its clock and setting the expiry
		if ttl > want+2*step+took || ttl < want+step-took {
			t.Errorf("%s expires in %v, want its reset-after of %v and %v to %v", name, ttl, want, step, 2*step)
		}
	}
}

// With a secret, no key can be found in Redis, and each key has a separate budget.
func TestHashedKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	s := open(t, redisstore.Options{Address: server.Addr, HashKeys: "secret"})
	other := open(t, redisstore.Options{Address: server.Addr, HashKeys: "another"})
	for _, key := range []string{"203.0.113.7", "", "{x}", strings.Repeat("k", 1000), redisstore.HashedKey("secret", "203.0.113.7")} {
		for _, one := range []*redisstore.Store{s, other} {
			r := request(t, key)
			if _, err := one.Take(context.Background(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 9 {
				t.Errorf("key %.40q: %v, %+v", key, err, r[0].Outcome.Decisions)
			}
			errtest.Report(t, refund(one, r, 1))
			if _, err := one.Take(context.Background(), r); err != nil || r[0].Outcome.Decisions[0].Remaining != 9 {
				t.Errorf("key %.40q after a refund: %v, %+v", key, err, r[0].Outcome.Decisions)
			}
		}
	}
	names := server.Client.Keys(context.Background(), "*").Val()
	if len(names) != 10 {
		t.Errorf("%d budgets, want 10", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile(`^caddy_rl:\{%\$[\w-]{43}\}:z:`).MatchString(name) {
			t.Errorf("a budget is named %q", name)
		}
	}
}

// The end of a configuration closes its connections. A request in flight then opens new
// connections, which close after it.
func TestUseAfterClose(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	clients := func() int { return strings.Count(server.Client.ClientList(context.Background()).Val(), "addr=") }
	idle := clients()
	for range 3 {
		errtest.None(t, errtest.Of(s.Take(context.Background(), request(t, "k"))))
		_ = s.Close()
		redistest.WaitForState(t, "the connections to close", func() (any, bool) {
			n := clients()
			return fmt.Sprint(n, " clients, want ", idle), n <= idle
		})
	}
}

func TestOptionErrors(t *testing.T) {
	type optionError struct {
		options redisstore.Options
		want    string
	}
	tests := []optionError{
		{redisstore.Options{Address: "localhost"}, `redis address "localhost" is not host:port, with a port from 1 to 65535: write localhost:6379`},
		{redisstore.Options{Address: "localhost:6379/SECRET"}, `redis address is not host:port, with a port from 1 to 65535: write for example 127.0.0.1:6379`},
		{redisstore.Options{Address: "localhost:6379?password=SECRET"}, `redis address is not host:port, with a port from 1 to 65535: write for example 127.0.0.1:6379`},
		{redisstore.Options{Address: "::1"}, `redis address "::1" is not host:port, with a port from 1 to 65535: write [::1]:6379`},
		{redisstore.Options{Address: ":6379"}, `redis address ":6379" is not host:port, with a port from 1 to 65535: write for example 127.0.0.1:6379`},
		{redisstore.Options{Address: "10.0.0.1", Cluster: true}, `but "10.0.0.1" is not: write 10.0.0.1:6379`},
		{redisstore.Options{Address: "10.0.0.1:1,10.0.0.2", MasterName: "m"}, `but "10.0.0.2" is not: write 10.0.0.2:26379`},
		{redisstore.Options{Address: ""}, `redis address is not host:port`},
		{redisstore.Options{Address: "host:99999"}, `redis address "host:99999" is not host:port`},
		{redisstore.Options{Address: "[::1]:0"}, `redis address "[::1]:0" is not host:port`},
		{redisstore.Options{Address: "a:1,b:66379", Cluster: true}, `but "b:66379" is not`},
		{redisstore.Options{Address: "h:1", Username: "u"}, "username needs a password: write password {env.REDIS_PASSWORD}, or leave username out"},
		{redisstore.Options{Address: "redis://u@h:1"}, "username needs a password"},
		{redisstore.Options{Address: "h:1", MasterName: "m", SentinelUsername: "u"}, "sentinel_username needs a password: write sentinel_password {env.SENTINEL_PASSWORD}"},
		{redisstore.Options{Address: "user:SECRET@host:6379"}, `redis address is not host:port`},
		{redisstore.Options{Address: "redis:/user:SECRET"}, `redis address is not host:port`},
		{redisstore.Options{Address: "redis://user:SECRET"}, `redis URL is malformed`},
		{redisstore.Options{Address: "unix://:SECRET@host/run/redis.sock"}, `write unix://[user[:password]@]/path`},
		{redisstore.Options{Address: "unix://:SECRET@"}, `redis URL is malformed`},
		{redisstore.Options{Address: "unix://:SECRET@/run/redis.sock?db="}, `redis URL is malformed`},
		{redisstore.Options{Address: "unix://:SECRET@/run/redis.sock?x=1"}, "redis URL is malformed"},
		{redisstore.Options{Address: "/run/redis.sock", TLS: redisstore.TLS{ServerName: "x"}}, "tls and a unix socket don't go together"},
		{redisstore.Options{Address: "a:1,b:1"}, `redis address "a:1,b:1" is not host:port, with a port from 1 to 65535: write for example 127.0.0.1:6379, or for a unix socket its absolute path`},
		{redisstore.Options{Address: "h:1", SentinelPassword: "SECRET"}, "sentinel_username and sentinel_password need master_name"},
		{redisstore.Options{Address: "a:1,redis://:SECRET@b:1", MasterName: "m"}, "but one is not"},
		{redisstore.Options{Address: "a:1,", MasterName: "m"}, "but one is not"},
		{redisstore.Options{Address: ":SECRET@redis://host"}, "redis URL must have the scheme redis, rediss or unix: write"},
		{redisstore.Options{Address: "redis://:SECRET@host:port"}, "redis URL is malformed"},
		{redisstore.Options{Address: "redis://:12/SECRET@host:1"}, "%2F for /"},
		{redisstore.Options{Address: "redis://:SE/CRET@host:1"}, "%2F for /"},
		{redisstore.Options{Address: "redis://:a@b/SECRET@host:1"}, "%40 for @"},
		{redisstore.Options{Address: "redis://user:12#SECRET@host:1"}, "redis URL is malformed"},
		{redisstore.Options{Address: "redis://user:12?SECRET@host:1"}, "redis URL is malformed"},
		{redisstore.Options{Address: "unix://:12/SECRET@/run/redis.sock"}, "%2F for /"},
		{redisstore.Options{Address: "redis://:SECRET@host/x"}, "host[:port][/db], and percent-encode"},
		{redisstore.Options{Address: "redis://:SECRET@host?max_retries=3"}, "redis URL is malformed"},
		{redisstore.Options{Address: "h:1", KeyPrefix: "a{b"}, `key_prefix "a{b" holds '{'`},
		{redisstore.Options{Address: "h:1", KeyPrefix: "a\nb"}, `key_prefix "a\nb" holds '\n'`},
		{redisstore.Options{Address: "h:1", DB: -1}, "db must be from 0 to 2147483647, not -1"},
		{redisstore.Options{Address: "h:1", Timeout: -1}, "timeout and dial_timeout must be above 0"},
	}
	if large := int64(1) << 40; large <= math.MaxInt { // a 32-bit int has no DB that is too large
		tests = append(tests, optionError{redisstore.Options{Address: "h:1", DB: int(large)}, "db must be from 0 to 2147483647, not 1099511627776"})
	}
	for _, test := range tests {
		_, err := redisstore.New(test.options, redisstore.Hooks{})
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%+v: error %v, want %q", test.options, err, test.want)
		}
	}
}

func TestAddressForms(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "p@ss/word")
	for _, o := range []redisstore.Options{
		{Address: "redis://:p%40ss%2Fword@" + server.Addr},
		{Address: "redis://:p@ss%2Fword@" + server.Addr},
		{Address: "redis://default:p%40ss%2Fword@" + server.Addr + "/1"},
		{Address: server.Addr, Password: "p@ss/word"},
		{Address: server.Addr, Username: "default", Password: "p@ss/word", DB: 2},
		{Address: "redis://:wrong@" + server.Addr, Password: "p@ss/word"},
	} {
		errtest.Report(t, errtest.Of(open(t, o).Take(context.Background(), request(t, "k"))), o)
	}
}

// quantum returns the distance of the instants at which budgets of a limit expire. It is the time
// in which 16 events come back, or the whole burst if that is less. It is at least a second.
func quantum(l store.Limit) algorithms.Micros {
	if l.Algorithm().Calendar {
		return 1_000_000
	}
	return max((min(16, l.Events)*l.Window+l.Events-1)/l.Events, 1_000_000)
}
