package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Ban denies all requests of a key for a while, after the zone's limits have denied the key often
// enough. While a ban is in force, the zone charges nothing.
type Ban struct {
	// How long a ban lasts; at least 1µs.
	Duration caddy.Duration `json:"duration,omitempty"`

	// The number of denials after which a ban begins. Only denials by the zone's own limits
	// count, within the longest window of these limits, from the first denial on (default 1).
	After int64 `json:"after,omitempty" zero:"1"`

	// The longest ban. Each ban is twice as long as the one before, up to max. If a key has no
	// ban for the time max, its next ban has the length of duration again (default: duration,
	// so all bans have the same length).
	Max caddy.Duration `json:"max,omitempty" zero:"duration"`

	// The requests that a ban denies. With "zone", a ban denies the requests of the zone. With
	// "handler", a ban denies all requests of the handler whose key is banned, also requests that
	// match leaves out. Each request of the handler then looks up the ban in the store (default
	// zone).
	Scope string `json:"scope,omitempty"`
}

// compile returns the ban of a zone with these limits.
func (b *Ban) compile(limits []*algorithms.Limit) (*algorithms.Ban, error) {
	if b.Duration == 0 {
		return nil, errors.New("ban has no duration: write how long it lasts, such as 1h")
	}
	if err := checkBanScope(b.Scope); err != nil {
		return nil, fmt.Errorf("ban: %w", err)
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
	text := fmt.Sprintf("%v after %d max %v", time.Duration(b.Duration), max(b.After, 1), time.Duration(max(b.Max, b.Duration)))
	if b.isForHandler() {
		text += " scope handler"
	}
	return text
}

// The values of the option scope.
const (
	banScopeZone    = "zone"
	banScopeHandler = "handler"
)

func checkBanScope(scope string) error {
	switch scope {
	case "", banScopeZone, banScopeHandler:
		return nil
	}
	return fmt.Errorf("scope must be zone or handler, not %q: write zone for the requests of the zone, "+
		"or handler for all requests of the handler", scope)
}

// isForHandler reports whether a ban denies all requests of the handler.
func (b *Ban) isForHandler() bool { return b != nil && b.Scope == banScopeHandler }

// unmarshalBan reads ban <duration> [after <n>] [max <duration>] [scope zone|handler].
func unmarshalBan(d *caddyfile.Dispenser) (*Ban, error) {
	const example = "write for example ban 1h after 5 max 24h"
	args := d.RemainingArgs()
	if len(args) == 0 || len(args)%2 == 0 {
		return nil, fmt.Errorf("ban takes a duration, and optionally after, max and scope with a value each, but has %d values: %s",
			len(args), example)
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
		case word == "scope" && b.Scope == "":
			b.Scope = value
			err = checkBanScope(value)
		default:
			err = fmt.Errorf("after the duration, ban takes only after, max and scope, each once and with a value, not %q: %s", word, example)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ban: %w", err)
	}
	return b, nil
}

// newBanLookup returns the ban of a zone without its limits and slots.
func newBanLookup(z *zone) *limitSet {
	set := &limitSet{ban: z.defaultSet.ban}
	set.nameBudgets(z.name, z.keys)
	return set
}

// collectBanLookup adds an entry that only looks up the ban of the request's key, in a zone that the
// request doesn't belong to. It charges and counts nothing. A key with an empty placeholder has no
// ban here: otherwise a ban of the empty key would deny all requests without such a value.
func (state *requestState) collectBanLookup(z *zone, r *http.Request, repl *caddy.Replacer) (applies string, err error) {
	if z.factor.varies() {
		if factor, _ := parseFactor(repl.ReplaceAll(string(z.factor), "")); factor == 0 {
			return appliesNot, nil
		}
	}
	if z.tooEarly(r, repl) {
		if z.enforce == 0 {
			return appliesNot, nil
		}
		return appliesBan, errTooEarly
	}
	key := z.keyOf(repl)
	if !key.complete {
		return appliesNot, nil
	}
	state.add(zoneEntry{zone: z, limitSet: z.banLookup, alternative: key.alternative, isBanLookup: true}, store.Request{
		Zone: z.name, Key: z.shortKey(key.text), Ban: z.banLookup.budgets[key.alternative].ban, Shadow: !z.enforces(key.text),
	})
	return appliesBan, nil
}

// banned reports whether a ban of the key is in force, or began with this request.
func (e *zoneEntry) banned() bool { return e.Outcome.Ban.EndsAfter > 0 }

// deniedByBan reports whether a ban was in force already, so that the limits were not asked.
func (e *zoneEntry) deniedByBan() bool { return e.Outcome.Verdict == store.Banned }
