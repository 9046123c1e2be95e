package algorithms

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// banned is a zone with one limit, one event a day, and a ban.
type banned struct {
	zone ZoneRequest
	now  Micros
}

func newBanned(t *testing.T, b Ban) *banned {
	t.Helper()
	errtest.None(t, b.Check())
	limit := mustLimit(t, Quota{Algorithm: "fixed_window", Events: 1, Window: 10_000 * day})
	return &banned{now: 1_763_640_000 * second, zone: ZoneRequest{
		Cost: 1, Checks: []Check{{Limit: limit, State: new(State)}}, Ban: &BanCheck{Ban: &b, State: new(State)},
	}}
}

// take takes after a while, and returns whether a ban stands, when it ends and how long
// something is remembered.
func (z *banned) take(after Micros, others ...ZoneRequest) (stood bool, rest, reset Micros) {
	z.now += after
	Take(append([]ZoneRequest{z.zone}, others...), z.now)
	d := z.zone.Ban.Decision
	if d.Began != (!d.Stands && d.EndsAfter > 0) {
		panic(fmt.Sprintf("%+v: a ban neither stood nor began", d))
	}
	return d.Stands, d.EndsAfter, d.ResetAfter
}

func (z *banned) state() State { return *z.zone.Ban.State }

func TestBanTimeline(t *testing.T) {
	const hour, half, ms = 60 * minute, 30 * minute, millisecond
	type step struct {
		after Micros
		stood bool
		rest  Micros
	}
	for _, test := range []struct {
		name  string
		ban   Ban
		steps []step
	}{
		{"after three in a window", Ban{3, minute, hour, hour}, []step{
			{0, false, 0},
			{0, false, 0},
			{minute - 1, false, 0}, // the second
			{1, false, 0},          // the first of another window
			{minute - 2, false, 0},
			{1, false, hour},
			{hour, false, 0}, // those before the ban don't count
			{0, false, 0},
			{0, false, hour},
		}},
		{"the clock steps back", Ban{2, minute, hour, 8 * hour}, []step{
			{0, false, 0},
			{0, false, 0},
			{-ms, false, hour},
			{-ms, true, hour + ms}, // by as much longer
			{hour + ms - 1, true, 1},
			{1, false, 0},
			{0, false, 2 * hour},
		}},
		{"the clock steps back by more than a second", Ban{2, minute, hour, 8 * hour}, []step{
			{0, false, 0},
			{0, false, 0},
			{0, false, hour},
			{half, true, half},
			{-half - second, true, hour + second}, // a second before it began
			{-1, true, hour},
			{half, true, half}, // the step is saved
			{half, false, 0},
			{-hour - half, false, 2 * hour}, // the denial before counts, too
			{2*hour - 1, true, 1},
			{1, false, 0},
		}},
	} {
		z := newBanned(t, test.ban)
		for i, step := range test.steps {
			stood, rest, _ := z.take(step.after)
			if stood != step.stood || rest != step.rest {
				t.Errorf("%s: step %d: stood %v, ends in %d; want %v, %d", test.name, i, stood, rest, step.stood, step.rest)
			}
		}
	}
}

// Random bans keep their promises. The right number of denials begins a ban, which lasts exactly as
// long as it says. After reset after nothing is remembered.
func TestBanLaws(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(2000)) {
		r := rand.New(rand.NewPCG(seed, 3))
		b := Ban{After: 1 + r.Int64N(4), Window: 1 + r.Int64N(minute), Duration: 1 + r.Int64N(minute)}
		b.Max = b.Duration * (1 + r.Int64N(20))
		z := newBanned(t, b)
		z.take(0)
		length := b.Duration
		for range 8 {
			for n := range b.After {
				before := z.state()
				z.zone.Cost = 0 // a peek
				if stood, rest, _ := z.take(0); stood || rest != 0 || z.state() != before {
					t.Fatalf("seed %d: %+v: a peek after %d denials: %v %d", seed, b, n, stood, rest)
				}
				z.zone.Cost = 1
				stood, rest, _ := z.take(0)
				if want := n == b.After-1; stood || (rest > 0) != want || want && rest != length {
					t.Fatalf("seed %d: %+v: denial %d of %d: ends in %d, want %d", seed, b, n+1, b.After, rest, length)
				}
			}
			stands := z.state()
			for _, at := range []Micros{0, r.Int64N(length), length - 1} {
				for _, mode := range []Mode{Binary, Nary, Uniform, Force} {
					z.zone.Mode, z.zone.Cost = mode, r.Int64N(3)
					limit := *z.zone.Checks[0].State
					if stood, rest, _ := z.take(at); !stood || rest != length-at || *z.zone.Checks[0].State != limit || z.state() != stands {
						t.Fatalf("seed %d: %+v: %v cost %d after %d of %d: stood %v, ends in %d, or something was written",
							seed, b, mode, z.zone.Cost, at, length, stood, rest)
					}
					z.now -= at
				}
			}
			z.zone.Mode, z.zone.Cost = Binary, 1
			z.now += length
			if length = min(2*length, b.Max); r.IntN(3) == 0 {
				z.zone.Cost = 0
				_, _, reset := z.take(0)
				z.zone.Cost = 1
				if reset != b.Max {
					t.Fatalf("seed %d: %+v: after a ban it is remembered for %d", seed, b, reset)
				}
				early := r.Int64N(2)
				z.now += reset - early
				if early == 0 {
					length = b.Duration
				}
			}
		}
	}
}

// Only what the zone's own limits deny counts, shadows and all modes alike.
func TestBanCountsItsOwnRefusals(t *testing.T) {
	z := newBanned(t, Ban{After: 1, Window: minute, Duration: minute, Max: minute})
	full := newBanned(t, Ban{After: 1, Window: minute, Duration: minute, Max: minute})
	full.take(0)
	full.zone.Ban = nil
	for _, mode := range []Mode{Binary, Nary, Uniform, Force} {
		*z.zone.Checks[0].State, z.zone.Mode = State{}, mode
		if _, rest, reset := z.take(0, full.zone); rest != 0 || reset != 0 {
			t.Errorf("%v: what another zone denies counts", mode)
		}
	}
	*z.zone.Checks[0].State, z.zone.Mode, z.zone.Shadow = State{}, Binary, true
	z.take(0)
	if _, rest, _ := z.take(0); rest != minute {
		t.Errorf("what a shadow would deny doesn't count: %d", rest)
	}
	if r := []ZoneRequest{z.zone}; !Take(r, z.now) || !z.zone.Ban.Decision.Stands || z.zone.Ban.Decision.EndsAfter != minute {
		t.Errorf("in shadow mode: ban %+v, want one that is reported and denies nothing", z.zone.Ban.Decision)
	}
}

// A ban holds nobody back, and counts nothing while requests can be held.
func TestBanAndDelay(t *testing.T) {
	z := newBanned(t, Ban{After: 1, Window: minute, Duration: minute, Max: minute})
	z.zone.Checks[0].Limit = mustLimit(t, Quota{Algorithm: "gcra", Events: 1, Window: second})
	z.zone.MaxWait = second
	z.take(0)
	if _, rest, _ := z.take(0); rest != 0 {
		t.Error("a request that is held counts as denied")
	}
	if _, rest, _ := z.take(0); rest != minute {
		t.Errorf("a request that would be held too long: the ban ends in %d", rest)
	}
	if stood, rest, _ := z.take(minute - 1); !stood || rest != 1 {
		t.Errorf("1 µs before the end: stood %v, ends in %d, though requests may be held for a second", stood, rest)
	}
}

// Lengths stay exact after any number of bans.
func TestBanManyTimes(t *testing.T) {
	z := newBanned(t, Ban{After: 1, Window: minute, Duration: 1, Max: maxSpan / 2})
	z.take(0)
	want := Micros(1)
	for n := range 200 {
		z.zone.Ban.State.B = z.now // it has ended
		if _, rest, _ := z.take(0); rest != want {
			t.Fatalf("ban %d ends in %d, want %d", n+1, rest, want)
		}
		want = min(2*want, maxSpan/2)
	}
}

func TestBanCheck(t *testing.T) {
	for _, good := range []Ban{{1, 1, 1, 1}, {1<<31 - 1, maxSpan, maxSpan / 2, maxSpan / 2}} {
		errtest.Report(t, good.Check(), good)
	}
	for _, b := range []Ban{
		{},
		{-1, 1, 1, 1},
		{1 << 31, 1, 1, 1},
		{1, 0, 1, 1},
		{1, maxSpan + 1, 1, 1},
		{1, 1, 0, 1},
		{1, 1, 2, 1},
		{1, 1, 1, maxSpan/2 + 1},
		{1, 1, maxSpan/2 + 1, maxSpan/2 + 1},
	} {
		if err := b.Check(); err == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
	if _, err := Lookup("ban"); err == nil {
		t.Error("a ban can be configured as a limit")
	}
}

// A list shows the bans that deny requests, and their ends, also when the clock was set back.
func TestStandingBanAgrees(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 8))
	stood, steppedBack := 0, 0
	for range seedtest.Cases(t, 1500) {
		b := &Ban{After: 1 + random.Int64N(2), Window: 10_000_000, Duration: 1 + random.Int64N(20_000_000), Max: 40_000_000}
		s, now := new(State), Micros(1_000_000_000)
		for range 6 {
			before := now
			now += random.Int64N(30_000_000) - 10_000_000
			listed, ok := s.StandingBan(now)
			check := BanCheck{Ban: b, State: s}
			limit := mustLimit(t, Quota{Algorithm: "gcra", Events: 1, Window: 1})
			// The cost is more than the burst, so the limit denies the request.
			Take([]ZoneRequest{{
				Cost: 5, Ban: &check, Checks: []Check{{Limit: limit, State: new(State)}},
			}}, now)
			d := check.Decision
			if ok != d.Stands || ok && listed.EndsAfter != d.EndsAfter {
				t.Fatalf("%+v, %d µs later: listed %v %+v, decided %+v", b, now-before, ok, listed, d)
			}
			if ok {
				stood++
				if now < before-1_000_000 {
					steppedBack++
				}
			}
		}
	}
	if stood < 100 || steppedBack < 100 {
		t.Errorf("%d bans stood, %d of them after a step back", stood, steppedBack)
	}
}
