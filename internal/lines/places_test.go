package lines

import (
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// A key that sends any number of requests keeps no other key from waiting: the last free place goes to
// a key that has none. So it takes more than the logarithm of the places in keys to fill them. As
// requests leave, the keys get equal shares.
func TestPlacesUnderFlood(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(50)) {
		random := rand.New(rand.NewPCG(seed, 16))
		places := int64(1) << (1 + random.IntN(9))
		p := &DelayPolicy{MaxPlaces: places, Places: NewPlaces(nil)}
		q, keys := p.Places, []string{"flood", "b", "c"}[:1+random.IntN(3)]
		has := func(key string) int64 { return q.byKey[key].taken }
		for step := range 20 * places {
			key := keys[0]
			if random.IntN(10) == 0 {
				key = keys[random.IntN(len(keys))]
			}
			for p.reserve(key, 0) { // as many as it gets
			}
			if free, want := places-q.taken, places>>len(keys); step > 0 && free < want {
				t.Fatalf("seed %d: %d of %d places are free while %d keys want more, want at least %d", seed, free, places, len(keys), want)
			}
			if !p.reserve("newcomer", 0) && places>>len(keys) > 0 {
				t.Fatalf("seed %d: a newcomer finds none of %d places beside %v", seed, places, q.byKey)
			}
			for has("newcomer") > 0 {
				q.release("newcomer", 0)
			}
			if key := keys[random.IntN(len(keys))]; has(key) > 0 {
				q.release(key, 0)
			}
			p.check(t)
		}
		for _, key := range keys {
			for has(key) > 0 {
				q.release(key, 0)
			}
		}
		p.wantEmpty(t)
	}
}

// check checks what holds for places at any time.
func (o *DelayPolicy) check(t *testing.T) {
	t.Helper()
	p, sum := o.Places, int64(0)
	for key, k := range p.byKey {
		sum += k.taken
		if k.taken <= 0 {
			t.Errorf("key %s has %d places", key, k.taken)
		}
	}
	if sum != p.taken || sum > o.MaxPlaces {
		t.Errorf("%d places are taken, keys have %d, want at most %d", p.taken, sum, o.MaxPlaces)
	}
}

func (o *DelayPolicy) wantEmpty(t *testing.T) {
	t.Helper()
	if places, keys := o.Places.Taken(); places != 0 || keys != 0 {
		t.Errorf("%d places are taken, by %v, want none", places, o.Places.byKey)
	}
}
