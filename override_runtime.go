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
// the same round trip as the charge. Each instance remembers the overrides that it has found, and
// sends the limits of the remembered override. If the store has another override, it charges
// nothing and returns that override. Then the handler tries again.

// storedOverride is an override as a store keeps it: as JSON.
type storedOverride struct {
	LimitSet
	// Until is when the override ends, by the clock of the instance that has set it. Zero means
	// never. It is only shown to people, because the store drops the override by its own clock.
	Until time.Time `json:"until,omitzero"`
}

// text returns the override in the form that a store keeps.
func (o storedOverride) text() (string, error) {
	b, err := json.Marshal(o)
	return string(b), err
}

// parseStoredOverride reads an override in the form that a store keeps.
func parseStoredOverride(text string) (o storedOverride, err error) {
	err = decodeStrictly([]byte(text), &o)
	return o, err
}

// compileStoredOverride compiles an override from the form that a store keeps.
func (z *zone) compileStoredOverride(text string) (*limitSet, error) {
	o, err := parseStoredOverride(text)
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
	limitSet *limitSet // nil if the override can't be read, and so has no effect
	until    time.Time // as in storedOverride
}

// noOverride stands for a key without an override.
var noOverride = &store.Override{}

// maxKnownOverrides is how many overrides an instance remembers for a zone. A request of a
// further key with an override needs two round trips.
const maxKnownOverrides = 10_000

// lookup returns the known override of a key, or noOverride without limits.
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

// maxAttempts is the maximum number of attempts to charge a request. An attempt fails if this
// instance doesn't know the current overrides. The last attempt can't fail so, because it uses
// the known overrides without a look-up.
const maxAttempts = 4

// rememberOverrides remembers the overrides of a [store.OverriddenError]. It reports whether err
// is such an error: then the handler must try again.
func (state *requestState) rememberOverrides(err error) bool {
	others, is := errors.AsType[*store.OverriddenError](err) // errors.As would allocate for each request
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

// rememberOverride remembers that the store has an override for a key. An empty text means none.
func (z *zone) rememberOverride(key, text string) {
	o, err := knownOverride{Override: &store.Override{Text: text}}, error(nil)
	if text != "" {
		o.limitSet, err = z.compileStoredOverride(text)
		stored, _ := parseStoredOverride(text) // an override that can't be read is known to be there, too
		o.until = stored.Until
	}
	if z.knownOverrides.remember(key, o) && err != nil {
		z.logger.Error("the override of a key can't be read, and has no effect: set it again, or remove it",
			zap.String("zone", z.name), zap.Error(err))
	}
}
