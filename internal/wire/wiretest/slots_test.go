package wiretest_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var slotsInstances = [3]wiretest.Holder{{Instance: algorithms.Instance{1}}, {Instance: algorithms.Instance{2, 255}}, {Instance: algorithms.Instance{6: 3}}}

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
		holder := wiretest.Holder{Instance: algorithms.Instance{byte(rand.Uint32())}, Tenant: store.Tenant{ID: rand.Uint64() >> 8, Weight: rand.Int64N(1 << 16)}}
		want = append(want, wiretest.InstanceSlots{Holder: holder, Count: 1 + rand.Int64N(1<<31-1), Expires: 1 + rand.Int64N(1<<53), Line: wiretest.Line{
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
