package admin

import (
	"cmp"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// processStarted is when this process started.
var processStarted = adminapi.Instant(time.Now())

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
func (a *OperatorRequest) showStatus() (any, error) {
	v := adminapi.Status{Version: moduleVersion(), Started: processStarted}
	v.Memory, v.Local, v.Redis = a.Configuration.Memory(), a.Configuration.Local(), a.Configuration.Redis()
	slices.SortFunc(v.Redis, func(a, b adminapi.Redis) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), a.Since.Compare(b.Since))
	})
	return v, nil
}

// The states of a Redis.
const (
	stateUp         = "up"
	statePartlyDown = "partly_down" // some nodes of a cluster fail
	stateDown       = "down"
)

// Health is the state of a Redis, and since when it has had this state.
type Health struct {
	State   string
	Since   time.Time
	Failure string // the last one; empty in stateUp
}

// HealthLog remembers the state of a Redis.
type HealthLog struct {
	mu   sync.Mutex
	last Health
}

// NewHealthLog returns the log of a Redis that works.
func NewHealthLog() HealthLog {
	return HealthLog{last: Health{State: stateUp, Since: adminapi.Instant(time.Now())}}
}

// Observe notes the state of a Redis with this number of servers, of which some fail, and returns the state. failure,
// if not nil, is why a server has begun to fail.
func (l *HealthLog) Observe(servers, failing int, failure error) Health {
	state := stateUp
	switch {
	case failing >= servers:
		state = stateDown
	case failing > 0:
		state = statePartlyDown
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if state != l.last.State {
		l.last.State, l.last.Since = state, adminapi.Instant(time.Now())
	}
	switch {
	case state == stateUp:
		l.last.Failure = ""
	case failure != nil:
		l.last.Failure = failure.Error()
	}
	return l.last
}
