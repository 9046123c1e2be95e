package redisstore_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If one key of a request denies, the budgets of the other keys stay as they were, and their
// decisions show that.
func testClusterSeveralKeys(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	for _, q := range storetest.Quotas(5, 3_600_000_000) {
		t.Run(q.Algorithm, func(t *testing.T) {
			scarce := storetest.Limit(t, "scarce", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 3_600_000_000})
			request := func(n int, cost int64) []store.ZoneRequest {
				return []store.ZoneRequest{
					{Zone: "a", Key: fmt.Sprint("a", n), Cost: cost, Limits: []store.Limit{storetest.Limit(t, "a", q)}},
					{Zone: "b", Key: fmt.Sprint("b", n), Cost: cost, Limits: []store.Limit{storetest.Limit(t, "b", q)}},
					{Zone: "scarce", Key: q.Algorithm, Cost: 1, Limits: []store.Limit{scarce}},
				}
			}
			if allowed, err := s.Take(context.Background(), request(0, 2)); !allowed || err != nil {
				t.Fatal(allowed, err)
			}
			for n := range 10 { // of all nodes
				r := request(n, 2)
				allowed, err := s.Take(context.Background(), r)
				if allowed || err != nil {
					t.Fatal(allowed, err)
				}
				want := int64(5)
				if n == 0 {
					want = 3
				}
				for _, one := range r[:2] {
					d := one.Outcome.Decisions[0]
					if !d.Allowed || d.Charged != 0 || d.Remaining != want || d.RetryAfter != 0 || want == 5 && d.ResetAfter > 1000 {
						t.Errorf("key %s: %+v, want %d remaining and nothing charged", one.Key, d, want)
					}
				}
				if d := r[2].Outcome.Decisions[0]; d.Allowed || d.RetryAfter == 0 {
					t.Errorf("the denying key: %+v", d)
				}
			}
		})
	}
}
