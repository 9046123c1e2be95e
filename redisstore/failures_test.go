package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A Redis that denies a command fails every request with the same reason, charges nothing, and
// fails its check. It decides again once it allows the command. If it has become a replica, its connections are
// closed. So the next request resolves the address again.
func TestRefusingRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, test := range []struct{ name, reason, fail, recover string }{ // with commands of Redis
		{"out of memory", store.ReasonReply, "config set maxmemory 1", "config set maxmemory 0"},
		{"a replica", store.ReasonReply, "replicaof 127.0.0.1 1", "replicaof no one"},
		{"no permission to write", store.ReasonPermission, "acl setuser limiter -set -rpush", "acl setuser limiter +set +rpush"},
		{"no permission to run scripts", store.ReasonPermission, "acl setuser limiter -evalsha", "acl setuser limiter +evalsha"},
		{"too few replicas", store.ReasonReply, "config set min-replicas-to-write 1", "config set min-replicas-to-write 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := context.Background()
			server.Client.ACLSetUser(ctx, "limiter", "on", ">secret", "~*", "+@all")
			s := open(t, redisstore.Options{Address: server.Addr, Username: "limiter", Password: "secret"})
			take := func() (int64, error) {
				r := request(t, test.name)
				_, err := s.Take(ctx, r)
				if err != nil {
					return 0, err
				}
				return r[0].Outcome.Decisions[0].Remaining, nil
			}
			closes := func(after string) {
				if test.name == "a replica" {
					redistest.WaitFor(t, "the connections to close after "+after, func() bool {
						return !strings.Contains(server.Client.ClientList(ctx).Val(), "user=limiter")
					})
				}
			}
			do := func(command string) {
				t.Helper()
				var words []any
				for word := range strings.FieldsSeq(command) {
					words = append(words, word)
				}
				errtest.None(t, server.Client.Do(ctx, words...).Err())
			}
			if left, err := take(); left != 9 || err != nil {
				t.Fatal(left, err)
			}
			errtest.None(t, s.Check(ctx))
			do(test.fail)
			if err := s.Check(ctx); err == nil {
				t.Error("the check finds nothing")
			}
			closes("a check")
			for range 3 {
				var failed *store.Error
				if _, err := take(); !errors.As(err, &failed) || failed.Reason != test.reason {
					t.Errorf("Take: %v, want an error with reason %s", err, test.reason)
				}
			}
			closes("a take")
			do(test.recover)
			errtest.Report(t, s.Check(ctx), "the check still finds")
			if left, err := take(); left != 8 || err != nil {
				t.Errorf("afterwards %d remain, %v, want 8: nothing was charged meanwhile", left, err)
			}
		})
	}
}

// The client finds connections that Redis has closed before it sends anything on them.
func TestClosedConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	for range 5 {
		errtest.Report(t, errtest.Of(s.Take(t.Context(), request(t, "k"))))
		errtest.None(t, server.Client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	}
}

// The error of a server that can't be used says what to do.
func TestAdvice(t *testing.T) {
	t.Parallel()
	unknown := func(command string) string {
		return "-ERR unknown command '" + command + "', with args beginning with: 'x' \r\n"
	}
	const sentinel = " is a Sentinel: write master_name <name> (ERR unknown command"
	for name, test := range map[string]struct {
		options redisstore.Options
		replies map[string]string
		want    string // after the address, if it begins with a space
	}{
		"a Sentinel":              {redisstore.Options{}, map[string]string{"evalsha": unknown("evalsha"), "info server": bulk("redis_mode:sentinel\r\n")}, sentinel},
		"a Sentinel of Valkey":    {redisstore.Options{}, map[string]string{"evalsha": unknown("evalsha"), "info server": bulk("server_mode:sentinel\r\n")}, sentinel},
		"a Sentinel as a node":    {redisstore.Options{Cluster: true}, map[string]string{"cluster": unknown("cluster"), "info server": bulk("redis_mode:sentinel\r\n")}, sentinel},
		"no Sentinel":             {redisstore.Options{}, map[string]string{"evalsha": unknown("evalsha"), "info server": bulk("redis_mode:standalone\r\n")}, "reply: ERR unknown command"},
		"a Redis as a Sentinel":   {redisstore.Options{MasterName: "m"}, map[string]string{"sentinel": unknown("sentinel")}, "not a Sentinel: write the addresses of Sentinels, or leave master_name out"},
		"a Valkey without Lua":    {redisstore.Options{}, map[string]string{"evalsha": "-NOSCRIPT\r\n", "script": "-ERR Could not find scripting engine 'lua'\r\n"}, "such as the package valkey-lua"},
		"a database out of range": {redisstore.Options{DB: 20}, map[string]string{"select": "-ERR DB index is out of range\r\n"}, "write a lower db"},
	} {
		m := startMisbehaving(t, nil)
		m.replies = test.replies
		test.options.Address, test.options.Timeout, test.options.DialTimeout = m.addr, patient, patient
		s, err := redisstore.Open(test.options, redisstore.Hooks{})
		errtest.None(t, err)
		want := test.want
		if strings.HasPrefix(want, " ") {
			want = m.addr + want
		}
		if err := s.Check(t.Context()); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: Check returns %q, want %q", name, err, want)
		}
		_ = s.Close()
	}
}
