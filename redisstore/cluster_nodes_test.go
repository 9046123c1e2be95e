package redisstore_test

import (
	"context"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// Nodes that name only the ports of others are on the same host. The test needs Redis 7.
func testClusterNoHosts(t *testing.T, c *redistest.Cluster) {
	ctx := context.Background()
	slot := c.Slot(t, "nowhere")
	from, to := ends(t, c, slot)
	const setting = "cluster-preferred-endpoint-type"
	for _, node := range c.Nodes {
		if err := node.Client.ConfigSet(ctx, setting, "unknown-endpoint").Err(); err != nil {
			t.Skip(err)
		}
		defer node.Client.ConfigSet(ctx, setting, "ip")
	}
	s := openCluster(t, c, redisstore.Options{Address: c.Addrs()[4]})
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
	c.BeginMove(t, slot, from, to)
	_, asked := s.Take(ctx, request(t, "nowhere"))
	c.EndMove(t, slot, from, to)
	if _, moved := s.Take(ctx, request(t, "nowhere")); asked != nil || moved != nil {
		t.Error(asked, moved)
	}
}

// A redirect without a host leads to the host of the node that sent it.
func TestRedirectAddress(t *testing.T) {
	for said, want := range map[string]string{
		"10.0.0.1:7000":    "10.0.0.1:7000",
		"node.example:1":   "node.example:1",
		":7000":            "[fd00::1]:7000",
		"fd00::2:7000":     "[fd00::2]:7000",
		"[fd00::2]:7000":   "[fd00::2]:7000",
		"::ffff:1.2.3.4:1": "[::ffff:1.2.3.4]:1",
	} {
		if got := redisstore.ResolveRedirect(said, "[fd00::1]:6379"); got != want {
			t.Errorf("%s leads to %s, want %s", said, got, want)
		}
	}
}
