package limiter

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The limits of a key can be overridden in two ways: by the configuration (Overrides), and at run time by operators, who
// write into the store (KnownOverrides).

// Overrides are the overrides of the configuration.
type Overrides struct {
	All       map[string]*LimitSet // as configured
	byText    map[string]*LimitSet
	byNetwork map[netip.Prefix]*LimitSet
	// The prefix lengths of the networks in byNetwork, in descending order.
	ipv4, ipv6 []int
}

// NewOverrides returns overrides by key, which can be a network.
func NewOverrides(all map[string]*LimitSet) Overrides {
	o := Overrides{All: all, byText: make(map[string]*LimitSet), byNetwork: make(map[netip.Prefix]*LimitSet)}
	for key, set := range all {
		network, ok := keys.ParseNetwork(key)
		if !ok {
			o.byText[key] = set
			continue
		}
		o.byNetwork[network] = set
		lengths := o.lengths(network)
		if !slices.Contains(*lengths, network.Bits()) {
			*lengths = append(*lengths, network.Bits())
		}
	}
	for _, lengths := range [][]int{o.ipv4, o.ipv6} {
		slices.SortFunc(lengths, func(a, b int) int { return cmp.Compare(b, a) })
	}
	return o
}

// lengths returns ipv4 or ipv6, by the family of the network.
func (o *Overrides) lengths(network netip.Prefix) *[]int {
	if network.Addr().Is4() {
		return &o.ipv4
	}
	return &o.ipv6
}

// Lookup returns the limits of a key, or nil if it has no override. network is the key as a
// network, if the key comes from an address placeholder. Then the override of the smallest network
// that contains it applies.
func (o *Overrides) Lookup(text string, network netip.Prefix) *LimitSet {
	if !network.IsValid() {
		return o.byText[text]
	}
	for _, bits := range *o.lengths(network) {
		if bits > network.Bits() {
			continue
		}
		around, _ := network.Addr().Prefix(bits)
		if set := o.byNetwork[around]; set != nil {
			return set
		}
	}
	return nil
}

// KnownOverrides holds the overrides that this instance has found in the store.
//
// A zone with runtime_overrides looks up the key's override in the store with every request, in
// the same round trip as the charge. Each instance remembers the overrides that it has found, and
// sends the limits of the remembered override. If the store has another override, it charges
// nothing and returns that override. Then the limiter tries again.
type KnownOverrides struct {
	mu    sync.RWMutex
	byKey map[keyhash.Hash]KnownOverride
}

// KnownOverride is an override that this instance has found in the store.
type KnownOverride struct {
	*store.Override
	limitSet *LimitSet // nil if the override can't be read, and so has no effect
}

// NoOverride stands for a key without an override.
var NoOverride = &store.Override{}

// maxKnownOverrides is how many overrides an instance remembers for a zone. A request of
// another key with an override needs two round trips.
const maxKnownOverrides = 10_000

// MayHaveRuntimeOverride reports whether an override set at run time may apply to a key.
func (z *Zone) MayHaveRuntimeOverride(key Key) bool {
	return z.RuntimeOverrides && (key.Network.IsValid() || !keys.IsNetwork(key.Text))
}

// Lookup returns the known override of a key, or [NoOverride] without limits.
func (k *KnownOverrides) Lookup(key string) KnownOverride {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if len(k.byKey) > 0 {
		if known, ok := k.byKey[keyHashes.Sum(key)]; ok {
			return known
		}
	}
	return KnownOverride{Override: NoOverride}
}

// remember remembers an override, and reports whether it is new.
func (k *KnownOverrides) remember(key string, o KnownOverride) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	hash := keyHashes.Sum(key)
	known, ok := k.byKey[hash]
	if !ok {
		known.Override = NoOverride
	}
	if known.Text == o.Text { // another request has learned it since
		return false
	}
	if o.Text == "" {
		delete(k.byKey, hash)
		return true
	}
	if k.byKey == nil {
		k.byKey = make(map[keyhash.Hash]KnownOverride)
	}
	for other := range k.byKey { // any
		if len(k.byKey) < maxKnownOverrides {
			break
		}
		delete(k.byKey, other)
	}
	k.byKey[hash] = o
	return true
}

// RememberOverride remembers that the store has an override for a key. An empty text means none.
func (z *Zone) RememberOverride(key, text string) {
	o, err := KnownOverride{Override: &store.Override{Text: text}}, error(nil)
	if text != "" {
		o.limitSet, _, err = z.CompileOverride(text) // an override that can't be read is known to be there, too
	}
	if z.KnownOverrides.remember(key, o) && err != nil {
		z.Logger.Error("the override of a key can't be read, and has no effect: set it again, or remove it",
			zap.String("zone", z.Name), zap.Error(err))
	}
}

// maxAttempts is the maximum number of attempts to charge a request. An attempt fails if this
// instance doesn't know the current overrides. The last attempt can't fail so, because it uses
// the known overrides without a look-up.
const maxAttempts = 4

// Attempt is an attempt of WithOverrides to decide a request.
type Attempt struct {
	counts  bool // count requests without limits, and warn
	looksUp bool // let the store look up the run-time overrides
	// Observe, if not nil, is called for each zone of the limiter, with how it applies to the request.
	Observe func(zone int, applies string)
}

// RetryOverridden calls try until the store has the overrides that try assumed, but at most maxAttempts times.
// Before each later attempt it calls learn with the overrides that the store has, one per request.
func RetryOverridden(try func(Attempt) error, learn func(overrides []string)) (err error) {
	for attempt := range maxAttempts {
		err = try(Attempt{counts: attempt == 0, looksUp: attempt < maxAttempts-1})
		others, is := errors.AsType[*store.OverriddenError](err) // errors.As would allocate for each request
		if !is {
			break
		}
		learn(others.Overrides)
	}
	return err
}

// WithOverrides collects the zones of the request, and decides it if there are any. If the store has other
// overrides than this instance knows, it does both again. decideError is that of the store, or says that the client
// has left.
func (state *State) WithOverrides(collect func(Attempt) error, decide func() error) (collectError, decideError error) {
	decideError = RetryOverridden(func(a Attempt) error {
		a.counts = a.counts && !state.Explained
		if collectError = collect(a); collectError != nil || len(state.Requests) == 0 {
			return nil
		}
		return decide()
	}, state.rememberOverrides)
	return collectError, decideError
}

// rememberOverrides remembers overrides that the store has, one per request.
func (state *State) rememberOverrides(overrides []string) {
	for i, text := range overrides {
		if e := &state.Entries[i]; e.Override != nil && text != e.Override.Text {
			e.Zone.RememberOverride(e.Key, text)
		}
	}
}
