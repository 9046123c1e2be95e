package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// oneOfEach returns a limit of 10 a minute for each algorithm, and a script for all of them.
func oneOfEach(t *testing.T) (limits []store.Limit, script *redis.Script) {
	var features algorithms.Features
	for _, q := range storetest.Quotas(10, 3_600_000_000_000) {
		limits = append(limits, storetest.Limit(t, "z", q))
		features = features.With(limits[len(limits)-1].Algorithm())
	}
	return limits, redis.NewScript(features.Script())
}

// runGroups runs one script call for all groups, and calls check with the outcome of each.
func runGroups(t *testing.T, client *redis.Client, script *redis.Script, groups [][]store.ZoneRequest, check func(g int, requests []store.ZoneRequest, allowed bool, failed error)) {
	t.Helper()
	var m wire.Message
	m.Reset(wire.Names{Prefix: "p"}, wire.Head{Expected: time.Now().UnixMicro()})
	for _, requests := range groups {
		m.Take(requests)
	}
	text, err := script.Run(context.Background(), client, m.AppendKeys(nil), m.Argument()).Text()
	errtest.None(t, err)
	r, err := wiretest.ReadReply(text)
	errtest.None(t, err)
	for g, requests := range groups {
		allowed, _, failed := r.Take(requests, nil)
		check(g, requests, allowed, failed)
	}
	errtest.Report(t, r.End())
}

// The reply stays in order even if a group fails in the middle of its writes.
func TestGroupsWithRefusedWrites(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	ctx := context.Background()
	server.Client.ACLSetUser(ctx, "limited", "on", "nopass", "~*", "+@all", "-setrange", "-bitop")
	o := server.Client.Options()
	client := redis.NewClient(&redis.Options{Addr: o.Addr, DB: o.DB, Username: "limited", Password: "x"})
	defer client.Close()
	limits, script := oneOfEach(t)
	for bad := range len(limits) + 1 { // how many limits the failing groups have; those with a log fail
		var groups [][]store.ZoneRequest
		for g := range 5 {
			of := limits[:1]
			if g%2 == 1 {
				of = limits[:max(bad, 1)]
			}
			groups = append(groups, []store.ZoneRequest{{Zone: "z", Key: fmt.Sprint(bad, "/", g), Cost: 1, Limits: of}})
		}
		runGroups(t, server.Client, script, groups, func(int, []store.ZoneRequest, bool, error) {}) // it writes new logs as a whole
		runGroups(t, client, script, groups, func(g int, requests []store.ZoneRequest, allowed bool, failed error) {
			hasLog := false
			for _, l := range requests[0].Limits {
				hasLog = hasLog || l.Algorithm().Name == "sliding_log"
			}
			if allowed == hasLog || (failed != nil) != hasLog {
				t.Errorf("%d limits, group %d: allowed %v, error %v", bad, g, allowed, failed)
			}
		})
	}
}

// In a message, takes with the same limits are side by side, in the order of their arrival, and
// behind all calls without limits.
func TestArrange(t *testing.T) {
	take := func(key, id string) *pendingCall {
		return &pendingCall{key: key, requests: []store.ZoneRequest{{Key: key, Limits: []store.Limit{{ID: id}}}}}
	}
	slots := &pendingCall{key: "slots", requests: []store.ZoneRequest{{Key: "slots", Slots: new(store.Slots)}}}
	sc := &message{calls: []*pendingCall{
		take("1", "b"), take("2", "a"),
		{key: "refund", corrections: make([]store.Correction, 1)},
		take("3", "b"), slots, take("1", "a"), take("1", "b"),
	}}
	sc.sortCalls()
	got := ""
	for _, c := range sc.calls {
		got += c.key + c.firstLimitID() + " "
	}
	if want := "refund slots 2a 1a 1b 3b 1b "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
