package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// expiry is how long a slot of the tests lasts unless it is renewed.
const expiry = 30 * second

// slots is a limit of how many requests are under way.
func slots(t testing.TB, n int64) store.Limit {
	l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "sliding_log", Events: n, Window: expiry})
	if err != nil {
		t.Fatal(err)
	}
	return store.NewSlots("z", "", l)
}

func renewAt(t *testing.T, s Store, now algorithms.Micros, requests []store.Request) {
	t.Helper()
	if err := s.RenewAt(context.Background(), now, requests); err != nil {
		t.Fatalf("renew: %v", err)
	}
}

func testRenew(t *testing.T, s Store) {
	one, two := ask("z", "k", 1, slots(t, 2)), ask("z", "k", 1, slots(t, 2))
	check := func(now algorithms.Micros, want int64) {
		t.Helper()
		r := ask("z", "k", 0, slots(t, 2))
		takeAt(t, s, now, r)
		if got := r[0].Decisions[0].Remaining; got != want {
			t.Errorf("%d remain, want %d", got, want)
		}
	}
	takeAt(t, s, start, one)
	takeAt(t, s, start+second, two)
	before := one[0].Decisions[0]
	renewAt(t, s, start+20*second, one)
	after := one[0].Decisions[0]
	if after.Charged != 1 || after.Receipt == before.Receipt {
		t.Errorf("renewed from %+v to %+v", before, after)
	}
	if after.Receipt = before.Receipt; after != before {
		t.Errorf("renewing makes %+v of %+v", after, before)
	}
	check(start+20*second, 0)
	check(start+31*second, 1) // the other one has expired
	check(start+49_999_999, 1)
	check(start+50*second, 2)

	// What has expired is charged again as far as there is room, and given back.
	renewAt(t, s, start+60*second, append(one, two...))
	check(start+60*second, 0)
	refundAt(t, s, start+61*second, one, 1)
	check(start+61*second, 1)
	refused := ask("z", "k", 2, slots(t, 2))
	takeAt(t, s, start+61*second, refused)
	renewAt(t, s, start+61*second, refused)
	check(start+61*second, 1)
	takeAt(t, s, start+100*second, ask("z", "k", 2, slots(t, 2)))
	renewAt(t, s, start+100*second, two)
	if d := two[0].Decisions[0]; d.Charged != 0 || d.Receipt != (algorithms.Receipt{}) {
		t.Errorf("charged anew without room: %+v", d)
	}
	check(start+100*second, 0)
}

// testRenewSeveral renews many charges in one call, some of the same budget.
func testRenewSeveral(t *testing.T, s Store) {
	for _, q := range Quotas(6, minute) {
		if q.Algorithm == "smooth" { // which gives back only what nothing has followed
			continue
		}
		t.Run(q.Algorithm, func(t *testing.T) {
			limit := Limit(t, "z", q)
			var all []store.Request
			for i := range 6 {
				r := ask("z", fmt.Sprint(i%3), 2, limit)
				if !takeAt(t, s, start, r) {
					t.Fatal("refused")
				}
				all = append(all, r...)
			}
			renewAt(t, s, start, all)
			for i := range all {
				if d := all[i].Decisions[0]; d.Charged != 2 {
					t.Errorf("charge %d was renewed as %+v", i, d)
				}
			}
			refundAt(t, s, start, all[:3], 2)
			for i := range 3 {
				r := ask("z", fmt.Sprint(i), 0, limit)
				takeAt(t, s, start, r)
				if d := r[0].Decisions[0]; d.Remaining != 4 {
					t.Errorf("%+v, want 4 to remain", d)
				}
			}
		})
	}
}

// testFewerSlots lowers a limit while more are taken: nobody loses one, and there is none
// for others until enough are given back. Renewed with a limit that has room, all stay.
func testFewerSlots(t *testing.T, s Store) {
	var held [][]store.Request
	for i := range 5 {
		r := ask("z", "k", 1, slots(t, 5))
		takeAt(t, s, start+algorithms.Micros(i), r)
		held = append(held, r)
	}
	full := func(now algorithms.Micros) {
		t.Helper()
		for range 3 {
			r := ask("z", "k", 1, slots(t, 3))
			if takeAt(t, s, now, r) {
				t.Errorf("allowed while more are taken: %+v", r[0].Decisions[0])
			}
		}
	}
	full(start + second)
	for _, r := range held {
		r[0].Limits = []store.Limit{slots(t, 1000)}
	}
	renewAt(t, s, start+20*second, held[0])
	for _, r := range held[1:] {
		renewAt(t, s, start+20*second, r)
	}
	full(start + 40*second)
	for _, r := range held[:2] {
		refundAt(t, s, start+40*second, r, 1)
		full(start + 40*second)
	}
	refundAt(t, s, start+40*second, held[2], 1)
	if !takeAt(t, s, start+40*second, ask("z", "k", 1, slots(t, 3))) {
		t.Error("refused though 2 of 3 are taken")
	}
	full(start + 40*second)
}

// testFrozenSlots has an instance come back after its slots have expired and others have
// taken them: it is counted again, and there are none for anybody until enough are given
// back.
func testFrozenSlots(t *testing.T, s Store) {
	const n = 3
	hold := func(now algorithms.Micros) (held []store.Request) {
		for range n {
			r := ask("z", "k", 1, slots(t, n))
			if !takeAt(t, s, now, r) {
				t.Fatal("refused though there is room")
			}
			r[0].Limits = []store.Limit{slots(t, 1000)}
			held = append(held, r...)
		}
		return held
	}
	all := hold(start)
	all = append(all, hold(start+31*second)...)
	renewAt(t, s, start+40*second, all)
	for left := len(all); left > 0; left-- {
		r := ask("z", "k", 0, slots(t, n))
		takeAt(t, s, start+41*second, r)
		if want := max(int64(n-left), 0); r[0].Decisions[0].Remaining != want {
			t.Errorf("%d remain with %d requests under way, want %d", r[0].Decisions[0].Remaining, left, want)
		}
		refundAt(t, s, start+41*second, all[left-1:left], 1)
	}
}

// testRenewOwnClock renews as of the store's own time, through all that wraps it.
func testRenewOwnClock(t *testing.T, s Store) {
	ctx := context.Background()
	r := ask("z", "k", 1, slots(t, 1))
	if ok, err := s.Take(ctx, r); !ok || err != nil {
		t.Fatal(ok, err)
	}
	before := r[0].Decisions[0].Receipt
	for r[0].Decisions[0].Receipt == before { // within one microsecond it is the same
		if err := s.Renew(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if after := r[0].Decisions[0]; after.Charged != 1 || after.Receipt.A <= before.A || after.Receipt.Local != before.Local {
		t.Errorf("renewed from %+v to %+v", before, after)
	}
	if ok, err := s.Take(ctx, ask("z", "k", 1, slots(t, 1))); ok || err != nil {
		t.Errorf("taken twice: %v, %v", ok, err)
	}
	if err := s.Refund(ctx, r, 1); err != nil {
		t.Fatal(err)
	}
	fleeting := ask("z", "k", 1, slots(t, 1))
	fleeting[0].Fleeting = true
	if ok, err := s.Take(ctx, fleeting); !ok || err != nil {
		t.Errorf("refused after it was given back: %v, %v", ok, err)
	}
}

// testSlots has instances begin and end requests at random, renew them in time, and be
// killed: never are more under way than there are slots, and what a killed instance held
// is there again once the slots of it have expired.
func testSlots(t *testing.T, s Store) {
	const n = 7
	r := rand.New(rand.NewPCG(1, 2))
	limit, roomy := slots(t, n), slots(t, 1000)
	type instance struct {
		held    [][]store.Request
		renewed algorithms.Micros
	}
	instances := make([]instance, 3)
	type lost struct {
		slots int
		until algorithms.Micros
	}
	var killed []lost
	now, refused, peak := algorithms.Micros(start), 0, 0
	for range 1500 {
		now += r.Int64N(second)
		inFlight, missing := 0, 0
		for i := range instances {
			in := &instances[i]
			if now-in.renewed >= expiry/3 {
				in.renewed = now
				var all []store.Request
				for _, h := range in.held {
					all = append(all, h...) // their decisions are shared
				}
				renewAt(t, s, now, all)
			}
			inFlight += len(in.held)
		}
		for _, l := range killed {
			if l.until > now {
				missing += l.slots
			}
		}
		in := &instances[r.IntN(len(instances))]
		switch dice := r.IntN(100); {
		case dice == 0: // it is killed: what it renewed last lasts longest
			killed = append(killed, lost{len(in.held), now + expiry})
			in.held = nil
		case dice < 40 && len(in.held) > 0:
			i := r.IntN(len(in.held))
			refundAt(t, s, now, in.held[i], 1)
			in.held = append(in.held[:i], in.held[i+1:]...)
		default:
			r := ask("z", "k", 1, limit)
			allowed := takeAt(t, s, now, r)
			switch {
			case allowed && inFlight >= n:
				t.Fatalf("%d requests are under way, and another one passes", inFlight)
			case !allowed && inFlight+missing < n:
				t.Fatalf("refused while %d are under way and %d slots may still be lost", inFlight, missing)
			case !allowed:
				refused++
			default:
				peak = max(peak, inFlight+1)
				r[0].Limits = []store.Limit{roomy}
				in.held = append(in.held, r)
			}
		}
	}
	if refused == 0 || peak != n || len(killed) == 0 {
		t.Errorf("%d refused, at most %d under way, %d killed: the test tests too little", refused, peak, len(killed))
	}
}
