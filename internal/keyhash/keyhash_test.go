package keyhash

import (
	"fmt"
	"strings"
	"testing"
)

func TestSum(t *testing.T) {
	one, other := New(), New()
	seen := make(map[Hash]string)
	for i := range 1000 {
		for _, text := range []string{fmt.Sprint(i), strings.Repeat("x", i+3), fmt.Sprint(strings.Repeat("x", 12_000), i)} {
			h := one.Sum(text)
			if was, known := seen[h]; known && was != text {
				t.Fatalf("%.20q and %.20q have the same hash", was, text)
			}
			seen[h] = text
			if h != one.Sum(strings.Clone(text)) {
				t.Fatalf("%.20q has two hashes", text)
			}
			if h == other.Sum(text) {
				t.Fatalf("%.20q has the same hash with two secrets", text)
			}
		}
	}
	if one.Sum("") == (Hash{}) {
		t.Error("the empty text has no hash")
	}
}

// The vector is the first of the reference implementation's: the key is 00 01 … 0f.
func TestSumIsSipHash(t *testing.T) {
	h := Hasher{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	if got, want := h.Sum(""), (Hash{0xe6a825ba047f81a3, 0x930255c71472f66d}); got != want {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestSumAllocatesNothing(t *testing.T) {
	h, text := New(), strings.Repeat("x", 12_000)
	if n := testing.AllocsPerRun(100, func() { h.Sum(text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
