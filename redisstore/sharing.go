package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// sharedProbe is a script that writes keys that KEYS doesn't have.
const sharedProbe = `for _, key in ipairs(ARGV) do redis.call('SET', key, '', 'PX', 60000) end return 1`

// findSharing finds out whether the node runs shared script calls, and whether they write where other commands read. It
// learns nothing from a node that fails, or of whose hash slots one moves.
func (n *node) findSharing() {
	ctx, cancel := context.WithTimeout(context.Background(), n.options.Timeout)
	defer cancel()
	var keys []any
	last := -1
	for tag := range n.tags() {
		if hashSlot := wire.HashSlotOf([]byte(tag)); hashSlot != last {
			last, keys = hashSlot, append(keys, n.probeKey(tag))
		}
		if len(keys) == 2 {
			break
		}
	}
	if len(keys) < 2 {
		n.sharing.NotTried()
		return
	}
	conns := n.acquire()
	defer n.release(conns)
	pipeline := conns.Pipeline()
	done := repeatable{script: sharedProbe, args: keys}.queue(ctx, pipeline, true)
	pipeline.Get(ctx, keys[0].(string))
	pipeline.Get(ctx, keys[1].(string))
	_, err := pipeline.Exec(ctx) // the first error of its commands
	denied := deniesSharing(done.Err())
	if errors.Is(err, redis.Nil) {
		denied, err = true, errors.New("the script wrote to another place")
	}
	if denied = n.sharing.Tried(err == nil, denied); denied && n.hooks.SharingDenied != nil {
		n.hooks.SharingDenied(n.options.Address, err)
	}
}

// deniesSharing reports whether an error to sharedProbe is none that passes.
func deniesSharing(err error) bool {
	return err != nil && isReply(err) && scriptErrorReason(wire.ScriptError(err.Error())) == store.ReasonKey &&
		!containsAny(err.Error(), "non local key", "slot not served", "cluster is down", "stale replica", "killed", "BUSY")
}
