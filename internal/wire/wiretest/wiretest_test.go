package wiretest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var readNames = wire.Names{Prefix: "p"}

// readLimits has a limit of each algorithm, and those with options.
func readLimits(t testing.TB) (limits []*algorithms.Limit) {
	t.Helper()
	quotas := []algorithms.Quota{
		{Algorithm: "sliding_log", MinInterval: 10},
		{Algorithm: "sliding_log", Buckets: 5},
		{Algorithm: "smooth", WarmUp: 2_000_000},
		{Algorithm: "smooth", Initial: new(int64(5))},
		{Algorithm: "token_bucket", Initial: new(int64(5))},
		{Algorithm: "fixed_window", Align: "clock"},
	}
	for _, a := range algorithms.All() {
		quotas = append(quotas, algorithms.Quota{Algorithm: a.Name})
	}
	for _, q := range quotas {
		q.Events, q.Window = 7, 3_000_000
		if q.Algorithm == "calendar" {
			q.Window, q.Period = 0, "month"
		}
		limits = append(limits, storetest.Limit(t, "z", q).Limit)
	}
	return limits
}

// randomOperation writes an operation, and returns it as it is to be read.
func randomOperation(r *rand.Rand, m *wire.Message, now algorithms.Micros, limits []*algorithms.Limit) Operation {
	budget := func(q *store.ZoneRequest, l store.Limit) Budget {
		text, burst := l.Message(now)
		return Budget{Name: readNames.Name(q.Key, l.ID), Limit: text, Burst: burst, Log: l.Algorithm().IsLog()}
	}
	request := func() store.ZoneRequest {
		q := store.ZoneRequest{Zone: fmt.Sprint("z", r.IntN(3)), Key: fmt.Sprint("key ", r.IntN(3))}
		for range r.IntN(4) {
			l := store.NewLimit(q.Zone, "", limits[r.IntN(len(limits))])
			q.Limits = append(q.Limits, l)
			d := algorithms.Decision{Charged: r.Int64N(3)}
			d.Receipt = algorithms.Receipt{A: r.Int64N(1 << 53), B: r.Int64N(100), At: r.Int64N(1 << 53)}
			q.Outcome.Decisions = append(q.Outcome.Decisions, d)
		}
		return q
	}
	switch r.IntN(5) {
	case 0:
		set := Set{Name: readNames.Name("k", store.SlotsID("z", "")), Tenant: r.Uint64N(3), Count: r.Int64N(1 << 31), EndsLine: r.IntN(2) == 0}
		m.SetSlots(readNames.CountName("k", store.SlotsID("z", ""), set.Tenant), set.Count, set.EndsLine)
		return Operation{Set: &set}
	case 1:
		var refunds []Refund
		for len(refunds) == 0 {
			q, n := request(), 1+r.Int64N(2)
			m.Refund(&q, n, false)
			for i, d := range q.Outcome.Decisions {
				if d.Charged > 0 {
					refunds = append(refunds, Refund{Budget: budget(&q, q.Limits[i]), Receipt: d.Receipt, Events: min(n, d.Charged)})
				}
			}
		}
		return Operation{Refund: refunds}
	case 2:
		q := request()
		q.Mode, q.Shadow, q.MaxWait, q.Slots = algorithms.Nary, true, 5, &store.Slots{ID: "z:c", Limit: 1} // which a charge has no use for
		take := &Take{Overrides: []Override{}, Zones: []Zone{{Mode: algorithms.Settle, Cost: 3, Budgets: []Budget{}}}}
		for _, l := range q.Limits {
			take.Zones[0].Budgets = append(take.Zones[0].Budgets, budget(&q, l))
		}
		m.Charge(&store.Correction{Request: &q, Charge: 3})
		return Operation{Take: take}
	}
	take, requests := &Take{Overrides: []Override{}, Zones: []Zone{}}, []store.ZoneRequest(nil)
	for range r.IntN(4) {
		q := request()
		q.Mode, q.Shadow, q.Cost = algorithms.Mode(r.IntN(4)), r.IntN(2) == 0, r.Int64N(1<<31)
		q.MaxWait = r.Int64N(1 << 50)
		z := Zone{Mode: q.Mode, Shadow: q.Shadow, Cost: q.Cost, MaxWait: q.MaxWait, Budgets: []Budget{}}
		for _, l := range q.Limits {
			z.Budgets = append(z.Budgets, budget(&q, l))
		}
		if r.IntN(2) == 0 {
			q.Slots, q.Peek = &store.Slots{ID: store.SlotsID(q.Zone, ""), Limit: 1 + r.Int64N(1<<31)}, r.IntN(2) == 0
			z.Slots, z.SlotsLimit, z.Peek = readNames.Name(q.Key, q.Slots.ID), q.Slots.Limit, q.Peek
			if r.IntN(2) == 0 {
				q.Tenant = store.Tenant{ID: 1 + r.Uint64N(1<<56-1), Weight: 1 + r.Int64N(store.MaxWeight)}
				z.Tenant = q.Tenant
			}
		}
		if r.IntN(2) == 0 {
			b := &algorithms.Ban{After: 1 + r.Int64N(9), Window: 5_000_000, Duration: 7_000_000, Max: 1 << 40}
			q.Ban = &store.Ban{Ban: b, ID: store.BanID(q.Zone, "")}
			z.BanName, z.Ban = readNames.Name(q.Key, q.Ban.ID), *b
		}
		if r.IntN(2) == 0 {
			q.Override = &store.Override{Text: strings.Repeat("{", r.IntN(300))}
			o := Override{Name: readNames.Name(q.Key, store.OverrideID(q.Zone)), Text: q.Override.Text}
			take.Overrides = append(take.Overrides, o)
		}
		requests, take.Zones = append(requests, q), append(take.Zones, z)
	}
	m.Take(requests)
	return Operation{Take: take}
}

// randomMessage writes a message, and returns it as it is to be read.
func randomMessage(t testing.TB, seed uint64) (*wire.Message, wire.Head, []Operation) {
	t.Helper()
	r, limits := rand.New(rand.NewPCG(seed, 1)), readLimits(t)
	h := wire.Head{Now: r.Int64N(1 << 53), NotAfter: r.Int64N(1 << 53), SlotsExpiry: r.Int64N(1 << 53)}
	for i := range h.Instance {
		h.Instance[i] = byte(r.Uint32())
	}
	m := new(wire.Message)
	m.Reset(readNames, h)
	var operations []Operation
	for range r.IntN(6) {
		operations = append(operations, randomOperation(r, m, h.Now, limits))
	}
	return m, h, operations
}

// ReadMessage reads what a Message has written.
func TestReadMessage(t *testing.T) {
	for seed := range uint64(2000) {
		m, h, want := randomMessage(t, seed)
		head, got, err := ReadMessage(m.AppendKeys(nil), string(m.Argument()))
		if head.NotBefore < h.NotBefore || head.NotAfter > h.NotAfter {
			t.Fatalf("seed %d: %+v, want it within %+v", seed, head, h)
		}
		h.NotBefore, h.NotAfter = head.NotBefore, head.NotAfter // a calendar narrows them
		if err != nil || head != h || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v\n got  %+v %+v\n want %+v %+v", seed, err, head, got, h, want)
		}
		var names []string
		for i := range got {
			names = append(names, got[i].Names()...)
		}
		keys := m.AppendKeys(nil)
		slices.Sort(names)
		if slices.Sort(keys); !slices.Equal(names, keys) {
			t.Fatalf("seed %d: operations with the keys %q, want %q", seed, names, keys)
		}
	}
}

// A message is read with each count at its largest value. With one more it doesn't fit.
func TestLargestCounts(t *testing.T) {
	const largest = 1<<16 - 1
	limit := store.NewLimit("z", "", readLimits(t)[0]) // a log
	take := func(zones, limits int) []store.ZoneRequest {
		requests := make([]store.ZoneRequest, zones)
		requests[0].Limits = slices.Repeat([]store.Limit{limit}, limits)
		return requests
	}
	m := new(wire.Message)
	m.Reset(readNames, wire.Head{})
	m.Take(take(largest+1, 0))
	for name, test := range map[string]struct {
		takes [][]store.ZoneRequest
		fits  bool
	}{
		"zones":          {[][]store.ZoneRequest{take(largest, 0)}, true},
		"limits":         {[][]store.ZoneRequest{take(1, largest)}, true},
		"logs":           {[][]store.ZoneRequest{take(1, largest-1), take(1, 1)}, true},
		"one zone more":  {[][]store.ZoneRequest{take(largest+1, 0)}, false},
		"one limit more": {[][]store.ZoneRequest{take(1, largest+1)}, false},
		"one log more":   {[][]store.ZoneRequest{take(1, largest), take(1, 1)}, false},
	} {
		m.Reset(readNames, wire.Head{}) // forgets what didn't fit
		for _, requests := range test.takes {
			m.Take(requests)
		}
		if m.Fits() != test.fits {
			t.Errorf("%s: fits %v, want %v", name, m.Fits(), test.fits)
		}
		if !test.fits {
			continue
		}
		_, operations, err := ReadMessage(m.AppendKeys(nil), string(m.Argument()))
		if err != nil || len(operations) != len(test.takes) {
			t.Fatalf("%s: %d operations: %v", name, len(operations), err)
		}
		for i, requests := range test.takes {
			if zones := operations[i].Take.Zones; len(zones) != len(requests) || len(zones[0].Budgets) != len(requests[0].Limits) {
				t.Errorf("%s: operation %d has %d zones, %d limits", name, i, len(zones), len(zones[0].Budgets))
			}
		}
	}
}

// A message that lacks a byte or a key, or has one too many, is an error.
func TestReadMessageRefuses(t *testing.T) {
	for seed := range uint64(100) {
		m, _, operations := randomMessage(t, seed)
		keys, argument := m.AppendKeys(nil), string(m.Argument())
		const headSize, operationHead = 8 + 8 + 8 + 7 + 8 + 2 + 4, 1 + 2 + 2 + 4 + 2 + 2 // see operations.lua
		ends := map[int]bool{headSize: true}                                             // without the operations behind
		for at := headSize; at < len(argument); {
			at += operationHead + int((&reader{rest: argument[at+5:]}).uint(4))
			ends[at] = true
		}
		for n := range len(argument) {
			if _, _, err := ReadMessage(keys, argument[:n]); err == nil && (!ends[n] || len(keys) > 0 && n == headSize) {
				t.Fatalf("seed %d: %d of %d bytes are no error", seed, n, len(argument))
			}
		}
		bad := map[string]func() ([]string, string){
			"a byte too many": func() ([]string, string) { return keys, argument + "\x00" },
			"a key too many":  func() ([]string, string) { return append([]string{"p:{k}:z:x"}, keys...), argument },
		}
		if len(keys) > 0 {
			bad["a key too few"] = func() ([]string, string) { return keys[1:], argument }
		}
		if len(operations) > 0 {
			bad["another kind"] = func() ([]string, string) {
				return keys, argument[:headSize] + "\x09" + argument[headSize+1:]
			}
		}
		for name, make := range bad {
			if _, _, err := ReadMessage(make()); err == nil {
				t.Errorf("seed %d: %s is no error", seed, name)
			}
		}
	}
}

// FuzzReadMessage reads anything: it panics never, and each key is read once.
func FuzzReadMessage(f *testing.F) {
	for seed := range uint64(50) {
		m, _, _ := randomMessage(f, seed)
		f.Add(strings.Join(m.AppendKeys(nil), "\n"), m.Argument())
	}
	f.Fuzz(func(t *testing.T, keys string, argument []byte) {
		var names []string
		if keys != "" {
			names = strings.Split(keys, "\n")
		}
		_, operations, err := ReadMessage(names, string(argument))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "redisstore: message ") {
				t.Error(err)
			}
			return
		}
		n := 0
		for i := range operations {
			n += len(operations[i].Names())
			if take := operations[i].Take; take != nil && len(take.Requests(func(Budget) *algorithms.Limit { return nil })) != len(take.Zones) {
				t.Error("other requests than zones")
			}
		}
		if n != len(names) && !slices.Contains(names, "") {
			t.Errorf("%d keys read of %d", n, len(names))
		}
	})
}
