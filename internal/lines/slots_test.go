package lines

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const (
	second Micros = 1_000_000
	hour          = 3600 * second
)

func always() bool { return true }

// newWaiting returns a request that has places in some zones, and needs a slot in each.
func newWaiting(came Micros, zones ...string) *Request {
	r := &Request{Came: came, Wake: func(Micros) {}}
	for _, zone := range zones {
		r.Requests = append(r.Requests, store.ZoneRequest{Zone: zone, Key: "k", Slots: &store.Slots{ID: store.SlotsID(zone, ""), Limit: 1}})
		r.Zones = append(r.Zones, ZoneWait{Delay: &DelayPolicy{MaxDelay: hour, MaxPlaces: 1, Places: NewPlaces(nil)}})
	}
	r.Reserve(always)
	return r
}

// A request waits only if it lacks nothing but slots for which it can wait, and if no zone would charge it
// at each decision.
func TestWhoWaits(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(r *Request)
		now    Micros
		want   int // the zone in which it waits; -1: it is denied
	}{
		{"it lacks a slot", func(*Request) {}, hour, 0},
		{"its time is over", func(*Request) {}, 2 * hour, -1},
		{"it has no place", func(r *Request) { r.Zones[0].hasPlace = false }, hour, -1},
		{"it lacks no slot", func(r *Request) { r.Requests[0].Outcome = allowed() }, hour, -1},
		{"it lacks both", func(r *Request) { r.Requests[1].Outcome = noSlot() }, hour, 0},
		{"it can't wait for the other", func(r *Request) {
			r.Requests[1].Outcome, r.Zones[1].hasPlace = noSlot(), false
		}, hour, -1},
		{"a shadow lacks another", func(r *Request) {
			r.Requests[1].Outcome, r.Requests[1].Shadow = noSlot(), true
		}, hour, 0},
		{"only a shadow lacks a slot", func(r *Request) { r.Requests[0].Shadow = true }, hour, -1},
		{"a limit denies it, too", func(r *Request) {
			r.Requests[0].Outcome.Decisions = []algorithms.Decision{{}}
		}, hour, -1},
		{"a limit was not asked", func(r *Request) {
			r.Requests[0].Outcome.Decisions = []algorithms.Decision{{NotAsked: true}}
		}, hour, 0},
		{"it is banned", func(r *Request) { r.Requests[0].Outcome.Verdict = store.Banned }, hour, -1},
		{"denials are charged", func(r *Request) { r.Requests[1].Mode = algorithms.Uniform }, hour, -1},
		{"denials of a shadow are charged", func(r *Request) {
			r.Requests[1].Mode, r.Requests[1].Shadow = algorithms.Uniform, true
		}, hour, 0},
	} {
		s, r := NewSlotLines(second, nil), newWaiting(hour, "a", "b")
		r.Requests[0].Outcome, r.Requests[1].Outcome = noSlot(), allowed()
		test.change(r)
		want, wantZone := Wait, test.want
		if test.want < 0 {
			want = Decided
		}
		if next, need := s.Answered(r, false, test.now); next != want || need != (Need{Zone: wantZone}) {
			t.Errorf("%s: step %d for %+v, want %d in zone %d", test.name, next, need, want, wantZone)
		}
	}
}

func noSlot() store.Outcome { return store.Outcome{Verdict: store.Denied} }
func allowed() store.Outcome {
	return store.Outcome{Verdict: store.Allowed, Slots: store.SlotsOutcome{Free: true}}
}

// A newcomer waits behind others, or is denied without asking the store if it can't wait.
func TestNewcomer(t *testing.T) {
	s, waiting := NewSlotLines(second, nil), newWaiting(hour, "a")
	newcomer := newWaiting(hour+1, "b", "a")
	if next, _ := s.Begin(newcomer, hour+1); next != Ask {
		t.Errorf("step %d without a line, want that it asks", next)
	}
	s.Join(waiting, Need{}, hour)
	if next, need := s.Begin(newcomer, hour+1); next != Wait || need != (Need{Zone: 1}) {
		t.Errorf("step %d for %+v, want that it waits in zone 1", next, need)
	}
	shadow := newWaiting(hour+1, "a")
	shadow.Requests[0].Shadow = true
	if next, _ := s.Begin(shadow, hour+1); next != Ask {
		t.Errorf("a shadow: step %d, want that it asks", next)
	}
	newcomer.Requests[0].Limits = make([]store.Limit, 2)
	newcomer.Zones[1].hasPlace = false
	next, _ := s.Begin(newcomer, hour+1)
	if next != Decided || !newcomer.Requests[1].Denies() || !newcomer.Requests[1].LacksSlot() ||
		newcomer.Requests[1].Outcome.Slots.InFlight != 1 || newcomer.Requests[0].Denies() || newcomer.Requests[0].LacksSlot() {
		t.Errorf("step %d, %+v, want that zone a denies it", next, newcomer.Requests)
	}
	if d := newcomer.Requests[0].Outcome.Decisions; len(d) != 2 || !d[0].NotAsked || !d[1].NotAsked {
		t.Errorf("the limits decided %+v, want that they were not asked", d)
	}
}

// Tenants that a client invents share one place, and leave nothing.
func TestManyTenants(t *testing.T) {
	s, number := NewSlotLines(second, func(string, string, uint64) {}), make(map[uint64]int)
	var requests []*Request
	for n := range uint64(5 * sharedTenants) {
		r := newWaiting(hour, "a")
		r.Requests[0].Tenant = store.Tenant{ID: 2 + n%(3*sharedTenants), Weight: 1}
		s.Begin(r, hour)
		number[r.Requests[0].Tenant.ID]++
		requests = append(requests, r)
	}
	if others := number[store.OtherTenants]; len(number) != sharedTenants+2 || others != 3*sharedTenants-2 {
		t.Errorf("%d tenants have a place, with %d requests of others", len(number), others)
	}
	isFirst := func(r *Request) bool {
		return r.Requests[0].Tenant.ID <= 3 && r.Requests[0].Tenant.ID > store.OtherTenants
	}
	for at := slices.IndexFunc(requests, isFirst); at >= 0; at = slices.IndexFunc(requests, isFirst) {
		requests[at].Release()
		s.Leave(requests[at], hour)
		requests = slices.Delete(requests, at, at+1)
	}
	next := newWaiting(hour, "a")
	next.Requests[0].Tenant = store.Tenant{ID: 1 << 40, Weight: 1}
	if s.Begin(next, hour); next.Requests[0].Tenant.ID != 1<<40 {
		t.Error("no other tenant counts apart after two have left")
	}
	for _, r := range append(requests, next) {
		if r.Release(); r.Requests[0].Tenant.ID%2 == 0 {
			s.Leave(r, hour)
			continue
		}
		r.Requests[0].Outcome.Slots.Taken = true
		s.Answered(r, true, hour)
		s.Wake([]store.Correction{{Request: &r.Requests[0], Leave: true}})
	}
	if len(s.byKey) > 0 || requests[0].Zones[0].Delay.Places.taken != 0 {
		t.Errorf("%v is left", s.byKey)
	}
}

// Of two tenants without a slot, the one is first that has waited longer since it last had one.
func TestTenantThatHadASlot(t *testing.T) {
	for _, order := range [][]Micros{{0, 1, 2}, {2, 1, 0}} {
		s, requests := NewSlotLines(LocalPause, nil), make([]*Request, 3)
		for _, n := range order {
			requests[n] = newWaiting(hour+n, "a")
			requests[n].Requests[0].Tenant = store.Tenant{ID: uint64(2 + n/2), Weight: 1}
			requests[n].Requests[0].Outcome = noSlot()
			s.Begin(requests[n], hour+2)
		}
		requests[0].Requests[0].Outcome.Slots.Taken = true
		s.Answered(requests[0], true, hour+3)
		s.Join(requests[1], Need{}, hour+4)
		s.Join(requests[2], Need{}, hour+4)
		s.Wake([]store.Correction{{Request: &requests[0].Requests[0], Leave: true}})
		for n, want := range map[int]Step{1: Wait, 2: Ask} {
			if next, _ := s.Look(requests[n], hour+5); next != want {
				t.Errorf("request %d: step %d, want %d", n, next, want)
			}
		}
	}
}

// A request that moves to the line of another zone, because somebody there comes before, doesn't move back at once.
func TestMoveToAnotherLine(t *testing.T) {
	s, now := NewSlotLines(SharedPause, func(string, string, uint64) {}), hour
	for n, zones := range [][]string{{"a"}, {"b"}, {"a", "b"}} {
		r := newWaiting(now, zones...)
		for i := range zones {
			r.Requests[i].Tenant, r.Requests[i].Outcome = store.Tenant{ID: uint64(2 + n), Weight: 1}, noSlot()
		}
		s.Begin(r, now)
		s.Join(r, Need{}, now)
		looks := 0
		for _, wait := s.Look(r, now); wait == 0 && n == 2; _, wait = s.Look(r, now) {
			if looks++; looks > 9 {
				t.Fatal("it looks without end")
			}
		}
		s.Answered(r, false, now)
		s.Join(r, Need{}, now)
		now = hour + Micros(n)*second/10
	}
}

// All lines together ask at most 400 times in a second.
func TestSlotLinesAskInTurn(t *testing.T) {
	s := NewSlotLines(SharedPause, func(string, string, uint64) {})
	for n, pause := range map[int]Micros{1: 10_000, 4: 10_000, 5: 12_500, 400: second, 1000: second} {
		var waiting []*Request
		for i := range n {
			r := newWaiting(hour, fmt.Sprint(i))
			s.Join(r, Need{}, hour)
			waiting = append(waiting, r)
		}
		r := waiting[n/2]
		if next, _ := s.Look(r, hour); next != Ask {
			t.Fatalf("step %d, want that a new line asks at once", next)
		}
		r.Requests[0].Outcome = noSlot()
		if next, _ := s.Answered(r, false, hour); next != Wait {
			t.Fatalf("step %d, want that it waits", next)
		}
		if wait := s.Join(r, Need{}, hour); wait != pause {
			t.Errorf("one of %d lines looks after %d µs, want %d", n, wait, pause)
		}
		if next, _ := s.Look(r, hour+min(pause-1, algorithms.LineRenewal+1)); next == Ask {
			t.Errorf("one of %d lines asks before its pause is over", n)
		}
		if next, _ := s.Look(r, hour+second); (next == Ask) != (n <= 400) {
			t.Errorf("one of %d lines: step %d after a second", n, next)
		}
		for _, other := range waiting {
			if other != r {
				s.Leave(other, hour)
			}
		}
		if n > 400 { // the others have ended
			if next, _ := s.Look(r, hour+second); next != Ask {
				t.Errorf("step %d, want that the only line asks", next)
			}
		}
		s.Leave(r, hour+second)
	}
}
