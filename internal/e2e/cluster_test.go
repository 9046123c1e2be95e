package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Operators see, change and explain what a cluster has as they do with one Redis. The tests share a cluster.
func TestOperatorsOfCluster(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	cluster := redistest.StartCluster(t)
	cluster.KeepMasters(t)
	use := func(prefix string, addresses int) string {
		return fmt.Sprintf("redis %s {\n cluster\n timeout 30s\n key_prefix %s\n}\n", strings.Join(cluster.Addrs()[:addresses], " "), prefix)
	}
	for name, test := range map[string]func(t *testing.T, use string){
		"lists": testAdminListsOfAnotherInstance, "changes": testCommandChanges, "verdicts": testExplainVerdicts,
	} {
		t.Run(name, func(t *testing.T) { test(t, use(name, 2)) })
	}
	t.Run("explanations change nothing", func(t *testing.T) {
		testExplainChangesNothing(t, use("explain", len(cluster.Nodes)), "explain", cluster.Nodes[:3]...)
	})
}
