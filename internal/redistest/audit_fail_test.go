package redistest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// auditedClient sends requests to a store that connects through an audit.
type auditedClient struct {
	t                   *testing.T
	a                   *Audit
	s                   *redisstore.Store
	limit, other, tight store.Limit
	slots               *store.Slots
	ban                 *store.Ban
}

func newAuditedClient(t *testing.T, a *Audit) *auditedClient {
	const hour = 3_600_000_000 // nothing comes back while a test runs
	return &auditedClient{
		t: t, a: a, s: openStore(t, a, time.Minute),
		limit: storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 4, Window: hour}),
		other: storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: hour}),
		tight: storetest.Limit(t, "b", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: hour}),
		slots: &store.Slots{ID: store.SlotsID("s", ""), Limit: 2},
		ban: &store.Ban{ID: store.BanID("b", ""), Ban: &algorithms.Ban{
			After: 2, Window: hour, Duration: hour, Max: 4 * hour,
		}},
	}
}

// zones returns the zones of the requests, for Replay.
func (f *auditedClient) zones() []store.ZoneRequest {
	return []store.ZoneRequest{
		{Limits: []store.Limit{f.limit, f.other, f.tight}, Ban: f.ban, Slots: f.slots},
	}
}

func (f *auditedClient) take(r store.ZoneRequest) store.ZoneRequest {
	f.t.Helper()
	r.Key = "k"
	requests := []store.ZoneRequest{r}
	if _, err := f.s.Take(f.t.Context(), requests); err != nil && !store.IsOverridden(err) {
		f.t.Fatal(err)
	}
	return requests[0]
}

func (f *auditedClient) takeLimits(cost int64, limits ...store.Limit) store.ZoneRequest {
	f.t.Helper()
	return f.take(store.ZoneRequest{Zone: "z", Cost: cost, Limits: limits})
}

func (f *auditedClient) takeSlot() store.ZoneRequest {
	return f.take(store.ZoneRequest{Zone: "s", Slots: f.slots})
}

func (f *auditedClient) takeBan() store.ZoneRequest {
	return f.take(store.ZoneRequest{Zone: "b", Cost: 1, Limits: []store.Limit{f.tight}, Ban: f.ban})
}

func (f *auditedClient) takeOverride(text string) store.ZoneRequest {
	return f.take(store.ZoneRequest{Zone: "o", Cost: 1, Override: &store.Override{Text: text}})
}

func (f *auditedClient) correct(r store.ZoneRequest, refund, charge int64) {
	f.t.Helper()
	errtest.None(f.t, correctAll(f.s, []store.ZoneRequest{r}, refund, charge))
}

func (f *auditedClient) change(c store.Change) {
	f.t.Helper()
	c.Key = "k"
	errtest.None(f.t, f.s.Change(f.t.Context(), c))
}

func (f *auditedClient) override(text string) { f.change(store.Change{Zone: "o", Override: &text}) }

// The audit finds a Redis or a store that misbehaves.
func TestAuditFindsMisbehaviour(t *testing.T) {
	server := Start(t)
	remove := func(id string) { server.Client.Del(t.Context(), "caddy_rl:{k}:"+id) }
	for name, misbehave := range map[string]func(*Audit, *auditedClient, *redis.Client){
		"a budget removed": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeLimits(1, f.limit)
			remove(f.limit.ID)
			f.takeLimits(1, f.limit)
		},
		"a log removed": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeLimits(1, f.other)
			remove(f.other.ID)
			f.takeLimits(1, f.other)
		},
		"a slot granted above the limit": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeSlot()
			f.takeSlot()
			remove(f.slots.ID)
			f.takeSlot()
		},
		"a slot given back by nobody": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeSlot()
			remove(f.slots.ID)
		},
		"a ban that doesn't hold": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			for range 3 {
				f.takeBan()
			}
			remove(f.ban.ID)
			f.takeBan()
		},
		"a ban by an operator that doesn't hold": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.change(store.Change{Zone: "b", Ban: []*store.Ban{f.ban}, BanFor: 90_000_000})
			remove(f.ban.ID)
			f.takeBan()
		},
		"an override ignored": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.override("a")
			remove(store.OverrideID("o"))
			f.takeOverride("")
		},
		"an override that nobody set": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			server.Client.Set(t.Context(), "caddy_rl:{k}:"+store.OverrideID("o"), "a", 0)
			f.takeOverride("a")
		},
		"a separate command": func(_ *Audit, f *auditedClient, through *redis.Client) {
			through.Set(t.Context(), "caddy_rl:{k}:"+f.limit.ID, "x", 0)
		},
		"another script": func(_ *Audit, f *auditedClient, through *redis.Client) {
			mutant := strings.Replace(algorithms.Features(0).With(f.limit.Algorithm()).Script(), "math.floor", "math.ceil", 1)
			through.Eval(t.Context(), mutant, []string{"caddy_rl:{k}:" + f.limit.ID}, "")
		},
		"a separate instant": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{f.limit}}}
			_, _ = f.s.TakeAt(t.Context(), time.Now().UnixMicro(), r)
		},
		"a refund done twice": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			r := f.takeLimits(1, f.limit)
			f.correct(r, 1, 0)
			f.correct(r, 1, 0)
		},
		"a restart": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeLimits(1, f.limit)
			server.Kill(t)
			server.Restart(t)
			_, _ = f.s.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{f.limit}}})
		},
	} {
		server.Client.FlushAll(t.Context())
		a := StartAudit(t, server)
		f := newAuditedClient(t, a)
		through := redis.NewClient(&redis.Options{Addr: a.Addr})
		misbehave(a, f, through)
		_ = through.Close()
		if r := a.Replay(f.zones()...); r.Different == 0 {
			t.Errorf("not found: %s", name)
		} else {
			t.Logf("%s: %.200q", name, r.Differences[0])
		}
	}
}
