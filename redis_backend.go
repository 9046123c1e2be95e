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

// backend is a Redis with its breaker and its cache of denials. It stays open while a
// configuration uses it, or while a request is in flight that may still give back its charges.
type backend struct {
	*store.DenyCache
	redis     redisstore.Redis
	outageLog outageLog

	uses atomic.Int64 // the number of such requests, and 1 more while a configuration has the backend
}

// newBackend returns a backend, which opens no connection yet and logs to logger().
func newBackend(o redisstore.Options, logger func() *zap.Logger) (*backend, error) {
	b := new(backend)
	b.uses.Store(1)
	stepped := func(back time.Duration) {
		processMetrics.clockSteps.Inc()
		logger().Warn("the clock of Redis stepped back: budgets go on from its new time", zap.Duration("by", back))
	}
	changed := func(address string, failure error) { b.outageLog.log(logger(), address, failure) }
	var err error
	if b.redis, err = redisstore.Open(o, stepped, changed); err != nil {
		return nil, err
	}
	b.DenyCache = store.NewDenyCache(b.redis)
	return b, nil
}

func (b *backend) isCluster() bool {
	_, is := b.redis.(*redisstore.Cluster)
	return is
}

// use keeps the backend from closing until leave is called.
func (b *backend) use() { b.uses.Add(1) }

// leave closes the backend if nobody else uses it.
func (b *backend) leave() error {
	if b.uses.Add(-1) > 0 {
		return nil
	}
	return b.redis.Close()
}

// Destruct implements [caddy.Destructor]: no configuration has the backend any more.
func (b *backend) Destruct() error { return b.leave() }

// outageLog counts the requests that are decided while a Redis fails, for the log.
type outageLog struct {
	// The requests decided without Redis since the process began.
	local, allowed, denied atomic.Int64

	mu    sync.Mutex
	modes map[*App]map[string]bool // of on_store_error, by configuration in force
	began map[string]outage        // the outages that last, by address
}

// outage holds the beginning of an outage, and the counts of [outageLog] at that time.
type outage struct {
	at                     time.Time
	local, allowed, denied int64
}

// set notes the modes of on_store_error of a configuration; with nil it forgets the
// configuration.
func (o *outageLog) set(a *App, modes map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if modes == nil {
		delete(o.modes, a)
		return
	}
	if o.modes == nil {
		o.modes = make(map[*App]map[string]bool)
	}
	o.modes[a] = modes
}

// log logs that the Redis at an address fails or, if failure is nil, works again.
func (o *outageLog) log(logger *zap.Logger, address string, failure error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := outage{time.Now(), o.local.Load(), o.allowed.Load(), o.denied.Load()}
	if failure != nil {
		if o.began == nil {
			o.began = make(map[string]outage)
		}
		o.began[address] = now
		modes := make(map[string]bool)
		for _, some := range o.modes {
			maps.Copy(modes, some)
		}
		logger.Warn("Redis fails, and is not asked until it works again: meanwhile "+withoutRedis(modes),
			zap.String("address", address), zap.Error(failure))
		return
	}
	began, known := o.began[address]
	if !known {
		began = now
	}
	delete(o.began, address)
	logger.Warn("Redis works again", zap.String("address", address),
		zap.Duration("outage", now.at.Sub(began.at)),
		zap.Int64("requests_decided_locally", now.local-began.local),
		zap.Int64("requests_passed_unlimited", now.allowed-began.allowed),
		zap.Int64("requests_answered_503", now.denied-began.denied))
}

// withoutRedis returns the words for how requests are treated while Redis fails, given the
// modes of on_store_error in use.
func withoutRedis(modes map[string]bool) string {
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
		return "on_store_error decides on requests that are under way"
	case 1:
		return "requests are " + all[0]
	default:
		return "requests are " + strings.Join(all[:n-1], ", ") + " or " + all[n-1] + ", as on_store_error of their handler says"
	}
}
