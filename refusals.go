package ratelimit

import (
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// refusals tells the log and the events app about refused requests, so that an
// attack becomes no flood of its own: of each zone and key the first refusal at
// once, then at most once a second how many there were. The table is bounded;
// what it has no room for is reported as one key per zone.
type refusals struct {
	report func(refusal)

	mu     sync.Mutex
	recent map[refusalKey]*refusal // count is what is not reported yet
	timer  *time.Timer             // runs while recent isn't empty
	closed bool
}

// mostRecentRefusals bounds the table, and with it the lines logged per second.
const mostRecentRefusals = 1000

type refusalKey struct {
	zone   string
	key    keyhash.Hash
	shadow bool // the requests passed
	others bool // all keys there is no room for
}

// refusal is one or more refused requests of one zone and key; all but count
// describe the latest.
type refusal struct {
	zone               string
	key                string // once it is noted: as it is logged
	shadow, others     bool   // as in refusalKey
	handler            *Handler
	wait               algorithms.Micros
	remoteIP, clientIP string
	count              int64
}

func newRefusals(report func(refusal)) *refusals {
	return &refusals{report: report, recent: make(map[refusalKey]*refusal)}
}

// note reports a refusal, now or within a second.
func (f *refusals) note(r refusal) {
	r.count = 1
	if f.isFirst(&r) {
		f.report(r)
	}
}

// isFirst tells whether a refusal is to be reported at once; otherwise it is
// added to those that wait.
func (f *refusals) isFirst(r *refusal) bool {
	k := refusalKey{zone: r.zone, key: keyHashes.Sum(r.key), shadow: r.shadow}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.recent[k]
	if !f.closed && known == nil && len(f.recent) >= mostRecentRefusals {
		k = refusalKey{zone: r.zone, shadow: r.shadow, others: true}
		known, r.others = f.recent[k], true
	}
	switch {
	case r.others:
		r.key = ""
	case known != nil && known.handler == r.handler:
		r.key = known.key
	default:
		r.key = r.handler.loggedKey(r.key)
	}
	if f.closed {
		return true
	}
	if known != nil {
		r.count += known.count
		*known = *r
		return false
	}
	first := *r
	first.count = 0
	f.recent[k] = &first
	if f.timer == nil {
		f.timer = time.AfterFunc(time.Second, f.tick)
	}
	return true
}

// tick reports what has come in since the last one, and forgets the keys of
// which nothing has.
func (f *refusals) tick() {
	f.mu.Lock()
	var due []refusal
	for k, r := range f.recent {
		if r.count == 0 {
			delete(f.recent, k)
			continue
		}
		due = append(due, *r)
		r.count = 0
	}
	f.timer = nil
	if len(f.recent) > 0 && !f.closed {
		f.timer = time.AfterFunc(time.Second, f.tick)
	}
	f.mu.Unlock()
	for _, r := range due {
		f.report(r)
	}
}

// close reports what still waits. Later refusals are reported at once.
func (f *refusals) close() {
	f.mu.Lock()
	f.closed = true
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	f.tick()
}

func (h *Handler) logsKeys() bool { return h.LogKey != nil && *h.LogKey }

// loggedKey is a key as the log has it; empty where keys are not logged. The mark of a cut
// one makes it longer than any that is logged whole, so it equals none.
func (h *Handler) loggedKey(key string) string {
	if !h.logsKeys() {
		return ""
	}
	if h.hashKeys != "" {
		return redisstore.HashedKey(h.hashKeys, key)
	}
	shown, cut := beginning(key)
	if cut {
		return shown + "…"
	}
	return shown
}

// reportRefusal logs and emits. What only would have been refused is no event.
func (a *App) reportRefusal(events *caddyevents.App, r refusal) {
	wait := time.Duration(r.wait) * time.Microsecond
	if r.wait == algorithms.Forever {
		wait = 0 // it is no use to wait
	}
	message := "rate limit exceeded"
	if r.shadow { // another message, for who reads that one bans clients
		message = "rate limit would be exceeded"
	}
	secret := r.handler.hashKeys
	if c := r.handler.logger.Check(zap.InfoLevel, message); c != nil {
		fields := []zap.Field{zap.String("zone", r.zone), zap.Duration("wait", wait)}
		if secret == "" { // else an address would undo the hash of a key
			fields = append(fields, zap.String("remote_ip", r.remoteIP), zap.String("client_ip", r.clientIP))
		}
		fields = append(fields, zap.Int64("count", r.count))
		if r.others {
			fields = append(fields, zap.Bool("other_keys", true))
		} else if r.handler.logsKeys() {
			fields = append(fields, zap.String("key", r.key))
		}
		c.Write(fields...)
	}
	if r.shadow {
		return
	}
	data := map[string]any{"zone": r.zone, "wait": wait, "count": r.count}
	if secret == "" {
		data["remote_ip"], data["client_ip"] = r.remoteIP, r.clientIP
	}
	events.Emit(a.ctx, "rate_limit_exceeded", data)
}
