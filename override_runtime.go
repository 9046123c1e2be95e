package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A zone with overrides looks in the store, with every request and in the same round trip,
// whether the request's key has terms of its own at present. Each instance remembers which
// keys had some, and asks by these; where that is no longer so, the store says what there
// is and decides nothing, and the request is asked again.

// storedOverride is an override as it is kept in a store: as JSON.
type storedOverride struct {
	LimitSet
	// Until tells when it ends, by the clock of who has set it; what counts is when the store
	// drops it. Zero: never.
	Until time.Time `json:"until,omitzero"`
}

// text is the override as a store keeps it.
func (o storedOverride) text() (string, error) {
	b, err := json.Marshal(o)
	return string(b), err
}

// parseOverride reads what a store keeps.
func parseOverride(text string) (o storedOverride, err error) {
	err = decodeStrictly([]byte(text), &o)
	return o, err
}

// readOverride makes the terms that a store keeps ready.
func (z *zone) readOverride(text string) (*limitSet, error) {
	o, err := parseOverride(text)
	if err != nil {
		return nil, fmt.Errorf("override: %w", err)
	}
	return z.compileOverride(&o.LimitSet)
}

// knownOverrides are those that this instance knows of. They change as requests find
// others in the store.
type knownOverrides struct {
	mu    sync.RWMutex
	byKey map[keyhash.Hash]knownOverride
}

type knownOverride struct {
	*store.Override
	terms *limitSet // nil: those that there would be without it, for it can't be read
}

// noOverride is known of keys without an override.
var noOverride = &store.Override{}

// maxKnownOverrides is how many overrides an instance remembers for a zone. For those of
// further keys requests are asked twice.
const maxKnownOverrides = 10_000

func (k *knownOverrides) of(key string) knownOverride {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if len(k.byKey) > 0 {
		if known, ok := k.byKey[keyHashes.Sum(key)]; ok {
			return known
		}
	}
	return knownOverride{Override: noOverride}
}

// set notes an override, and tells whether that is news.
func (k *knownOverrides) set(key string, o knownOverride) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	hash := keyHashes.Sum(key)
	known, ok := k.byKey[hash]
	if !ok {
		known.Override = noOverride
	}
	if known.Text == o.Text { // another request has learned it meanwhile
		return false
	}
	if o.Text == "" {
		delete(k.byKey, hash)
		return true
	}
	if k.byKey == nil {
		k.byKey = make(map[keyhash.Hash]knownOverride)
	}
	k.byKey[hash] = o
	for other := range k.byKey { // any
		if len(k.byKey) <= maxKnownOverrides {
			break
		}
		if other != hash {
			delete(k.byKey, other)
		}
	}
	return true
}

// maxTries is how often a request is asked at most because overrides change: the last time
// by those that there were a moment ago.
const maxTries = 4

// rememberOverride notes the overrides that there are, if that is why nothing was decided: the request
// is to be asked again.
func (state *requestState) applyOverrides(err error) bool {
	others, is := errors.AsType[*store.OverriddenError](err)
	if !is {
		return false
	}
	for i, text := range others.Overrides {
		if e := &state.entries[i]; e.Override != nil && text != e.Override.Text {
			e.zone.rememberOverride(e.Key, text)
		}
	}
	return true
}

func (z *zone) rememberOverride(key, text string) {
	o, err := knownOverride{Override: &store.Override{Text: text}}, error(nil)
	if text != "" {
		o.terms, err = z.readOverride(text)
	}
	if z.knownOverrides.set(key, o) && err != nil {
		z.logger.Error("the override of a key can't be read, and has no effect: set it anew, or remove it", zap.String("zone", z.name), zap.Error(err))
	}
}
