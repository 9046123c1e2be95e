package ratelimit

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// denials tells the log and the events app about refused requests, so that an
// attack becomes no flood of its own: of each zone and key the first refusal at
// once, then at most once a second how many there were. The table is bounded;
// what it has no room for is reported as one key per zone.
type denialLog struct {
	report func(denial)

	mu     sync.Mutex
	recent map[denialKey]*denial // count is what is not reported yet
	timer  *time.Timer           // runs while recent isn't empty
	closed bool
}

// maxRecentDenials bounds the table, and with it the lines logged per second.
const maxRecentDenials = 1000

type denialKey struct {
	zone   string
	key    keyhash.Hash
	shadow bool // the requests passed
	ban    bool // bans began with them
	others bool // all keys without room in the table
}

// denial is one or more refused requests of one zone and key; all but count
// describe the latest.
type denial struct {
	zone                string
	key                 string // once noted: in the form of the log
	shadow, ban, others bool   // as in refusalKey
	handler             *Handler
	wait                algorithms.Micros // for a ban, its duration
	reason              string
	limit               *algorithms.Limit // the reason is limit
	slots               int64             // how many there are; the reason is concurrency
	remoteIP, clientIP  string
	method, host, path  string // clipped
	count               int64
}

// maxClippedBytes is how many bytes are logged of a text that clients send.
const maxClippedBytes = 256

func clip(text string) string { return text[:min(len(text), maxClippedBytes)] }

// keep copies the texts, so that r doesn't keep the memory of the request. Texts
// that are the same as before are shared with before.
func (r *denial) keep(before *denial) {
	for _, text := range [][2]*string{{&r.method, &before.method}, {&r.host, &before.host}, {&r.path, &before.path}} {
		if *text[0] == *text[1] {
			*text[0] = *text[1]
		} else {
			*text[0] = strings.Clone(*text[0])
		}
	}
}

// message returns the log message. Tools that ban clients look for "rate limit exceeded".
func (r *denial) message() string {
	switch {
	case r.ban && r.shadow:
		return "key would be banned"
	case r.ban:
		return "key banned"
	case r.shadow:
		return "rate limit would be exceeded"
	default:
		return "rate limit exceeded"
	}
}

// limitText returns the limit that denied, in words.
func (r *denial) limitText() string {
	switch r.reason {
	case reasonLimit:
		return r.limit.String()
	case reasonConcurrency:
		return fmt.Sprint("concurrency ", r.slots)
	default:
		return r.reason
	}
}

// logShadowsAndBans reports the denials of zones in shadow mode, and the bans that begin with this
// request.
func (state *requestState) logShadowsAndBans(r *http.Request) {
	for i := range state.entries {
		e := &state.entries[i]
		if !e.denies() {
			continue
		}
		if e.Shadow {
			state.logDenial(r, e, denial{shadow: true, wait: e.retryAfter()})
		}
		if e.Outcome.Ban.Began {
			state.logDenial(r, e, denial{shadow: e.Shadow, ban: true, wait: e.Outcome.Ban.EndsAfter})
		}
	}
}

// observeHeader reports a denial by a zone.
func (state *requestState) logDenial(r *http.Request, e *entry, denied denial) {
	remote, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		remote = r.RemoteAddr
	}
	client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	path := r.URL.Path
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok { // before it was rewritten
		path = original.URL.Path
	}
	denied.zone, denied.key, denied.handler = e.zone.name, e.Key, state.handler
	if denied.reason, denied.limit = e.denialReason(); denied.reason == reasonConcurrency {
		denied.slots = e.Slots.Limit
	}
	denied.remoteIP, denied.clientIP = remote, client
	denied.method, denied.host, denied.path = clip(r.Method), clip(r.Host), clip(path)
	state.handler.app.denials.record(denied)
}

func newDenialLog(report func(denial)) *denialLog {
	return &denialLog{report: report, recent: make(map[denialKey]*denial)}
}

// observeHeader reports a refusal, now or within a second.
func (f *denialLog) record(r denial) {
	r.count = 1
	if f.addIfKnown(&r) {
		f.report(r)
	}
}

// addIfKnown tells whether a refusal is to be reported at once; otherwise it is
// added to those that wait.
func (f *denialLog) addIfKnown(r *denial) bool {
	k := denialKey{zone: r.zone, key: keyHashes.Sum(r.key), shadow: r.shadow, ban: r.ban}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.recent[k]
	if !f.closed && known == nil && len(f.recent) >= maxRecentDenials {
		k = denialKey{zone: r.zone, shadow: r.shadow, ban: r.ban, others: true}
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
		r.keep(known)
		*known = *r
		return false
	}
	first := *r // the table keeps this copy
	first.count = 0
	first.keep(&denial{})
	f.recent[k] = &first
	if f.timer == nil {
		f.timer = time.AfterFunc(time.Second, f.tick)
	}
	return true
}

// tick reports what has come in since the last one, and forgets the keys of
// which nothing has.
func (f *denialLog) tick() {
	f.mu.Lock()
	var due []denial
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
func (f *denialLog) close() {
	f.mu.Lock()
	f.closed = true
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	f.tick()
}

func (h *Handler) logsKeys() bool { return h.LogKey != nil && *h.LogKey }

// loggedKey returns a key in the form of the log; "" if keys are not logged. The mark of a
// cut key makes it longer than any key logged whole, so the two can't be confused.
func (h *Handler) loggedKey(key string) string {
	if !h.logsKeys() {
		return ""
	}
	if h.hashKeys != "" {
		return redisstore.HashedKey(h.hashKeys, key)
	}
	shown, cut := shortenKey(key)
	if cut {
		return shown + "…"
	}
	return shown
}

// reportDenial logs a denial or a ban, and emits the event of a denial. A denial in shadow
// mode and a ban have no event.
func (a *App) reportDenial(events *caddyevents.App, r denial) {
	wait := time.Duration(r.wait) * time.Microsecond
	if r.wait == algorithms.Forever {
		wait = 0 // it is no use to wait
	}
	hashed := r.handler.hashKeys != "" // then leave out all that a key can be made of
	if c := r.handler.logger.Check(zap.InfoLevel, r.message()); c != nil {
		fields := []zap.Field{zap.String("zone", r.zone)}
		if r.ban {
			fields = append(fields, zap.String("until", time.Now().Add(wait).UTC().Format(time.RFC3339)), zap.Duration("duration", wait))
		} else {
			fields = append(fields, zap.Duration("wait", wait))
		}
		if !hashed {
			fields = append(fields, zap.String("remote_ip", r.remoteIP), zap.String("client_ip", r.clientIP))
		}
		fields = append(fields, zap.Int64("count", r.count),
			zap.String("reason", r.reason), zap.String("limit", r.limitText()), zap.String("method", r.method))
		if !hashed {
			fields = append(fields, zap.String("host", r.host), zap.String("path", r.path))
		}
		if r.others {
			fields = append(fields, zap.Bool("other_keys", true))
		} else if r.handler.logsKeys() {
			fields = append(fields, zap.String("key", r.key))
		}
		c.Write(fields...)
	}
	if r.shadow || r.ban {
		return
	}
	data := map[string]any{
		"zone":   r.zone,
		"wait":   wait,
		"count":  r.count,
		"reason": r.reason,
		"limit":  r.limitText(),
		"method": r.method,
	}
	if !hashed {
		data["remote_ip"], data["client_ip"] = r.remoteIP, r.clientIP
		data["host"], data["path"] = r.host, r.path
	}
	events.Emit(a.ctx, "rate_limit_exceeded", data)
}
