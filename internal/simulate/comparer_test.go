package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// randomOutcomes returns the outcomes of requests with numbers from 0 in one configuration.
func randomOutcomes(random *rand.Rand, zones int, clients []string) (all []*Decided) {
	for number, client := range clients {
		d := &Decided{Visit: &Visit{Number: int64(number), Client: client}}
		for zone := range zones {
			if random.IntN(4) == 0 {
				z := DecidedZone{ZoneVisit: &ZoneVisit{Zone: zone}, Denied: random.IntN(2) == 0, Shadow: random.IntN(3) == 0}
				d.Denied = d.Denied || z.Denied && !z.Shadow
				d.Zones = append(d.Zones, z)
			}
		}
		all = append(all, d)
	}
	return all
}

// reorder lets some requests be decided later, as those that wait for a slot.
func reorder(random *rand.Rand, all []*Decided) (reordered []*Decided) {
	at := make(map[*Decided]int)
	for i, d := range all {
		if at[d] = i; random.IntN(5) == 0 {
			at[d] += random.IntN(100)
		}
	}
	return slices.SortedStableFunc(slices.Values(all), func(a, b *Decided) int { return cmp.Compare(at[a], at[b]) })
}

// modelChanges returns the clients with most requests that only one configuration denies. Of two clients
// with equal counts, the one whose outcome changed first is the first.
func modelChanges(c *reportConfiguration, decided, other []*Decided, order []int64) (requests, clients int64, top []report.ClientChange) {
	top = []report.ClientChange{}
	index := make(map[string]int)
	var zoneSets []map[int]bool
	for _, number := range order {
		d := decided[number]
		if !d.Denied || other[number].Denied {
			continue
		}
		requests++
		i, ok := index[d.Client]
		if !ok {
			if int64(len(top)) == c.maxKeys {
				continue
			}
			i = len(top)
			index[d.Client] = i
			top = append(top, report.ClientChange{Client: d.Client, Zones: []string{}})
			zoneSets = append(zoneSets, make(map[int]bool))
		}
		top[i].Requests++
		for _, z := range d.Zones {
			if z.Denied && !z.Shadow {
				zoneSets[i][z.Zone] = true
			}
		}
	}
	for i := range top {
		for zone := range c.zones {
			if zoneSets[i][zone] {
				top[i].Zones = append(top[i].Zones, c.zones[zone].Name)
			}
		}
	}
	clients = int64(len(top))
	slices.SortStableFunc(top, func(a, b report.ClientChange) int { return cmp.Compare(b.Requests, a.Requests) })
	return requests, clients, top[:min(len(top), 20)]
}

// The comparison is that of a model, although the two configurations decide in different orders.
func TestComparison(t *testing.T) {
	for range seedtest.Cases(t, 150) {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		var configurations [2]*reportConfiguration
		maxKeys := 1 + random.Int64N(60)
		for i := range configurations {
			configurations[i] = &reportConfiguration{maxKeys: maxKeys}
			for zone := range random.IntN(100) { // more than one word of a set
				configurations[i].zones = append(configurations[i].zones, Zone{Name: fmt.Sprint(i, " ", zone)})
			}
		}
		var clients []string
		for range random.IntN(500) {
			clients = append(clients, fmt.Sprint("client ", random.IntN(1+random.IntN(100))))
		}
		first := randomOutcomes(random, len(configurations[0].zones), clients)
		second := randomOutcomes(random, len(configurations[1].zones), clients)

		c := NewComparer(configurations[0], configurations[1])
		early, late := reorder(random, first), reorder(random, second)
		var order []int64 // in which both outcomes of a request are known
		seen := make(map[int64]int)
		see := func(o Observer, d *Decided) {
			o.Observe(d)
			if seen[d.Number]++; seen[d.Number] == 2 {
				order = append(order, d.Number)
			}
		}
		for len(early)+len(late) > 0 {
			if len(late) == 0 || len(early) > 0 && random.IntN(2) == 0 {
				see(c.First(), early[0])
				early = early[1:]
			} else {
				see(c.Second(), late[0])
				late = late[1:]
			}
		}
		want := &report.Comparison{}
		want.NoMoreDenied, want.ClientCountNoMoreDenied, want.ClientsNoMoreDenied = modelChanges(configurations[0], first, second, order)
		want.NewlyDenied, want.ClientCountNewlyDenied, want.ClientsNewlyDenied = modelChanges(configurations[1], second, first, order)
		for i := range first {
			if first[i].Denied && second[i].Denied {
				want.DeniedByBoth++
			}
		}
		got := c.Report()
		for i, list := range [][]report.ClientChange{got.ClientsNoMoreDenied, got.ClientsNewlyDenied} {
			for j := range list { // "<client 7 of zone>"
				client, zone, _ := strings.Cut(strings.Trim(list[j].Client, "<>"), " of ")
				if list[j].Client = client; !slices.Contains(list[j].Zones, zone) {
					t.Errorf("seed %d: %s is shown as configuration %d shows keys of zone %q, want one of %q", seed, client, i, zone, list[j].Zones)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %s", seed, firstDifference(t, got, want))
		}
		if len(c.pending) > 0 {
			t.Fatalf("seed %d: %d outcomes are left", seed, len(c.pending))
		}
	}
}
