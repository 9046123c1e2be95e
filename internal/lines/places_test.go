package lines

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Keys share places, and one that has none gets any that is free.
func TestPlacesAreShared(t *testing.T) {
	for _, test := range []struct {
		places int64
		oneKey bool
		takes  []string // a key takes as many as it gets
		want   []int64
	}{
		{1, false, []string{"a", "b"}, []int64{1, 0}},
		{2, false, []string{"a", "b"}, []int64{1, 1}},
		{3, false, []string{"a", "b"}, []int64{2, 1}},
		{9, false, []string{"a", "b", "c", "d"}, []int64{5, 2, 1, 1}},
		{1000, false, []string{"a", "b", "c"}, []int64{500, 250, 125}},
		{1000, true, []string{"a"}, []int64{1000}},
		{1, true, []string{"a", "a"}, []int64{1, 0}},
	} {
		p := &Policy{MaxPlaces: test.places, SingleKey: test.oneKey, Places: NewPlaces(nil)}
		for i, key := range test.takes {
			got := int64(0)
			for p.reserve(key) {
				got++
			}
			if got != test.want[i] || p.hasPlace(key) {
				t.Errorf("%+v: %s got %d places, want %d", test, key, got, test.want[i])
			}
		}
	}
	// In turn, two keys have a third each.
	p := &Policy{MaxPlaces: 999, Places: NewPlaces(nil)}
	got := make(map[string]int)
	for range 999 {
		for _, key := range []string{"a", "b"} {
			if p.reserve(key) {
				got[key]++
			}
		}
	}
	if got["a"] != 333 || got["b"] != 333 {
		t.Errorf("of 999 places two keys got %v", got)
	}
	for key, n := range got {
		for range n {
			p.Places.release(key)
		}
	}
	p.wantEmpty(t)
	if n := testing.AllocsPerRun(1000, func() { p.reserve("a"); p.Places.release("a") }); n > 0 {
		t.Errorf("a place costs %v allocations", n)
	}
}

// A key that sends any number of requests keeps no other key from waiting: the last free place goes to
// a key that has none. So it takes more than the logarithm of the places in keys to fill them. As
// requests leave, the keys get equal shares.
func TestPlacesUnderFlood(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(50)) {
		random := rand.New(rand.NewPCG(seed, 16))
		places := int64(1) << (1 + random.IntN(9))
		p := &Policy{MaxPlaces: places, Places: NewPlaces(nil)}
		q, keys := p.Places, []string{"flood", "b", "c"}[:1+random.IntN(3)]
		has := func(key string) int64 { return q.byKey[key].taken }
		for step := range 20 * places {
			key := keys[0]
			if random.IntN(10) == 0 {
				key = keys[random.IntN(len(keys))]
			}
			for p.reserve(key) { // as many as it gets
			}
			if free, want := places-q.taken, places>>len(keys); step > 0 && free < want {
				t.Fatalf("seed %d: %d of %d places are free while %d keys want more, want at least %d", seed, free, places, len(keys), want)
			}
			if !p.reserve("newcomer") && places>>len(keys) > 0 {
				t.Fatalf("seed %d: a newcomer finds none of %d places beside %v", seed, places, q.byKey)
			}
			for has("newcomer") > 0 {
				q.release("newcomer")
			}
			if key := keys[random.IntN(len(keys))]; has(key) > 0 {
				q.release(key)
			}
			p.check(t)
		}
		for _, key := range keys {
			for has(key) > 0 {
				q.release(key)
			}
		}
		p.wantEmpty(t)
	}
}

// check checks what holds for places at any time.
func (o *Policy) check(t *testing.T) {
	t.Helper()
	p, sum := o.Places, int64(0)
	for key, k := range p.byKey {
		sum += k.taken
		if k.taken <= 0 || k.awaiting < 0 || k.taken < int64(len(k.line))+k.awaiting {
			t.Errorf("key %s has %d places, %d requests in line, and %d wait for slots", key, k.taken, len(k.line), k.awaiting)
		}
		for i, h := range k.line {
			if i > 0 && k.line[i-1].isChargedAfter(h) {
				t.Errorf("request %d in the line of key %s was charged before request %d", i, key, i-1)
			}
		}
	}
	if sum != p.taken || sum > o.MaxPlaces {
		t.Errorf("%d places are taken, keys have %d, want at most %d", p.taken, sum, o.MaxPlaces)
	}
}

func (o *Policy) wantEmpty(t *testing.T) {
	t.Helper()
	if places, keys := o.Places.Taken(); places != 0 || keys != 0 {
		t.Errorf("%d places are taken, by %v, want none", places, o.Places.byKey)
	}
}

// Requests can join in any order, and stand in the order of their charges. Nothing is given back
// while a request may be charged behind. All charges of one owner are given back together, and those of
// another owner later, if they were charged before.
func TestOrderOfCharges(t *testing.T) {
	const hour = 3_600_000_000
	for _, quota := range []algorithms.Quota{
		{Algorithm: "gcra", Events: 3, Window: hour, Burst: 1},
		{Algorithm: "token_bucket", Events: 3, Window: hour, Burst: 1},
		{Algorithm: "leaky_bucket", Events: 1, Window: hour, Burst: 1},
		{Algorithm: "smooth", Events: 7, Window: hour, Burst: 1},
		{Algorithm: "fixed_window", Events: 1, Window: hour},
	} {
		limit, err := algorithms.NewLimit(quota)
		if err != nil {
			t.Fatal(err)
		}
		memory, now := store.NewMemory(1000), Micros(hour*1_000_000)
		limits := []store.Limit{store.NewLimit("api", "", limit)}
		var owners []any
		policy := &Policy{MaxDelay: 1 << 50, MaxPlaces: 100, SingleKey: true, Places: NewPlaces(func(owner any, corrections []store.Correction) {
			owners = append(owners, owner)
			_ = memory.CorrectAt(t.Context(), now, corrections)
		})}
		reserve := func() *Request {
			r := &Request{Requests: []store.Request{{Zone: "api", Cost: 1, Limits: limits}}, Zones: []Zone{{Policy: policy}}}
			if !r.Reserve(always) {
				t.Fatal("there is no place")
			}
			return r
		}
		take := func(r *Request) {
			if allowed, err := memory.TakeAt(t.Context(), now, r.Requests); !allowed || err != nil {
				t.Fatal(allowed, err)
			}
		}
		reset := func() Micros { // how long until the budget is untouched
			look := []store.Request{{Zone: "api", Limits: limits}}
			_, _ = memory.TakeAt(t.Context(), now, look)
			return look[0].Outcome.Decisions[0].ResetAfter
		}
		first := reserve()
		take(first)
		first.Release()
		untouched, began := reset(), now
		requests := make([]*Request, 20)
		for i := range requests {
			requests[i] = reserve()
			take(requests[i])
			now += 1000
		}
		deep := reset()
		for _, i := range rand.Perm(20) {
			requests[i].Hold(i / 10)
			policy.check(t)
		}
		deciding := reserve()
		for _, i := range rand.Perm(20) {
			requests[i].Abandon()
		}
		if now := reset(); now != deep || len(owners) > 0 {
			t.Errorf("%s: given back while a request is being decided: from %v to %v", quota.Algorithm, deep, now)
		}
		deciding.Release()
		if left, want := reset(), untouched-(now-began); left != want {
			t.Errorf("%s: reset after %v, want %v", quota.Algorithm, left, want)
		}
		if quota.Algorithm != "fixed_window" && !slices.Equal(owners, []any{1, 0}) { // those of one window have no order
			t.Errorf("%s: given back for owners %v, want [1 0]", quota.Algorithm, owners)
		}
		policy.wantEmpty(t)
	}
}

// A request that passes makes the charges of the requests before it final. If one of these waits longer for
// another limit, it keeps its place.
func TestPassEndsRefunds(t *testing.T) {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1_000_000, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	memory := store.NewMemory(1000)
	var refunded []*store.Request
	policy := &Policy{MaxDelay: 1 << 50, MaxPlaces: 100, SingleKey: true, Places: NewPlaces(func(_ any, corrections []store.Correction) {
		for _, c := range corrections {
			refunded = append(refunded, c.Request)
		}
	})}
	requests := make([]*Request, 4)
	for i := range requests {
		requests[i] = &Request{
			Requests: []store.Request{{Zone: "api", Cost: 1, Limits: []store.Limit{store.NewLimit("api", "", limit)}}},
			Zones:    []Zone{{Policy: policy}},
		}
		requests[i].Reserve(always)
		if allowed, err := memory.TakeAt(t.Context(), 1, requests[i].Requests); !allowed || err != nil {
			t.Fatal(allowed, err)
		}
		requests[i].Hold(nil)
	}
	requests[0].Abandon()
	requests[2].Pass() // requests[1] waits longer
	if taken, _ := policy.Places.Taken(); taken != 2 {
		t.Errorf("%d places are taken, want 2", taken)
	}
	requests[3].Abandon()
	if len(refunded) != 1 || refunded[0].Outcome.Decisions[0].Receipt != requests[3].Requests[0].Outcome.Decisions[0].Receipt {
		t.Errorf("%d requests were refunded, want the last one only", len(refunded))
	}
	requests[1].Pass()
	policy.wantEmpty(t)
	if len(refunded) != 1 {
		t.Errorf("%d requests were refunded, want 1", len(refunded))
	}
}

func always() bool { return true }
