package lines

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const (
	second Micros = 1_000_000
	hour          = 3600 * second
)

// newWaiting returns a request that has places in some zones, and needs a slot in each.
func newWaiting(came Micros, zones ...string) *Request {
	r := &Request{Came: came, Wake: func(Micros) {}}
	for _, zone := range zones {
		r.Requests = append(r.Requests, store.Request{Zone: zone, Key: "k", Slots: &store.Slots{ID: store.SlotsID(zone, ""), Limit: 1}})
		r.Zones = append(r.Zones, Zone{Policy: &Policy{MaxDelay: hour, MaxPlaces: 1, Places: NewPlaces(nil)}})
	}
	r.Reserve(always)
	return r
}

// gaveBack are the corrections that give back the slots of a request.
func (r *Request) gaveBack() []store.Correction { return store.FullRefunds(r.Requests) }

// Only one request of a line asks at a time, also if one that came earlier joins meanwhile.
func TestOneRequestOfALineAsks(t *testing.T) {
	s, now := NewSlots(second, 4*second), hour
	wantWait := func(what string, r *Request, want Micros) {
		t.Helper()
		if next, wait := s.Look(r, now); next != Wait || wait != want {
			t.Errorf("%s: step %d, it waits for %d, want %d", what, next, wait, want)
		}
	}
	wantAsk := func(what string, r *Request) {
		t.Helper()
		if next, _ := s.Look(r, now); next != Ask {
			t.Errorf("%s: step %d, want that it asks", what, next)
		}
	}
	late, early := newWaiting(now, "z"), newWaiting(now-1, "z")
	s.Join(late, 0, now)
	wantAsk("a new line", late)
	s.Join(early, 0, now)
	wantWait("another asks", early, hour-1)
	s.Join(late, 0, now) // has found no slot
	wantWait("the other has asked", early, second)
	wantWait("the second", late, hour)
	now += second
	for _, pause := range []Micros{2 * second, 4 * second, 4 * second} {
		wantAsk("after the pause", early)
		s.Join(early, 0, now)
		wantWait("after a question without a reason", early, pause)
		now += pause
	}
	s.Wake(early.gaveBack())
	wantAsk("a slot was given back", early)
	s.Wake(early.gaveBack())
	s.Join(early, 0, now)
	wantAsk("a slot was given back while it asked", early)
	early.Requests[0].Outcome.Slots.InFlight = 1 // the last slot
	if next, _ := s.Answered(early, true, now); next != Decided {
		t.Errorf("step %d after the request was allowed", next)
	}
	wantWait("the first has passed", late, second)
	now += second
	wantAsk("after the pause", late)
	s.Join(late, 0, now)
	wantWait("the pauses begin anew", late, second)
	s.Wake(newWaiting(now, "other").gaveBack())
	wantWait("a slot of another zone was given back", late, second)
	s.Wake(late.gaveBack())
	wantAsk("another slot was given back", late)
	s.Leave(late, now)
	wantNobody(t, s)
}

func wantNobody(t *testing.T, s *Slots) {
	t.Helper()
	if requests, lines := s.Waiting(); requests != 0 || lines != 0 {
		t.Errorf("%d requests wait in %d lines, want none", requests, lines)
	}
}

// The next request of a line is woken when the first one leaves, and asks if the first one may have left a
// slot.
func TestNextIsWoken(t *testing.T) {
	for _, test := range []struct {
		name  string
		leave func(s *Slots, r *Request)
		want  Step
	}{
		{"the client leaves while it waits", func(s *Slots, r *Request) { s.Leave(r, hour) }, Wait},
		{"its time is over", func(s *Slots, r *Request) { s.Look(r, 3*hour) }, Wait},
		{"the store fails", func(s *Slots, r *Request) { s.Look(r, hour+second); s.Leave(r, hour+second) }, Ask},
		{"it is denied", func(s *Slots, r *Request) { s.Look(r, hour+second); s.Answered(r, false, hour+second) }, Ask},
		{"it passes, and slots remain", func(s *Slots, r *Request) { s.Look(r, hour+second); s.Answered(r, true, hour+second) }, Ask},
	} {
		s := NewSlots(second, second)
		first, next := newWaiting(hour, "z"), newWaiting(hour+1, "z")
		s.Join(first, 0, hour)
		s.Look(first, hour)
		s.Join(first, 0, hour) // has found no slot, so the next question comes after a pause
		woken := 0
		next.Wake = func(Micros) { woken++ }
		s.Join(next, 0, hour+1)
		test.leave(s, first)
		if step, _ := s.Look(next, hour+2); woken != 1 || step != test.want {
			t.Errorf("%s: the next one was woken %d times, step %d, want %d", test.name, woken, step, test.want)
		}
		s.Leave(next, hour+2)
		wantNobody(t, s)
	}
}

// A request that could ask first leaves the slots to one that came earlier, and waits in its line.
func TestEarlierRequestElsewhere(t *testing.T) {
	s := NewSlots(second, second)
	early, late := newWaiting(hour, "a"), newWaiting(hour+1, "b", "a")
	s.Join(early, 0, hour)
	s.Join(late, 0, hour+1)
	if next, wait := s.Look(late, hour+1); next != Wait || wait != hour || late.Line() != 1 {
		t.Errorf("step %d, %d, in line %d, want that it waits in line 1", next, wait, late.Line())
	}
	if requests, lines := s.Waiting(); requests != 2 || lines != 1 {
		t.Errorf("%d requests wait in %d lines, want 2 in one", requests, lines)
	}
	s.Leave(early, hour+2)
	if next, _ := s.Look(late, hour+2); next != Ask {
		t.Errorf("step %d, want that it asks", next)
	}
	s.Leave(late, hour+2)
	wantNobody(t, s)
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
		s, r := NewSlots(second, second), newWaiting(hour, "a", "b")
		r.Requests[0].Outcome, r.Requests[1].Outcome = noSlot(), allowed()
		test.change(r)
		want, wantZone := Wait, test.want
		if test.want < 0 {
			want, wantZone = Decided, 0
		}
		if next, zone := s.Answered(r, false, test.now); next != want || zone != wantZone {
			t.Errorf("%s: step %d in zone %d, want %d in zone %d", test.name, next, zone, want, wantZone)
		}
	}
}

func noSlot() store.Outcome { return store.Outcome{Verdict: store.Denied} }
func allowed() store.Outcome {
	return store.Outcome{Verdict: store.Allowed, Slots: store.SlotsOutcome{Free: true}}
}

// A newcomer waits behind others, or is denied without asking the store if it can't wait.
func TestNewcomer(t *testing.T) {
	s, waiting := NewSlots(second, second), newWaiting(hour, "a")
	newcomer := newWaiting(hour+1, "b", "a")
	if next, _ := s.Begin(newcomer, hour+1); next != Ask {
		t.Errorf("step %d without a line, want that it asks", next)
	}
	s.Join(waiting, 0, hour)
	if next, zone := s.Begin(newcomer, hour+1); next != Wait || zone != 1 {
		t.Errorf("step %d in zone %d, want that it waits in zone 1", next, zone)
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
