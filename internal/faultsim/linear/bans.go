package linear

import (
	"context"
	"math/rand/v2"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const hour = 3_600_000_000 // in microseconds

var (
	banLimit = func() store.Limit {
		limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 2, Window: 24 * hour})
		if err != nil {
			panic(err)
		}
		return store.NewLimit("z", "", limit)
	}()
	ban = &store.Ban{ID: store.BanID("z", ""), Ban: &algorithms.Ban{After: 3, Window: 24 * hour, Duration: 24 * hour, Max: 48 * hour}}
)

// banState is a zone with a limit of 2 events that bans after 3 denials.
type banState struct {
	used, denials int
	banned        bool
}

// Bans says: takes, bans, unbans and resets happen one after the other.
var Bans = &Subject{
	model: model(func(s banState, c call) (result string, after banState) {
		switch c.what {
		case "ban":
			return "", banState{s.used, 0, true}
		case "unban":
			return "", banState{s.used, 0, false}
		case "reset":
			return "", banState{0, s.denials, s.banned}
		}
		switch {
		case s.banned:
			return "banned", s
		case s.used < 2:
			return "allowed", banState{s.used + 1, s.denials, false}
		case s.denials < 2:
			return "denied", banState{s.used, s.denials + 1, false}
		}
		return "began", banState{s.used, 0, true}
	}),
	visit: func(c *client) {
		change := func(what string, change store.Change) {
			change.Zone, change.Key = "z", c.key
			c.do(call{key: c.key, what: what, by: c.by}, func() (string, error) { return "", c.store.Change(c.ctx, change) })
		}
		switch c.rand.IntN(20) {
		case 0:
			change("ban", store.Change{Ban: []*store.Ban{ban}, BanFor: 24 * hour})
		case 1, 2:
			change("unban", store.Change{Forget: []string{ban.ID}})
		case 3:
			change("reset", store.Change{Forget: []string{banLimit.ID}})
		default:
			c.do(call{key: c.key, what: "take", by: c.by}, func() (string, error) {
				r := []store.ZoneRequest{{Zone: "z", Key: c.key, Cost: 1, Limits: []store.Limit{banLimit}, Ban: ban}}
				_, err := c.store.Take(c.ctx, r)
				switch o := r[0].Outcome; {
				case o.Ban.Began:
					return "began", err
				case o.Verdict == store.Banned:
					return "banned", err
				case o.Verdict == store.Denied:
					return "denied", err
				}
				return "allowed", err
			})
		}
	},
	lose: func(ctx context.Context, r *rand.Rand, redis *redis.Client, key string) {
		if r.IntN(20) == 0 {
			redis.Del(ctx, "caddy_rl:{"+key+"}:"+ban.ID)
		}
	},
}
