//go:build real

package e2e

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// soakRedis is a Redis, or the nodes of a cluster, each behind an audit.
type soakRedis struct {
	config  string // of the redis option
	servers []*redistest.Server
	audits  []*redistest.Audit
	cluster bool
}

func startSoakRedis(t *testing.T) *soakRedis {
	t.Helper()
	server := redistest.Start(t)
	audit := redistest.StartAudit(t, server)
	return &soakRedis{
		config:  audit.Addr + " {\n   timeout 200ms\n  }",
		servers: []*redistest.Server{server}, audits: []*redistest.Audit{audit},
	}
}

// startSoakCluster starts a cluster of three primaries, which announce the addresses of the audits
// as their own.
func startSoakCluster(t *testing.T) *soakRedis {
	t.Helper()
	c := redistest.StartCluster(t)
	c.KeepMasters(t)
	r := &soakRedis{cluster: true, servers: c.Nodes[:3]}
	for _, replica := range c.Nodes[3:] { // which would copy from the announced addresses of their primaries
		replica.Kill(t)
	}
	var addrs []string
	for _, s := range r.servers {
		a := redistest.StartAudit(t, s)
		_, port, _ := net.SplitHostPort(a.Addr)
		errtest.None(t, s.Client.ConfigSet(t.Context(), "cluster-announce-port", port).Err())
		r.audits, addrs = append(r.audits, a), append(addrs, a.Addr)
	}
	for _, s := range r.servers {
		redistest.WaitFor(t, "the nodes to know where the audits are", func() bool {
			nodes := s.Client.ClusterNodes(t.Context()).Val()
			return !slices.ContainsFunc(addrs, func(addr string) bool { return !strings.Contains(nodes, addr+"@") })
		})
	}
	r.config = strings.Join(addrs, " ") + " {\n   cluster\n   timeout 200ms\n  }"
	return r
}

// replay returns the sum of what the audits report.
func (on *soakRedis) replay(known []store.ZoneRequest) *redistest.Report {
	sum := on.audits[0].Replay(known...)
	for _, a := range on.audits[1:] {
		sum.Add(a.Replay(known...))
	}
	return sum
}
