package wire_test

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// FuzzKey: the name of a budget is printable, holds exactly one pair of braces
// with the encoded key in it, and is another one for any other key.
func FuzzKey(f *testing.F) {
	long := strings.Repeat("x", 200)
	for _, pair := range [][2]string{
		{"", "%"},
		{"a", "b"},
		{"{", "%7B"},
		{"%7B", "%7b"},
		{"}:z:{", "a"},
		{"\x00", "%00"},
		{"\n", "%0A"},
		{"日", "%E6%97%A5"},
		{long, long + "x"},
		{long, "%#"},
		{strings.Repeat("x", 1025), strings.Repeat("x", 1026)},
		{"%#", "#"},
		{"%$", "$"},
		{" ", "%20"},
	} {
		f.Add(pair[0], pair[1])
	}
	const longest = 128
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, names := range []wire.Names{{Prefix: "p"}, {Prefix: "p", Secret: "secret"}} {
			got, other := names.Name(a, "zone {x}:1abc"), names.Name(b, "zone {x}:1abc")
			tag, rest, found := strings.Cut(strings.TrimPrefix(got, "p:{"), "}")
			if !found || !strings.HasPrefix(got, "p:{") || tag == "" || strings.ContainsAny(tag, "{}") || rest != ":zone {x}:1abc" {
				t.Fatalf("key %q is named %q", a, got)
			}
			for _, c := range []byte(tag) {
				if c < ' ' || c > '~' {
					t.Fatalf("key %q is named %q", a, got)
				}
			}
			if len(tag) > 3*longest {
				t.Fatalf("key of %d bytes has a name of %d", len(a), len(tag))
			}
			if (a == b) != (got == other) {
				t.Fatalf("keys %q and %q are named %q and %q", a, b, got, other)
			}
			if short := names.ShortKey(a); names.Name(short, "zone {x}:1abc") != got || len(short) > 1100 {
				t.Fatalf("key %q has another name, or is long, when it is short: %q", a, short)
			}
			if names.HashSlot(a) != wire.HashSlotOfName(got) || names.HashSlot(a) != wire.HashSlotOf([]byte(tag)) {
				t.Fatalf("key %q is in slot %d, its name in %d", a, names.HashSlot(a), wire.HashSlotOfName(got))
			}
		}
	})
}

// reply writes replies as the script does.
type reply []byte

func (r reply) bytes(b ...byte) reply { return append(r, b...) }

func (r reply) numbers(numbers ...float64) reply {
	for _, n := range numbers {
		r = binary.LittleEndian.AppendUint64(r, math.Float64bits(n))
	}
	return r
}

func (r reply) text(s string) reply {
	return append(binary.LittleEndian.AppendUint32(r, uint32(len(s))), s...)
}

// fuzzed returns two zones, of which one has all that a zone can have.
func fuzzed(t testing.TB) []store.ZoneRequest {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "smooth", Events: 5, Window: 1000})
	return []store.ZoneRequest{
		{
			Zone: "z", Override: new(store.Override), Limits: []store.Limit{limit, limit},
			Slots: &store.Slots{ID: "s", Limit: 1}, Ban: &store.Ban{ID: "b"},
		},
		{Zone: "y", Limits: []store.Limit{limit}, Shadow: true},
	}
}

// wholeReply is one to a take of fuzzed, a refund and a set.
func wholeReply() reply {
	r := reply{}.numbers(9).bytes(0, 1)
	for _, room := range []byte{1, 2} {
		r = r.bytes(room).numbers(0, 1, 209, 0, 9) // the wait, the charge, and three numbers of the balance
	}
	r = r.bytes(1).numbers(3, 4).bytes(0, 1).numbers(60)
	r = r.bytes(0).numbers(9, 0, 1009, 0, 9)
	return r.bytes(1).bytes(1).numbers(3)
}

// FuzzReply: whatever a reply holds, reading it ends in outcomes that are in range, or in an
// error.
func FuzzReply(f *testing.F) {
	whole := wholeReply()
	f.Add([]byte(whole))
	f.Add([]byte{})
	f.Add([]byte(whole[:9]))
	f.Add([]byte(append(whole, 0)))
	f.Add([]byte(reply{}.numbers(9).bytes(1)))
	f.Add([]byte(reply{}.numbers(9).bytes(0, 0).text("an error").bytes(0).text("").bytes(0).text("another")))
	f.Add([]byte(reply{}.numbers(9).bytes(0, 2).text("another").bytes(1, 1).numbers(1)))
	f.Add([]byte(reply{}.numbers(9).bytes(0, 2, 255, 255, 255, 255)))
	for _, n := range []float64{-1, 0.5, math.NaN(), math.Inf(1), 1 << 54, 1 << 63, math.Copysign(0, -1)} {
		for at := 0; at < len(whole)-8; at += 5 {
			r := append(reply(nil), whole...)
			copy(r[at:], reply{}.numbers(n))
			f.Add([]byte(r))
		}
	}
	inRange := func(t *testing.T, numbers ...int64) {
		for _, n := range numbers {
			if n < 0 || n > int64(algorithms.Forever) {
				t.Fatalf("number %d", n)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := wiretest.ReadReply(string(data))
		if err != nil {
			return
		}
		inRange(t, r.Now)
		requests := fuzzed(t)
		allowed, found, failed := r.Take(requests, nil)
		if allowed && failed != nil {
			t.Fatalf("allowed, and failed with %v", failed)
		}
		_, refund := r.Refund(false)
		had, set := r.SetSlots()
		inRange(t, had)
		if err := r.End(); err == nil && failed == nil && refund == nil && set == nil && len(data) != len(whole) {
			t.Fatalf("accepted %x", data)
		}
		if failed != nil {
			return
		}
		inRange(t, found...)
		if len(found) != 1 {
			t.Fatalf("found %d", found)
		}
		all := true
		for i, q := range requests {
			o := q.Outcome
			if len(o.Decisions) != len(q.Limits) {
				t.Fatalf("decisions %+v", o.Decisions)
			}
			room := o.Slots.Free && !o.Ban.Stands
			for _, d := range o.Decisions {
				inRange(t, d.Charged, d.Receipt.A, d.Receipt.B, d.Receipt.At, d.Remaining, d.MoreAfter, d.RetryAfter, d.ResetAfter, d.Wait)
				room = room && d.Allowed
			}
			inRange(t, o.Slots.InFlight, o.Ban.EndsAfter)
			if room != (o.Verdict == store.Allowed) || o.Verdict == store.NotAsked || o.Ban.Stands != (o.Verdict == store.Banned) {
				t.Fatalf("zone %d: %+v", i, o)
			}
			all = all && (room || q.Shadow)
		}
		if allowed != all {
			t.Fatalf("allowed is %v with %+v", allowed, requests)
		}
		if taken := requests[0].Outcome.Slots.Taken; taken != allowed || requests[1].Outcome.Slots.Taken {
			t.Fatalf("allowed is %v and a slot taken %v", allowed, taken)
		}
	})
}

// A number that no budget gives fails its own operation. The operations behind it are read as
// always.
func TestForeignNumbers(t *testing.T) {
	whole := wholeReply()
	numbers := []int{11, 19, 27, 35, 43} // of the first limit
	for _, at := range append(numbers, 100, 108, 118, 127) {
		for _, bad := range []float64{-1, -1 << 63, 1<<53 + 2, 0.5, math.NaN(), math.Inf(1)} {
			data := append(reply(nil), whole...)
			copy(data[at:], reply{}.numbers(bad))
			r, err := wiretest.ReadReply(string(data))
			errtest.None(t, err)
			allowed, _, failed := r.Take(fuzzed(t), nil)
			_, isForeign := failed.(wire.ScriptError)
			if allowed || !isForeign {
				t.Errorf("number at %d is %v: allowed %v, fails with %v", at, bad, allowed, failed)
			}
			errtest.Report(t, errtest.Of(r.Refund(false)), "the refund, with", bad, "at", at)
			if had, err := r.SetSlots(); had != 3 || err != nil {
				t.Errorf("number at %d is %v: the set: %d, %v", at, bad, had, err)
			}
			errtest.Report(t, r.End(), "the reply, with", bad, "at", at)
		}
	}
	for _, bad := range []float64{-1, 0.5, math.NaN(), 1 << 54} { // no reply of ours
		if _, err := wiretest.ReadReply(string(reply{}.numbers(bad).bytes(0))); err == nil {
			t.Errorf("a reply of the instant %v is one", bad)
		}
	}
	if _, err := wiretest.ReadReply(string(reply{}.numbers(9).bytes(2))); err == nil {
		t.Error("a reply that is neither late nor not is one")
	}
	// Every reply that ends early or continues is wrong.
	for size := range len(whole) {
		r, err := wiretest.ReadReply(string(whole[:size]))
		if err == nil {
			_, _, _ = r.Take(fuzzed(t), nil)
			_, _ = r.Refund(false)
			_, _ = r.SetSlots()
			err = r.End()
		}
		if _, is := err.(wire.ReplyError); !is {
			t.Errorf("a reply of %d bytes of %d: %v", size, len(whole), err)
		}
	}
}
