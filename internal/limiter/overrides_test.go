package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Nothing of a key is kept with its override, however long the key is and whatever it is part of.
func TestNothingOfAnOverriddenKeyIsKept(t *testing.T) {
	var known KnownOverrides
	if storetest.IsKept(func(key string) { known.remember(key, KnownOverride{Override: &store.Override{Text: "{}"}}) }) {
		t.Error("a key is kept")
	}
	for n := range 2 * maxKnownOverrides { // a flood of keys keeps out no new one
		text := fmt.Sprint(n)
		if known.remember(text, KnownOverride{Override: &store.Override{Text: text}}); known.Lookup(text).Text != text || len(known.byKey) > maxKnownOverrides {
			t.Fatalf("%d overrides are known, the last is %q, want %q", len(known.byKey), known.Lookup(text).Text, text)
		}
	}
}

// The smallest network around an address counts, as one finds it by trying them all.
func TestSmallestNetwork(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	address := func() netip.Addr { // few, so that networks hold them
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(4)), byte(r.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0: 0x20, 7: byte(r.IntN(2)), 8: byte(r.IntN(4)), 15: byte(r.IntN(4))})
	}
	network := func() netip.Prefix {
		addr := address()
		p, _ := addr.Prefix(r.IntN(addr.BitLen() + 1))
		return p
	}
	found := 0
	for range 2000 {
		all := map[string]*LimitSet{"text": new(LimitSet)}
		for range r.IntN(12) {
			// An address may be written in two ways, but not in both.
			if p := network(); !p.IsSingleIP() || all[p.Addr().String()] == nil {
				all[p.String()] = new(LimitSet)
			}
			if a := address(); r.IntN(3) == 0 && all[netip.PrefixFrom(a, a.BitLen()).String()] == nil {
				all[a.String()] = new(LimitSet)
			}
		}
		o := NewOverrides(all)
		for range 20 {
			key := network()
			if r.IntN(2) == 0 {
				a := address()
				key = netip.PrefixFrom(a, a.BitLen())
			}
			var want *LimitSet
			longest := -1
			for text, terms := range all {
				p, ok := keys.ParseNetwork(text)
				if ok && p.Bits() <= key.Bits() && p.Contains(key.Addr()) && p.Bits() > longest {
					want, longest = terms, p.Bits()
				}
			}
			if want != nil {
				found++
			}
			if got := o.Lookup(key.String(), key); got != want {
				t.Fatalf("seed %d: %v of %v: %p, want %p", seed, key, all, got, want)
			}
			if o.Lookup(key.String(), netip.Prefix{}) != nil || o.Lookup("text", netip.Prefix{}) != all["text"] {
				t.Fatalf("seed %d: text counts as what it looks like", seed)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d had an override", found)
	}
}

// The form of the key and the search for its override take no memory, unless the key has another
// form.
func TestKeysOfAddressesAllocateNothing(t *testing.T) {
	template := keys.NewKey("{http.vars.client_ip}", keys.Form{})
	o := NewOverrides(map[string]*LimitSet{"10.0.0.0/8": {}, "2001:db8::/32": {}, "10.1.2.0/24": {}, "text": {}})
	for _, value := range []string{"10.1.2.3", "203.0.113.255", "2001:db8:1:2:3:4:5:6", "fe80::1", "a-text", "sk_1234567890"} {
		if n := testing.AllocsPerRun(100, func() { o.Lookup(template.Normalize(value)) }); n > 0 {
			t.Errorf("%s: %v allocations", value, n)
		}
	}
	for _, text := range []string{"deadbeef-0123", "bob@example.com", "10.0.0.1", "2001:db8::/32"} {
		if n := testing.AllocsPerRun(100, func() { keys.IsNetwork(text) }); n > 0 {
			t.Errorf("%s: %v allocations to see what it looks like", text, n)
		}
	}
}

// changingStore is a store in which the override of a key is another one at each look.
type changingStore struct {
	*store.Memory
	looks int
}

func (s *changingStore) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	s.looks++
	text := fmt.Sprint(1000 + s.looks)
	if err := s.Change(ctx, store.Change{Zone: requests[0].Zone, Key: requests[0].Key, Override: &text}); err != nil {
		return false, err
	}
	return s.Memory.Take(ctx, requests)
}

// If an override changes whenever a request is asked about, the request is decided by one of its versions, and charged once.
func TestOverrideThatChangesAllTheTime(t *testing.T) {
	budgets := &changingStore{Memory: store.NewMemory(1000)}
	z := &Zone{FixedCost: 1, RuntimeOverrides: true}
	l := newTestLimiter(t, z)
	l.Store, z.Keys = budgets, []keys.Template{keys.NewKey("k", keys.Form{})}
	var charged int64 // with any version
	z.CompileOverride = func(text string) (*LimitSet, time.Time, error) {
		var events int64
		errtest.Report(t, errtest.Of(fmt.Sscan(text, &events)))
		limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: events, Window: 1 << 40})
		set := &LimitSet{Limits: []*algorithms.Limit{limit}}
		set.NameBudgets(z.Name, z.Keys)
		return set, time.Time{}, err
	}
	for range 10 {
		before := budgets.looks
		repl := caddy.NewReplacer()
		r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), repl, httptest.NewRecorder(), nil)
		passed := false
		if err := l.Serve(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
			passed = true
			return nil
		})); err != nil || !passed {
			t.Fatalf("passed %v, error %v", passed, err)
		}
		state, _ := repl.Get(PlaceholderPrefix)
		d := state.(*State).Requests[0].Outcome.Decisions[0]
		charged += d.Charged
		limit := state.(*State).Requests[0].Limits[0]
		if most := int64(1000 + budgets.looks); limit.Events < 1000+int64(before) || limit.Events > most || d.Remaining != limit.Events-charged {
			t.Errorf("after %d looks, %d events of %d remain", budgets.looks, d.Remaining, limit.Events)
		}
		if looks := budgets.looks - before; looks != maxAttempts {
			t.Errorf("the store was asked %d times, want %d", looks, maxAttempts)
		}
	}
	if charged != 10 {
		t.Errorf("10 requests were charged %d", charged)
	}
}
