package redisstore_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func openCluster(t testing.TB, c *redistest.Cluster, o redisstore.Options) *redisstore.Cluster {
	t.Helper()
	o.Cluster = true
	if o.Address == "" {
		o.Address = strings.Join(c.Addrs(), ",")
	}
	o.Timeout, o.DialTimeout = cmp.Or(o.Timeout, patient), patient
	s, err := redisstore.NewCluster(o, redisstore.Hooks{})
	errtest.None(t, err)
	t.Cleanup(func() {
		redisstore.Kill(s)
		_ = s.Close()
	})
	return s
}

func TestCluster(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-node-timeout", "600000") // in which no node ever considers another one dead
	c.KeepMasters(t)
	for name, test := range map[string]func(*testing.T, *redistest.Cluster){
		"conforms":                        testClusterConforms,
		"a log ends while its slot moves": testClusterMovesLogs,
		"is checked while a slot moves":   testClusterChecks,
		"moves overrides":                 testClusterMovesOverrides,
		"settings":                        testClusterSettings,
		"nodes don't say where they are":  testClusterNoHosts,
		"decides as one store does":       testClusterParity,
		"sums up its nodes":               testClusterStats,
		"shares script calls":             testClusterShares,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// givesBack is a cluster, which can't decide keys of several slots in one step.
type givesBack struct{ *redisstore.Cluster }

func (givesBack) GivesBack() {}

func testClusterConforms(t *testing.T, c *redistest.Cluster) {
	n := 0
	storetest.Run(t, func(t *testing.T) storetest.Store {
		n++
		return givesBack{openCluster(t, c, redisstore.Options{KeyPrefix: fmt.Sprint("test", n)})}
	})
}

func testClusterSettings(t *testing.T, c *redistest.Cluster) {
	alone := redistest.Start(t)
	ctx := context.Background()
	for _, test := range []struct {
		name    string
		options redisstore.Options
		want    string
	}{
		{"one address", redisstore.Options{Address: c.Addrs()[5]}, ""},
		{"one address of several", redisstore.Options{Address: "127.0.0.1:" + redistest.FreePort(t) + "," + c.Addrs()[2]}, ""},
		{"hashed keys", redisstore.Options{Address: c.Addrs()[0], HashKeys: "secret"}, ""},
		{"no cluster", redisstore.Options{Address: alone.Addr}, "is not a node of a cluster"},
		{"nobody there", redisstore.Options{Address: "127.0.0.1:" + redistest.FreePort(t)}, "refused"},
	} {
		s := openCluster(t, c, test.options)
		for what, do := range map[string]func() error{
			"the check": func() error { return s.Check(ctx) },
			"takes": func() error {
				for n := range 20 { // of all nodes
					if _, err := s.Take(ctx, request(t, fmt.Sprint(n))); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			// A query of the slots has its own timeout of a second.
			redistest.WaitForState(t, fmt.Sprintf("%s: %s to say %q", test.name, what, test.want), func() (any, bool) {
				err := do()
				return err, (err == nil) == (test.want == "") && strings.Contains(fmt.Sprint(err), test.want)
			})
		}
	}
	for _, node := range c.Nodes {
		for _, rules := range [][]string{documentedRules(t, userRules), documentedRules(t, "`(\\+cluster[^`]*)`")} {
			errtest.None(t, node.Client.ACLSetUser(ctx, "caddy", rules...).Err())
		}
	}
	user := openCluster(t, c, redisstore.Options{Username: "caddy", Password: "secret"})
	errtest.Report(t, user.Check(ctx))
	errtest.Report(t, errtest.Of(user.Take(ctx, request(t, "k"))))
	s := open(t, redisstore.Options{Address: c.Addrs()[0]})
	var failed error
	for n := range 20 {
		if _, err := s.Take(ctx, request(t, fmt.Sprint(n))); err != nil {
			failed = err
		}
	}
	if failed == nil || !strings.Contains(failed.Error(), "write cluster") {
		t.Errorf("a node alone: error %v", failed)
	}
	for want, o := range map[string]redisstore.Options{
		`"h" is not`:      {Address: "h:1,h"},
		"one is not":      {Address: "h:1,/a/socket"},
		"is not: write":   {Address: "redis://:SECRET@h:1"},
		"master_name":     {Address: "h:1", MasterName: "m"},
		"leave those out": {Address: "h:1", DB: 1},
	} {
		o.Cluster = true
		if _, err := redisstore.NewCluster(o, redisstore.Hooks{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A cluster decides successive requests with several keys as a single store does.
func testClusterParity(t *testing.T, c *redistest.Cluster) {
	for seed := range seedtest.Cases(t, uint64(40)) {
		rng := rand.New(rand.NewPCG(seed, 4))
		s := openCluster(t, c, redisstore.Options{KeyPrefix: fmt.Sprint("parity", seed)})
		memory := store.NewSharedMemory().Bounded(1000, func() int { return 3 }, func(string) {})
		var zones []store.ZoneRequest
		for z := range 3 {
			quotas := storetest.Variants(1+rng.Int64N(5), 60_000_000)
			quota := quotas[rng.IntN(len(quotas))]
			quota.Initial = nil   // a key of that kind expires by Redis' own clock
			if quota.WarmUp > 0 { // what was warmed up stays warm
				quota = algorithms.Quota{Algorithm: "gcra", Events: quota.Events, Window: quota.Window}
			}
			limit := storetest.Limit(t, fmt.Sprint("zone", z), quota)
			mode := algorithms.Mode(rng.IntN(4))
			if limit.Algorithm().BinaryOnly {
				mode = algorithms.Binary
			}
			zones = append(zones, store.ZoneRequest{Zone: fmt.Sprint("zone", z), Limits: []store.Limit{limit}, Mode: mode})
		}
		now := algorithms.Micros(1_763_640_000_000_000)
		for step := range 40 {
			now += rng.Int64N(20_000_000)
			var one, other []store.ZoneRequest
			for _, z := range zones[:1+rng.IntN(3)] {
				z.Key, z.Cost = fmt.Sprint("key", rng.IntN(2), z.Zone), rng.Int64N(4)
				one, other = append(one, z), append(other, z)
			}
			allowed, err := s.TakeAt(context.Background(), now, one)
			errtest.None(t, err)
			want, _ := memory.TakeAt(context.Background(), now, other)
			for i := range one {
				got, d := one[i].Outcome.Decisions[0], other[i].Outcome.Decisions[0]
				got.Receipt, d.Receipt = algorithms.Receipt{}, algorithms.Receipt{}
				if one[i].Mode == algorithms.Uniform && got.Allowed && d.RetryAfter > 0 && got.RetryAfter > d.RetryAfter {
					got.RetryAfter = d.RetryAfter // a longer wait is allowed
				}
				if got != d || allowed != want {
					t.Errorf("seed %d step %d, %v %v of cost %d:\ngot  %v %+v,\nwant %v %+v", seed, step, one[i].Limits[0], one[i].Mode, one[i].Cost, allowed, got, want, d)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// The numbers of a cluster are the sums over its nodes.
func testClusterStats(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{})
	for n := range 50 { // on all nodes
		errtest.None(t, errtest.Of(s.Take(t.Context(), request(t, fmt.Sprint(n)))))
	}
	if got := s.Stats(); got.Servers != 3 || got.Failing != 0 || got.Queued != 0 || got.Idle < 3 {
		t.Errorf("%+v", got)
	}
}

// A node decides requests of several hash slots in one script call, also while one of these moves. Requests of keys that it
// lacks are decided again, once.
func testClusterShares(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, redisstore.Options{KeyPrefix: "shares"})
	ctx := context.Background()
	from, to := c.Nodes[0], c.Nodes[1]
	var requests []store.ZoneRequest
	used := make(map[int]bool)
	for n := 0; len(requests) < 8; n++ {
		slot := c.Slot(t, fmt.Sprint("shares", n))
		if c.Owner(t, from, slot) != from || used[slot] {
			continue
		}
		used[slot] = true
		quota := algorithms.Quota{Algorithm: "fixed_window", Events: 100_000, Window: 3_600_000_000}
		if len(requests)%2 == 1 {
			quota.Algorithm = "sliding_log"
		}
		zone := fmt.Sprint("z", len(requests))
		requests = append(requests, store.ZoneRequest{
			Zone: zone, Key: fmt.Sprint("shares", n), Cost: 1, Limits: []store.Limit{storetest.Limit(t, zone, quota)},
		})
	}
	taken := int64(0)
	take := func(requests []store.ZoneRequest) (calls int) {
		t.Helper()
		before := from.Calls(t, "evalsha")
		if allowed, err := s.Take(ctx, requests); !allowed || err != nil {
			t.Errorf("allowed %v, error %v", allowed, err)
		}
		return from.Calls(t, "evalsha") - before
	}
	six := requests[:6]
	shares := func() {
		t.Helper()
		redistest.WaitFor(t, "requests of six hash slots to share a script call", func() bool {
			taken++
			return take(six) == 1
		})
	}
	shares()
	for _, moving := range []int{2, 3} { // a key of a budget, and one of a log
		slot := c.Slot(t, requests[moving].Key)
		c.BeginMove(t, slot, from, to)
		shares() // all keys are there still
		c.MoveKeys(t, slot, 1, from, to)
		taken++
		take(six)
		c.EndMove(t, slot, from, to)
		taken++
		take(six)
	}
	for _, r := range requests[6:] { // a key that isn't anywhere yet
		slot := c.Slot(t, r.Key)
		c.BeginMove(t, slot, from, to)
		take([]store.ZoneRequest{requests[0], r})
		taken++
		c.EndMove(t, slot, from, to)
		if left := left(t, s, r); left != 99_999 {
			t.Errorf("%v: %d remaining, want 99999", r.Limits[0], left)
		}
		for _, r := range six[1:] { // as often as the first one
			if allowed, err := s.Take(ctx, []store.ZoneRequest{r}); !allowed || err != nil {
				t.Errorf("allowed %v, error %v", allowed, err)
			}
		}
	}
	for _, r := range six {
		if left := left(t, s, r); left != 100_000-taken {
			t.Errorf("%v: %d remaining, want %d", r.Limits[0], left, 100_000-taken)
		}
	}

	// A request of a key at which another program has written a list charges no other key.
	pair := []store.ZoneRequest{six[4], six[0]}
	redistest.WaitFor(t, "requests of two hash slots to share a script call", func() bool {
		taken++
		return take(pair) == 1
	})
	names := from.Client.Keys(ctx, "shares:{"+six[0].Key+"}*").Val()
	from.Client.Del(ctx, names...)
	from.Client.LPush(ctx, names[0], "a list")
	if _, err := s.Take(ctx, pair); err == nil {
		t.Error("a request of a list succeeds")
	}
	if left := left(t, s, pair[0]); left != 100_000-taken {
		t.Errorf("%d remaining, want %d", left, 100_000-taken)
	}
}

// The first message of a hash slot in a batch has all its calls, because their order matters.
func TestHashSlotStaysInMessage(t *testing.T) {
	if !redisstore.SharesAs(true, false) || !redisstore.SharesAs(false, true) {
		t.Error("a batch has two messages for a hash slot")
	}
}

// left returns what is left of the limit of a request.
func left(t *testing.T, s store.Store, r store.ZoneRequest) int64 {
	t.Helper()
	r.Cost, r.Outcome = 0, store.Outcome{}
	look := []store.ZoneRequest{r}
	errtest.None(t, errtest.Of(s.Take(t.Context(), look)))
	return look[0].Outcome.Decisions[0].Remaining
}
