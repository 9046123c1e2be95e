package store

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// A table has the same budgets as a map, also if many names say the same place.
func TestTable(t *testing.T) {
	for _, spread := range []uint64{1, 3, 400} { // how many places the names say
		random := rand.New(rand.NewPCG(spread, 0))
		var got table
		want := make(map[keyhash.Hash]int64)
		draw := func() keyhash.Hash {
			n := random.Uint64N(400)
			return keyhash.Hash{n, (n % spread) * (math.MaxUint64 / spread)}
		}
		for step := range 40_000 {
			name := draw()
			switch place, found := got.find(name); {
			case step%10_000 == 9_999: // most end at once
				asked := make(map[keyhash.Hash]bool)
				got.removeAll(func(b *budget) bool {
					ends := b.a%50 != 0
					if ends && asked[b.name] {
						t.Fatalf("%v is removed twice", b.name)
					}
					asked[b.name] = true
					return ends
				})
				if len(asked) != len(want) {
					t.Fatalf("%d budgets of %d were examined", len(asked), len(want))
				}
				for name, a := range want {
					if a%50 != 0 {
						delete(want, name)
					}
				}
				if most := max(4*len(want), leastPlaces); len(got.places) > most {
					t.Fatalf("%d places for %d budgets", len(got.places), len(want))
				}
			case random.IntN(3) > 0:
				got.put(budget{name: name, a: int64(step)})
				want[name] = int64(step)
			case found:
				got.remove(place)
				delete(want, name)
			}
			if got.used != len(want) {
				t.Fatalf("step %d: %d budgets, want %d", step, got.used, len(want))
			}
			name = draw()
			place, found := got.find(name)
			if a, exists := want[name]; found != exists || found && got.places[place].a != a {
				t.Fatalf("step %d: %v is found: %v, want %v", step, name, found, exists)
			}
		}
	}
}
