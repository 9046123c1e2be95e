// Package denials tells operators about denied requests: by log and events, and by the most denied keys. It never
// decides a request, and keeps a bounded number of bounded texts.
package denials

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Source describes a handler that denies requests. All denials of a handler have the same Source, and look alike to operators.
type Source struct {
	Logger   *zap.Logger
	LogsKeys bool
	// HashSecret is the secret of hash_keys: operators see only the HMAC of a key. If it is empty, operators see
	// the key itself.
	HashSecret string
}

// hashesKeys reports whether operators see keys only as their HMACs.
func (s *Source) hashesKeys() bool { return s.HashSecret != "" }

// loggedKey returns a key as it is logged; "" if keys are not logged.
func (s *Source) loggedKey(key string) string {
	if !s.LogsKeys {
		return ""
	}
	return keys.NewShown(s.HashSecret, key).Marked()
}

// Denial describes one or more denied requests of one zone and key, for operators. All fields but
// count describe the latest request.
type Denial struct {
	Source *Source
	Zone   string
	Key    string // in the table of a [Log]: as it is logged
	Shadow bool   // the zone is in shadow mode, so the request passed
	Ban    bool   // a ban began with the request
	// Percent is not 0 if nothing was denied: the request has reached this share of the Limit, a calendar.
	Percent int64

	Wait algorithms.Micros // retry after; for a ban, its duration; for a share, until the period ends
	Cause
	RemoteIP, ClientIP string
	Method, Host, Path string // a [Log] keeps up to maxLoggedTextBytes of each

	at       time.Time
	overflow bool // the denials are of all keys without a place in the table
	count    int64
	id       string // for clients and operators; "" for a ban, and for denials of all other keys
	ticks    int    // in the table of a Log: the seconds since the ID was new
}

// Cause says why a request was denied.
type Cause struct {
	Reason string
	Limit  *algorithms.Limit // for store.DeniedByLimit and store.DeniedByReserved
	Slots  int64             // for store.DeniedByConcurrency: the number of slots
}

// String returns the limit that denied the request, or else the reason.
func (c Cause) String() string {
	switch c.Reason {
	case store.DeniedByLimit:
		return c.Limit.String()
	case store.DeniedByReserved:
		return c.Limit.String() + " (reserved)"
	case store.DeniedByConcurrency:
		return fmt.Sprint("concurrency ", c.Slots)
	default:
		return c.Reason
	}
}

// message returns the log message. Tools such as fail2ban look for "rate limit exceeded", and then ban clients. So a hold, for
// which no client is to blame, has other messages.
func (d *Denial) message() string {
	switch isHold := d.isHold(); {
	case d.Ban && isHold && d.Shadow:
		return "hold would begin"
	case d.Ban && isHold:
		return "hold began"
	case isHold && d.Shadow:
		return "request would be denied by a hold"
	case isHold:
		return "request denied by a hold"
	case d.Ban && d.Shadow:
		return "key would be banned"
	case d.Ban:
		return "key banned"
	case d.Shadow:
		return "rate limit would be exceeded"
	default:
		return "rate limit exceeded"
	}
}

// isHold reports whether a response began the ban, or the ban that denies the request.
func (d *Denial) isHold() bool { return d.Reason == store.DeniedByHold }

// cloneTexts copies the texts that come from the request, so that the denial doesn't keep the
// memory of the request. Texts that are the same as in previous are shared with previous.
func (d *Denial) cloneTexts(previous *Denial) {
	d.Method = cloneUnlessEqual(d.Method, previous.Method)
	d.Host = cloneUnlessEqual(d.Host, previous.Host)
	d.Path = cloneUnlessEqual(d.Path, previous.Path)
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

// report logs a denial or a ban, and emits its event. With hash_keys it omits all texts
// that keys are made of.
func (d *Denial) report(events *Events) {
	if d.Percent > 0 {
		d.reportShare(events)
		return
	}
	fields := []zap.Field{zap.String("zone", d.Zone)}
	if d.Ban {
		fields = append(fields, zap.String("until", d.until()), zap.Duration("duration", d.waitTime()))
	} else {
		fields = append(fields, zap.Duration("wait", d.waitTime()))
	}
	if !d.Source.hashesKeys() {
		fields = append(fields, zap.String("remote_ip", d.RemoteIP), zap.String("client_ip", d.ClientIP))
	}
	fields = append(fields, zap.Int64("count", d.count),
		zap.String("reason", d.Reason), zap.String("limit", d.Cause.String()), zap.String("method", d.Method))
	if !d.Source.hashesKeys() {
		fields = append(fields, zap.String("host", d.Host), zap.String("path", d.Path))
	}
	if d.id != "" {
		fields = append(fields, zap.String("id", d.id))
	}
	if name := d.eventName(); name != "" {
		events.addFields(name, fields)
	}
	if d.overflow { // events never have a key
		fields = append(fields, zap.Bool("other_keys", true))
	} else if d.Source.LogsKeys {
		fields = append(fields, zap.String("key", d.Key))
	}
	if c := d.Source.Logger.Check(zap.InfoLevel, d.message()); c != nil {
		c.Write(fields...)
	}
}

// waitTime returns the retry after of a denial, or the duration of a ban; 0 if waiting won't help.
func (d *Denial) waitTime() time.Duration {
	if d.Wait == algorithms.Forever {
		return 0
	}
	return time.Duration(d.Wait) * time.Microsecond
}

// until returns when a ban, or the period of a share, ends: in whole seconds, rounded down.
func (d *Denial) until() string { return d.at.Add(d.waitTime()).UTC().Format(time.RFC3339) }

// reportShare logs that a key has used a share of its limit, and emits the event. The event has the key if the log has
// it, because somebody is to be told who it is.
func (d *Denial) reportShare(events *Events) {
	fields := []zap.Field{
		zap.String("zone", d.Zone), zap.Int64("percent", d.Percent), zap.Stringer("limit", d.Limit), zap.String("until", d.until()),
		zap.Int64("count", d.count),
	}
	if d.overflow {
		fields = append(fields, zap.Bool("other_keys", true))
	} else if d.Source.LogsKeys {
		fields = append(fields, zap.String("key", d.Key))
	}
	if c := d.Source.Logger.Check(zap.InfoLevel, "a key has used a share of its limit"); c != nil {
		c.Write(fields...)
	}
	events.addFields(eventThreshold, fields)
}
