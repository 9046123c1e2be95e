package ratelimit

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// The reasons of denials.
const (
	reasonLimit       = "limit"
	reasonConcurrency = "concurrency"
	reasonBan         = "ban"
)

// denial describes one or more denied requests of one zone and key, for operators. All fields but
// count describe the latest request.
type denial struct {
	zone               string
	key                string // in the table of a denialLog: as it is logged
	shadow             bool   // the zone is in shadow mode, so the request passed
	ban                bool   // a ban began with the request
	overflow           bool   // the denials are of all keys without room in the table
	handler            *Handler
	wait               algorithms.Micros // retry after; for a ban, its duration
	reason             string
	limit              *algorithms.Limit // for reasonLimit
	slots              int64             // for reasonConcurrency: the number of slots
	remoteIP, clientIP string
	method, host, path string // at most maxLoggedTextBytes each
	count              int64

	id    string // for clients and operators; "" for a ban, and for denials of all other keys
	ticks int    // in the table of a denialLog: the seconds since the ID was new
}

// message returns the log message. Tools such as fail2ban look for "rate limit exceeded".
func (d *denial) message() string {
	switch {
	case d.ban && d.shadow:
		return "key would be banned"
	case d.ban:
		return "key banned"
	case d.shadow:
		return "rate limit would be exceeded"
	default:
		return "rate limit exceeded"
	}
}

// limitDescription returns the limit that denied the request, as text.
func (d *denial) limitDescription() string {
	switch d.reason {
	case reasonLimit:
		return d.limit.String()
	case reasonConcurrency:
		return fmt.Sprint("concurrency ", d.slots)
	default:
		return d.reason
	}
}

// cloneTexts copies the texts that come from the request, so that the denial doesn't keep the
// memory of the request. Texts that are the same as in previous are shared with previous.
func (d *denial) cloneTexts(previous *denial) {
	d.method = cloneUnlessEqual(d.method, previous.method)
	d.host = cloneUnlessEqual(d.host, previous.host)
	d.path = cloneUnlessEqual(d.path, previous.path)
}

func cloneUnlessEqual(text, previous string) string {
	if text == previous {
		return previous
	}
	return strings.Clone(text)
}

// maxLoggedTextBytes is how many bytes of a text from a client are logged.
const maxLoggedTextBytes = 256

func clipText(text string) string { return text[:min(len(text), maxLoggedTextBytes)] }

// logShadowsAndBans logs the denials of zones in shadow mode, and the bans that begin with this
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

// logDenial fills in the rest of a denial by the zone, and logs it. It returns the ID of the denial, if
// it has one.
func (state *requestState) logDenial(r *http.Request, e *zoneEntry, d denial) (id string) {
	d.zone, d.key, d.handler = e.zone.name, e.Key, state.handler
	var limit int
	switch d.reason, limit = e.denialReason(); d.reason {
	case reasonLimit:
		d.limit = e.limitSet.limits[limit]
	case reasonConcurrency:
		d.slots = e.Slots.Limit
	}
	remoteIP, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		remoteIP = r.RemoteAddr
	}
	d.remoteIP = remoteIP
	d.clientIP, _ = caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	path := r.URL.Path
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok { // before rewrites
		path = original.URL.Path
	}
	d.method, d.host, d.path = clipText(r.Method), clipText(r.Host), clipText(path)
	return state.handler.app.denials.record(d, state.entries)
}

// denialReason returns the reason why the zone denies the request. If limits deny it, it also
// returns the index of the limit with the longest wait.
func (e *zoneEntry) denialReason() (reason string, limit int) {
	if e.deniedByBan() {
		return reasonBan, 0
	}
	longest := algorithms.Micros(-1)
	for n, d := range e.Outcome.Decisions {
		if limitDenies(d) && d.RetryAfter > longest {
			longest, reason, limit = d.RetryAfter, reasonLimit, n
		}
	}
	if e.lacksSlot() && slotRetryAfter > longest {
		return reasonConcurrency, 0
	}
	return reason, limit
}

// denialLog reports denials to the log and the events app without flooding them. For each zone
// and key it reports the first denial at once, and later ones together once a second.
type denialLog struct {
	report  func(denial)
	records *denialRecords

	mu     sync.Mutex
	recent map[denialLogKey]*denial // their counts are not yet reported
	timer  *time.Timer              // runs while recent isn't empty
	closed bool
}

// maxDenialLogKeys bounds the keys of recent, and so the lines that are logged per second.
// Denials of further keys are counted together, per zone.
const maxDenialLogKeys = 1000

// denialIDTicks is how many seconds the denials of a key in the table have the same ID. So a flood on
// a few keys pushes few records out of [denialRecords].
const denialIDTicks = 60

// denialLogKey identifies the denials that are reported together. The flags are as in [denial].
type denialLogKey struct {
	zone                  string
	key                   keyhash.Hash
	shadow, ban, overflow bool
}

func newDenialLog(report func(denial), records *denialRecords) *denialLog {
	return &denialLog{report: report, records: records, recent: make(map[denialLogKey]*denial)}
}

// record reports a denial, now or within a second. It returns the ID of the denial, and keeps a record
// of it if the ID is new. The entries are all zones of the request.
func (l *denialLog) record(d denial, entries []zoneEntry) (id string) {
	d.count = 1
	reportNow, newID := l.add(&d)
	if newID {
		l.records.add(newDenialRecord(&d, entries))
	}
	if reportNow {
		l.report(d)
	}
	return d.id
}

// add adds a denial to the recent ones. It reports whether the denial must be reported now, and
// whether its ID is new. The key of d becomes the key as it is logged.
func (l *denialLog) add(d *denial) (reportNow, newID bool) {
	group := denialLogKey{zone: d.zone, key: keyHashes.Sum(d.key), shadow: d.shadow, ban: d.ban}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.recent[group]
	if !l.closed && known == nil && len(l.recent) >= maxDenialLogKeys {
		group = denialLogKey{zone: d.zone, shadow: d.shadow, ban: d.ban, overflow: true}
		known, d.overflow = l.recent[group], true
	}
	switch {
	case d.overflow:
		d.key = ""
	case known != nil && known.handler == d.handler:
		d.key = known.key
	default:
		d.key = d.handler.loggedKey(d.key)
	}
	if known != nil && !l.closed {
		d.id, d.ticks = known.id, known.ticks
	}
	if newID = d.id == "" && !d.overflow && !d.ban; newID {
		d.id = newDenialID()
	}
	if l.closed {
		return true, newID
	}
	if known != nil {
		d.count += known.count
		d.cloneTexts(known)
		*known = *d
		return false, newID
	}
	first := *d
	first.count = 0
	first.cloneTexts(&denial{})
	l.recent[group] = &first
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Second, l.reportRecent)
	}
	return true, newID
}

// reportRecent reports the denials since the last call, and forgets the keys without any.
func (l *denialLog) reportRecent() {
	l.mu.Lock()
	var due []denial
	for id, d := range l.recent {
		if d.count == 0 {
			delete(l.recent, id)
			continue
		}
		due = append(due, *d)
		d.count = 0
		if d.ticks++; d.ticks >= denialIDTicks {
			d.id, d.ticks = "", 0
		}
	}
	l.timer = nil
	if len(l.recent) > 0 && !l.closed {
		l.timer = time.AfterFunc(time.Second, l.reportRecent)
	}
	l.mu.Unlock()
	for _, d := range due {
		l.report(d)
	}
}

// close reports the recent denials. Later denials are reported at once.
func (l *denialLog) close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.reportRecent()
}

func (h *Handler) logsKeys() bool { return h.LogKey != nil && *h.LogKey }

// loggedKey returns a key as it is logged; "" if keys are not logged. A cut key ends with a
// mark, which makes it longer than any key that is logged whole. So the two can't be confused.
func (h *Handler) loggedKey(key string) string {
	if !h.logsKeys() {
		return ""
	}
	shown := newShownKey(h.hashSecret, key, maxShownKey)
	if shown.cut {
		return shown.text + "…"
	}
	return shown.text
}

// reportDenial logs a denial or a ban, and emits its event. With hash_keys it leaves out all texts
// that keys are made of.
func (a *App) reportDenial(d denial) {
	if c := d.handler.logger.Check(zap.InfoLevel, d.message()); c != nil {
		fields := []zap.Field{zap.String("zone", d.zone)}
		if d.ban {
			fields = append(fields, zap.String("until", d.until()), zap.Duration("duration", d.waitTime()))
		} else {
			fields = append(fields, zap.Duration("wait", d.waitTime()))
		}
		if !d.handler.hashesKeys() {
			fields = append(fields, zap.String("remote_ip", d.remoteIP), zap.String("client_ip", d.clientIP))
		}
		fields = append(fields, zap.Int64("count", d.count),
			zap.String("reason", d.reason), zap.String("limit", d.limitDescription()), zap.String("method", d.method))
		if !d.handler.hashesKeys() {
			fields = append(fields, zap.String("host", d.host), zap.String("path", d.path))
		}
		if d.id != "" {
			fields = append(fields, zap.String("id", d.id))
		}
		if d.overflow {
			fields = append(fields, zap.Bool("other_keys", true))
		} else if d.handler.logsKeys() {
			fields = append(fields, zap.String("key", d.key))
		}
		c.Write(fields...)
	}
	if name := d.eventName(); name != "" {
		a.events.add(name, d.eventData())
	}
}

// waitTime returns the retry after of a denial, or the duration of a ban; 0 if no wait helps.
func (d *denial) waitTime() time.Duration {
	if d.wait == algorithms.Forever {
		return 0
	}
	return time.Duration(d.wait) * time.Microsecond
}

// until returns when a ban ends.
func (d *denial) until() string { return time.Now().Add(d.waitTime()).UTC().Format(time.RFC3339) }

// hashesKeys reports whether operators see keys only as their HMACs.
func (h *Handler) hashesKeys() bool { return h.hashSecret != "" }
