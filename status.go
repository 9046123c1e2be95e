package ratelimit

import (
	"cmp"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// processStarted is when this process started.
var processStarted = utcNow()

// modulePath is the path of the Go module that has this package.
const modulePath = "github.com/caddy-rate-limit/caddy-rate-limit"

// moduleVersion returns the version of this module in the program, or (devel) if the program was
// built from a working copy.
var moduleVersion = sync.OnceValue(func() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(build.Deps, &build.Main) {
		if m.Path == modulePath && m.Replace == nil {
			return cmp.Or(m.Version, "(devel)")
		}
	}
	return "(devel)"
})

// showStatus returns the state of this instance.
func (a *adminRequest) showStatus() (any, error) {
	v := adminapi.Status{Version: moduleVersion(), Started: processStarted}
	if a.app.sharedMemory != nil || a.app.sharedStandIn != nil {
		v.Memory = &adminapi.Memory{
			Keys:       int64(sumOfMemoryStores((*store.SharedMemory).Keys)),
			MaxKeys:    a.app.Memory.MaxKeys,
			Overflowed: int64(sumOfMemoryStores((*store.SharedMemory).Overflowed)),
		}
	}
	for _, b := range a.app.backends {
		v.Redis = append(v.Redis, b.status())
	}
	slices.SortFunc(v.Redis, func(a, b adminapi.Redis) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), a.Since.Compare(b.Since))
	})
	return v, nil
}

// status returns the state of the Redis for the admin API.
func (b *backend) status() adminapi.Redis {
	stats := b.redis.Stats()
	health := b.health.observe(stats, nil)
	return adminapi.Redis{
		Address: b.redis.Address(), State: health.state, Since: health.since, FailingNodes: stats.Failing, Error: health.failure,
		Queued: stats.Queued, Connections: stats.InUse + stats.Idle,
	}
}

// The states of a Redis.
const (
	stateUp         = "up"
	statePartlyDown = "partly_down" // some nodes of a cluster fail
	stateDown       = "down"
)

// redisHealth is the state of a Redis, and since when it has had this state.
type redisHealth struct {
	state   string
	since   time.Time
	failure string // the last one; empty in stateUp
}

// healthLog remembers the state of a Redis.
type healthLog struct {
	mu   sync.Mutex
	last redisHealth
}

func newHealthLog() healthLog { return healthLog{last: redisHealth{state: stateUp, since: utcNow()}} }

// utcNow returns the time as answers of the admin API have it.
func utcNow() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// observe notes the state of a Redis, and returns it. failure, if not nil, is why a server of it
// has begun to fail.
func (l *healthLog) observe(stats redisstore.Stats, failure error) redisHealth {
	state := stateUp
	switch {
	case stats.Failing >= stats.Servers:
		state = stateDown
	case stats.Failing > 0:
		state = statePartlyDown
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if state != l.last.state {
		l.last.state, l.last.since = state, utcNow()
	}
	switch {
	case state == stateUp:
		l.last.failure = ""
	case failure != nil:
		l.last.failure = failure.Error()
	}
	return l.last
}
