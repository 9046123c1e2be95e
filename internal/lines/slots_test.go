package lines

import (
	"fmt"
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
	s, number := NewSlotLines(second, nil), make(map[uint64]int)
	var requests []*Request
	for n := range uint64(5 * MaxTenants) {
		r := newWaiting(hour, "a")
		r.Requests[0].Tenant = store.Tenant{ID: 2 + n%(3*MaxTenants), Weight: 1}
		s.Begin(r, hour)
		number[r.Requests[0].Tenant.ID]++
		requests = append(requests, r)
	}
	if others := number[store.OtherTenants]; len(number) != MaxTenants+1 || others != 3*MaxTenants {
		t.Errorf("%d tenants have a place, with %d requests of others", len(number), others)
	}
	for _, r := range requests {
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

// All lines together ask at most 400 times in a second.
func TestSlotLinesAskInTurn(t *testing.T) {
	s := NewSlotLines(SharedPause, nil)
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
