package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// startMalformed starts a server that is a Redis, a node of a cluster and a Sentinel. It replies malformed to one
// command, and otherwise what these reply.
func startMalformed(t *testing.T, command, malformed string) *misbehaving {
	t.Helper()
	m := startMisbehaving(t, nil)
	_, port, _ := net.SplitHostPort(m.addr)
	m.replies = map[string]string{
		"hello":                            "-ERR unknown command\r\n",
		"script load":                      bulk(strings.Repeat("a", 40)),
		"evalsha":                          bulk(replyTo(1, now)),
		"info memory":                      bulk("maxmemory:0\r\n"),
		"scan 0":                           "*2\r\n$1\r\n0\r\n*0\r\n",
		"cluster info":                     bulk("cluster_state:ok"),
		"cluster slots":                    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n",
		"sentinel get-master-addr-by-name": "*2\r\n$9\r\n127.0.0.1\r\n" + bulk(port),
		"sentinel sentinels":               "*0\r\n",
		"subscribe +switch-master":         "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n",
	}
	for name := range m.replies {
		if name == command || strings.HasPrefix(name, command+" ") {
			m.replies[name] = malformed
		}
	}
	m.replies[command] = malformed
	return m
}

// The process survives any reply of a Redis, a node or a Sentinel, to any command. Calls fail, and the
// breaker opens.
func TestMalformedReplies(t *testing.T) {
	t.Parallel()
	topologies := map[string]struct {
		options  redisstore.Options
		commands []string
	}{
		"single":   {redisstore.Options{}, []string{"hello", "evalsha", "time", "info", "scan"}},
		"cluster":  {redisstore.Options{Cluster: true}, []string{"hello", "evalsha", "cluster slots", "cluster info"}},
		"sentinel": {redisstore.Options{MasterName: "main"}, []string{"hello", "evalsha", "sentinel sentinels"}},
	}
	replies := append([]string{"+OK\r\n", "*0\r\n", "*1\r\n:1\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n", "$1\r\nx\r\n"}, redistest.Malformed...)
	replies = append(replies, bulk(replyTo(1, now)[:9]+"\002")) // that a key is elsewhere
	for topology, test := range topologies {
		for _, command := range test.commands {
			t.Run(topology+"/"+command, func(t *testing.T) {
				t.Parallel()
				for _, malformed := range replies {
					m := startMalformed(t, command, malformed)
					o := test.options
					o.Address, o.Timeout, o.DialTimeout = m.addr, patient, patient
					useMalformed(t, o, fmt.Sprintf("%.40q", malformed), command)
				}
			})
		}
	}
}

// useMalformed uses a server that replies malformed to a command.
func useMalformed(t *testing.T, o redisstore.Options, malformed, command string) {
	t.Helper()
	s, err := redisstore.Open(o, redisstore.Hooks{})
	errtest.None(t, err)
	defer s.Close()
	ctx := context.Background()
	_, failed := s.Take(ctx, request(t, "k"))
	if decides := command == "evalsha" || command == "cluster slots" || strings.HasPrefix(command, "sentinel get"); decides && failed == nil {
		t.Errorf("Take succeeds with %s", malformed)
	}
	_, _, _ = s.EvictionPolicy(ctx)
	_, _ = s.List(ctx, store.Listing{Zone: "z", Kind: store.Bans, Limit: 10})
	for range 6 {
		_, _ = s.Take(ctx, request(t, "k"))
	}
	if checked := s.Check(ctx); failed != nil && (checked == nil || s.Stats().Failing == 0) {
		t.Errorf("with %s take fails with %v, but check with %v, and %d servers fail", malformed, failed, checked, s.Stats().Failing)
	}
}
