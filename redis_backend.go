package ratelimit

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// backend is a Redis with its circuit breaker and its cache of denials. It stays open while a
// configuration uses it, or while a request is in flight that may still correct its charges.
type backend struct {
	*store.DenyCache
	redis     redisstore.Redis
	health    healthLog
	outageLog outageLog

	uses atomic.Int64 // the number of such requests, plus 1 while any configuration uses the backend
}

// newBackend returns a backend that opens no connection yet. It calls logger for each message,
// because the backend can outlive a configuration and its loggers.
func newBackend(o redisstore.Options, logger func() *zap.Logger) (*backend, error) {
	b := &backend{health: newHealthLog()}
	b.uses.Store(1)
	var err error
	b.redis, err = redisstore.Open(o, redisstore.Hooks{
		ClockStepped: func(back time.Duration) {
			processMetrics.clockSteps.Inc()
			logger().Warn("the clock of Redis stepped back: budgets go on from its new time", zap.Duration("by", back))
		},
		RoundTrip: processMetrics.countRoundTrip,
		HealthChanged: func(address string, failure error) {
			b.health.observe(b.redis.Stats(), failure)
			b.outageLog.log(logger(), address, failure)
		},
	})
	if err != nil {
		return nil, err
	}
	b.DenyCache = store.NewDenyCache(b.redis)
	return b, nil
}

func (b *backend) isCluster() bool {
	_, is := b.redis.(*redisstore.Cluster)
	return is
}

// acquire keeps the backend from closing until release is called.
func (b *backend) acquire() { b.uses.Add(1) }

// release closes the backend if nobody else uses it.
func (b *backend) release() error {
	if b.uses.Add(-1) > 0 {
		return nil
	}
	return b.redis.Close()
}

// Destruct implements [caddy.Destructor]. Caddy calls it when no configuration uses the backend any
// more.
func (b *backend) Destruct() error { return b.release() }

// outageLog counts the requests that are decided while a Redis fails, for the log.
type outageLog struct {
	// The requests decided without Redis since the process began, by the mode of on_store_error.
	local, allowed, denied atomic.Int64

	mu         sync.Mutex
	modesByApp map[*App]map[string]bool // of on_store_error, by configuration in force
	outages    map[string]outage        // the outages that last, by address
}

// outage holds the beginning of an outage, and the counts of [outageLog] at that time.
type outage struct {
	at                     time.Time
	local, allowed, denied int64
}

// setModes remembers which modes of on_store_error a configuration has. With nil it forgets the
// configuration.
func (o *outageLog) setModes(a *App, modes map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if modes == nil {
		delete(o.modesByApp, a)
		return
	}
	if o.modesByApp == nil {
		o.modesByApp = make(map[*App]map[string]bool)
	}
	o.modesByApp[a] = modes
}

// log logs that the Redis at an address fails or, if failure is nil, works again.
func (o *outageLog) log(logger *zap.Logger, address string, failure error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := outage{time.Now(), o.local.Load(), o.allowed.Load(), o.denied.Load()}
	if failure != nil {
		if o.outages == nil {
			o.outages = make(map[string]outage)
		}
		o.outages[address] = now
		modes := make(map[string]bool)
		for _, some := range o.modesByApp {
			maps.Copy(modes, some)
		}
		logger.Warn("Redis fails, and is not asked until it works again: meanwhile "+describeModes(modes),
			zap.String("address", address), zap.Error(failure))
		o.emitLocked(eventStoreDown, map[string]any{"address": address, "error": failure.Error()})
		return
	}
	began, known := o.outages[address]
	if !known {
		began = now
	}
	delete(o.outages, address)
	length := now.at.Sub(began.at)
	local, allowed, denied := now.local-began.local, now.allowed-began.allowed, now.denied-began.denied
	logger.Warn("Redis works again", zap.String("address", address), zap.Duration("outage", length),
		zap.Int64("requests_decided_locally", local),
		zap.Int64("requests_passed_unlimited", allowed),
		zap.Int64("requests_answered_503", denied))
	o.emitLocked(eventStoreUp, map[string]any{
		"address": address, "outage": length,
		"requests_decided_locally": local, "requests_passed_unlimited": allowed, "requests_answered_503": denied,
	})
}

// emitLocked emits an event in the configuration in force. If that one doesn't use the Redis, a
// configuration that is being loaded does.
func (o *outageLog) emitLocked(name string, data map[string]any) {
	app, _ := activeApp()
	if _, uses := o.modesByApp[app]; !uses {
		for app = range o.modesByApp {
			break
		}
	}
	if app != nil {
		app.events.add(name, data)
	}
}

// describeModes returns how requests are treated while Redis fails, as a clause for the log. modes
// are the modes of on_store_error in use.
func describeModes(modes map[string]bool) string {
	var all []string
	for _, m := range []struct{ mode, words string }{
		{"local", "decided by local budgets"}, {"allow", "allowed"}, {"deny", "denied with 503"},
	} {
		if modes[m.mode] {
			all = append(all, m.words)
		}
	}
	switch n := len(all); n {
	case 0:
		return "on_store_error decides on requests that are in flight"
	case 1:
		return "requests are " + all[0]
	default:
		return "requests are " + strings.Join(all[:n-1], ", ") + " or " + all[n-1] + ", as on_store_error of their handler says"
	}
}
