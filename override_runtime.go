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

// A zone with runtime_overrides looks up the key's override in the store with every request, in
// the same round trip. Each instance remembers the overrides that it has found, and takes by
// them. If the store has another override, it decides nothing and returns that override. Then
// the handler takes again.

// storedOverride is an override as a store keeps it: as JSON.
type storedOverride struct {
	LimitSet
	// Until is when the override ends, by the clock of the instance that has set it. It is for
	// people: the store drops the override by its own clock. Zero: never.
	Until time.Time `json:"until,omitzero"`
}

// text returns the override in the form that a store keeps.
func (o storedOverride) text() (string, error) {
	b, err := json.Marshal(o)
	return string(b), err
}

// parseOverride reads an override in the form that a store keeps.
func parseOverride(text string) (o storedOverride, err error) {
	err = decodeStrictly([]byte(text), &o)
	return o, err
}

// readOverride compiles an override that a store keeps.
func (z *zone) readOverride(text string) (*limitSet, error) {
	o, err := parseOverride(text)
	if err != nil {
		return nil, fmt.Errorf("override: %w", err)
	}
	return z.compileOverride(&o.LimitSet)
}

// knownOverrides holds the overrides that this instance has found in the store.
type knownOverrides struct {
	mu    sync.RWMutex
	byKey map[keyhash.Hash]knownOverride
}

type knownOverride struct {
	*store.Override
	limitSet *limitSet // nil if the override can't be read: it has no effect
}

// noOverride stands for a key without an override.
var noOverride = &store.Override{}

// maxKnownOverrides is how many overrides an instance remembers for a zone. A request of a
// further key with an override needs two round trips.
const maxKnownOverrides = 10_000

func (k *knownOverrides) lookup(key string) knownOverride {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if len(k.byKey) > 0 {
		if known, ok := k.byKey[keyHashes.Sum(key)]; ok {
			return known
		}
	}
	return knownOverride{Override: noOverride}
}

// remember remembers an override, and reports whether it is new.
func (k *knownOverrides) remember(key string, o knownOverride) bool {
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

// maxAttempts is how often the handler takes for one request at most, because overrides change.
// The last time it takes by the overrides that it knows, without looking them up.
const maxAttempts = 4

// rememberOverrides remembers the overrides of a [store.OverriddenError]. It reports whether err
// is one: then the handler must collect and take again.
func (state *requestState) rememberOverrides(err error) bool {
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
		o.limitSet, err = z.readOverride(text)
	}
	if z.knownOverrides.remember(key, o) && err != nil {
		z.logger.Error("the override of a key can't be read, and has no effect: set it anew, or remove it", zap.String("zone", z.name), zap.Error(err))
	}
}
