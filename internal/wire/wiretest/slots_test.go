package wiretest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var slotsInstances = [3]algorithms.Instance{{1}, {2, 255}, {15: 3}}

// A timeline of one key and three instances; times in seconds, the expiry 30.
func TestSlots(t *testing.T) {
	const second, expiry = 1_000_000, algorithms.SlotsExpiry
	var stored []byte
	for _, step := range []struct {
		at       algorithms.Micros
		instance int
		set      int64 // -1: take, the limit being 3
		want     string
		state    string
	}{
		{at: 0, instance: 0, set: -1, want: "free, found 0, total 1", state: "0:1@30"},
		{at: 1, instance: 0, set: -1, want: "free, found 1, total 2", state: "0:2@31"},
		{at: 2, instance: 1, set: -1, want: "free, found 0, total 3", state: "0:2@31 1:1@32"},
		{at: 3, instance: 1, set: -1, want: "full, found 1, total 3", state: "0:2@31 1:1@32"},
		{at: 4, instance: 0, set: 1, want: "found 2", state: "0:1@34 1:1@32"},
		{at: 5, instance: 2, set: 0, want: "found 0", state: "0:1@34 1:1@32"},
		{at: 6, instance: 2, set: 7, want: "found 0", state: "0:1@34 1:1@32 2:7@36"},
		{at: 7, instance: 2, set: -1, want: "full, found 7, total 9", state: "0:1@34 1:1@32 2:7@36"},
		{at: 8, instance: 1, set: 0, want: "found 1", state: "0:1@34 2:7@36"},
		{at: 34, instance: 1, set: -1, want: "full, found 0, total 7", state: "2:7@36"},
		{at: 36, instance: 1, set: -1, want: "free, found 0, total 1", state: "1:1@66"},
		{at: 20, instance: 0, set: -1, want: "free, found 0, total 2", state: "1:1@50 0:1@50"}, // the clock is set back
		{at: 49, instance: 1, set: 0, want: "found 1", state: "0:1@50"},
		{at: 50, instance: 1, set: 0, want: "found 0", state: ""},
	} {
		now, instance := step.at*second, slotsInstances[step.instance]
		s, err := wiretest.ReadSlots(nil, stored)
		if err != nil {
			t.Fatal(err)
		}
		s, _ = s.Living(now, expiry)
		got := fmt.Sprintf("found %d", s.Of(instance))
		if step.set < 0 {
			check := &algorithms.SlotsCheck{Limit: 3, InFlight: s.InFlight()}
			if found := s.Of(instance); check.Free() {
				s = s.Set(instance, found+1, now+expiry)
				got = "free, " + got
			} else {
				got = "full, " + got
			}
			got += fmt.Sprintf(", total %d", s.InFlight())
		} else {
			s = s.Set(instance, step.set, now+expiry)
		}
		var state []string
		stored, _ = s.AppendBinary(nil)
		s, _ = wiretest.ReadSlots(nil, stored)
		for _, i := range s {
			state = append(state, fmt.Sprintf("%d:%d@%d", slices.Index(slotsInstances[:], i.Instance), i.Count, i.Expires/second))
		}
		if got != step.want || strings.Join(state, " ") != step.state {
			t.Fatalf("at %d: %s, state %q, want %s, %q", step.at, got, state, step.want, step.state)
		}
	}
}

// A clock that was set back shortens expiries to those of a write now, and only then the state is
// to be stored although nothing else changes.
func TestSlotsSteppedBack(t *testing.T) {
	s := wiretest.Slots{{Count: 1, Expires: 100}, {Count: 2, Expires: 30}, {Count: 3, Expires: 10}}
	living, steppedBack := slices.Clone(s).Living(10, 90)
	if want := s[:2]; steppedBack || !slices.Equal(living, want) {
		t.Errorf("%v, %v, want %v", living, steppedBack, want)
	}
	living, steppedBack = slices.Clone(s).Living(9, 90)
	if want := (wiretest.Slots{{Count: 1, Expires: 99}, s[1], s[2]}); !steppedBack || !slices.Equal(living, want) {
		t.Errorf("%v, %v, want %v", living, steppedBack, want)
	}
	if at := living.Expires(); at != 99 {
		t.Errorf("the last expires at %d, want 99", at)
	}
}

func TestReadSlots(t *testing.T) {
	stored := func(count, expires int64) []byte {
		b, _ := wiretest.Slots{{Count: count, Expires: expires}}.AppendBinary(nil)
		return b
	}
	for _, foreign := range [][]byte{
		make([]byte, 73), make([]byte, 75), stored(-1, 1), stored(algorithms.Forever+1, 1), stored(1, algorithms.Forever+1),
	} {
		if s, err := wiretest.ReadSlots(nil, foreign); err == nil {
			t.Errorf("%x is read as %v", foreign, s)
		}
	}
	if s, err := wiretest.ReadSlots(nil, stored(algorithms.Forever, algorithms.Forever)); err != nil || len(s) != 1 {
		t.Errorf("%v, %v", s, err)
	}
	want := wiretest.Slots{}
	for range 100 {
		want = append(want, wiretest.InstanceSlots{Instance: algorithms.Instance{byte(rand.Uint32())}, Count: 1 + rand.Int64N(1<<31-1), Expires: 1 + rand.Int64N(1<<53), Line: wiretest.Line{
			LineExpires: rand.Int64N(1 << 53), First: rand.Int64N(1 << 53), Behind: rand.Int64N(1 << 16),
			Marks: [4]algorithms.Micros{rand.Int64N(1 << 53), rand.Int64N(1 << 53), 3: rand.Int64N(1 << 53)},
		}})
	}
	b, _ := want.AppendBinary(nil)
	if got, err := wiretest.ReadSlots(nil, b); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

// A request gets a slot if more are free than requests of other instances came before it. Behind the first one of a line only
// quarters are known.
func TestLines(t *testing.T) {
	const now, second = algorithms.Micros(1000_000_000), algorithms.Micros(1_000_000)
	s := wiretest.Slots{}
	long := store.SlotLine{Waited: 10 * second, Waiting: 9, Marks: [4]algorithms.Micros{9 * second, 7 * second, 5 * second, 3 * second}}
	for n, told := range []store.SlotLine{long, {Waited: 4 * second, Waiting: 1}} {
		s, _ = s.Take(slotsInstances[n], told, 0, now, algorithms.SlotsExpiry)
	}
	ahead := func(instance int, waited algorithms.Micros) int64 {
		return s.Check(slotsInstances[instance], 1, now, waited-algorithms.LineSlack).Ahead
	}
	for _, test := range []struct {
		waited algorithms.Micros
		want   int64
	}{
		{11 * second, 0},
		{10 * second, 0},
		{10*second - 1, 1},
		{9 * second, 1},
		{9*second - 1, 3},
		{7 * second, 3},
		{6 * second, 5},
		{4 * second, 7},
		{4*second - 1, 8},
		{3*second - 1, 10},
		{0, 10},
	} {
		if n := ahead(2, test.waited); n != test.want {
			t.Errorf("%d came before one that has waited for %d, want %d", n, test.waited, test.want)
		}
	}
	if own, other := ahead(0, 0), ahead(1, 0); own != 1 || other != 9 {
		t.Errorf("%d and %d are ahead of the lines' own, want 1 and 9", own, other)
	}
	s, _ = s.Take(slotsInstances[0], long, 1, now, algorithms.SlotsExpiry)
	if n := ahead(2, 0); n != 9 {
		t.Errorf("%d are ahead after the first has got a slot, want 9", n)
	}
	if living, _ := slices.Clone(s).Living(now+algorithms.LineExpiry, algorithms.SlotsExpiry); len(living) != 1 || living[0].Line != (wiretest.Line{}) {
		t.Errorf("%+v a second later, want one count and no line", living)
	}
	if s = s.EndLine(slotsInstances[1]); ahead(2, 0) != 8 {
		t.Errorf("%d are ahead after a line has ended, want 8", ahead(2, 0))
	}
}
