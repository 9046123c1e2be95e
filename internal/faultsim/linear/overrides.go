package linear

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func overrideText(r *rand.Rand) string { return []string{"", "a", "b", "c"}[r.IntN(4)] }

// Overrides says: a take finds the override that was set last, also if it is the one it was made by.
var Overrides = &Subject{
	model: model(func(s string, c call) (result, after string) {
		if c.what == "set" {
			return "", c.arg
		}
		return s, s
	}),
	visit: func(c *client) {
		arg := overrideText(c.rand)
		if c.rand.IntN(4) == 0 {
			c.do(call{key: c.key, what: "set", arg: arg, by: c.by}, func() (string, error) {
				return "", c.store.Change(c.ctx, store.Change{Zone: "z", Key: c.key, Override: &arg})
			})
			return
		}
		c.do(call{key: c.key, what: "take", by: c.by}, func() (string, error) {
			_, err := c.store.Take(c.ctx, []store.ZoneRequest{{Zone: "z", Key: c.key, Override: &store.Override{Text: arg}}})
			if found, ok := errors.AsType[*store.OverriddenError](err); ok {
				return found.Overrides[0], nil
			}
			return arg, err
		})
	},
	lose: func(ctx context.Context, r *rand.Rand, redis *redis.Client, key string) {
		if r.IntN(20) == 0 {
			redis.Set(ctx, "caddy_rl:{"+key+"}:"+store.OverrideID("z"), overrideText(r), 0)
		}
	},
}
