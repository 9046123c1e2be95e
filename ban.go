package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Ban denies all requests of a key in its zone for a while, after the zone's limits have denied
// the key often enough. While a ban is in force, the zone charges nothing.
type Ban struct {
	// How long a ban lasts; at least 1µs.
	Duration caddy.Duration `json:"duration,omitempty"`

	// The number of denials after which a ban begins. Only denials by the zone's own limits
	// count, within the longest window of these limits, from the first denial on (default 1).
	After int64 `json:"after,omitempty"`

	// The longest ban. Each ban is twice as long as the one before, up to max. If a key has no
	// ban for the time max, its next ban has the length of duration again (default: duration,
	// so all bans have the same length).
	Max caddy.Duration `json:"max,omitempty"`
}

// compile returns the ban of a zone with these limits.
func (b *Ban) compile(limits []*algorithms.Limit) (*algorithms.Ban, error) {
	if b.Duration == 0 {
		return nil, errors.New("ban has no duration: write how long it lasts, such as 1h")
	}
	ban := &algorithms.Ban{After: b.After, Duration: time.Duration(b.Duration).Microseconds(), Max: time.Duration(b.Max).Microseconds()}
	for _, span := range []caddy.Duration{b.Duration, b.Max} {
		if span := time.Duration(span); span%time.Microsecond != 0 {
			return nil, fmt.Errorf("ban: its durations must be whole numbers of microseconds, not %v: write for example %v",
				span, microsExample(span))
		}
	}
	if b.After == 0 {
		ban.After = 1
	}
	if b.Max == 0 {
		ban.Max = ban.Duration
	}
	if len(limits) == 0 {
		return nil, errors.New("ban needs a limit, because only denials by limits count: " +
			"write a limit, such as token_bucket 10 1s, or leave out ban")
	}
	for _, l := range limits {
		ban.Window = max(ban.Window, l.Window)
	}
	if err := ban.Check(); err != nil {
		return nil, fmt.Errorf("ban: %w", err)
	}
	return ban, nil
}

// describe returns the settings as text. Bans with the same text are the same.
func (b *Ban) describe() string {
	if b == nil {
		return "none"
	}
	return fmt.Sprintf("%v after %d max %v", time.Duration(b.Duration), max(b.After, 1), time.Duration(max(b.Max, b.Duration)))
}

// unmarshalBan reads ban <duration> [after <n>] [max <duration>].
func unmarshalBan(d *caddyfile.Dispenser) (*Ban, error) {
	const example = "write for example ban 1h after 5 max 24h"
	args := d.RemainingArgs()
	if len(args) == 0 || len(args)%2 == 0 {
		return nil, fmt.Errorf("ban takes a duration, and optionally after and max with a value each, but has %d values: %s", len(args), example)
	}
	b := new(Ban)
	var err error
	b.Duration, err = parseDuration("duration", args[0], "1h")
	if err == nil && b.Duration <= 0 {
		err = fmt.Errorf("the duration must be above 0, not %v: %s", time.Duration(b.Duration), example)
	}
	for i := 1; i < len(args) && err == nil; i += 2 {
		switch word, value := args[i], args[i+1]; {
		case word == "after" && b.After == 0:
			if b.After, err = parseInteger("after", value, "5"); err == nil && b.After <= 0 {
				err = fmt.Errorf("after must be above 0, not %d: write the number of denials before a ban, or leave it out for 1", b.After)
			}
		case word == "max" && b.Max == 0:
			if b.Max, err = parseDuration("max", value, "24h"); err == nil && b.Max < b.Duration {
				err = fmt.Errorf("max must be at least %v, the duration, not %v: write the longest ban, or leave it out",
					time.Duration(b.Duration), time.Duration(b.Max))
			}
		default:
			err = fmt.Errorf("after the duration, ban takes only after and max, each once and with a value, not %q: %s", word, example)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ban: %w", err)
	}
	return b, nil
}

// banned reports whether a ban of the key is in force, or began with this request.
func (e *zoneEntry) banned() bool { return e.Outcome.Ban.EndsAfter > 0 }

// deniedByBan reports whether a ban was in force already, so that the limits were not asked.
func (e *zoneEntry) deniedByBan() bool { return e.Outcome.Verdict == store.Banned }
