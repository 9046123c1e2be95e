package keytable

import (
	"fmt"
	"testing"
)

// Keys are numbered in the order in which they appear, and keep their numbers and values. When all tables together
// have as many keys as the bound, a table that comes late still has its share.
func TestFind(t *testing.T) {
	const maxKeys = 1000
	bound := NewBound(maxKeys, 2)
	first, second := New[int](), New[int]()
	for n := range maxKeys {
		number, result := first.Find(fmt.Sprint(n), &bound)
		if number != uint32(n) || result != Added {
			t.Fatalf("key %d has the number %d, result %d", n, number, result)
		}
		*first.At(number) = n
	}
	if _, result := first.Find("one more", &bound); result != Full {
		t.Errorf("a key beyond the bound: %d", result)
	}
	for n := range maxKeys {
		want := Full
		if n < maxKeys/2 {
			want = Added
		}
		if _, result := second.Find(fmt.Sprint(n), &bound); result != want {
			t.Fatalf("key %d of the second table: %d, want %d", n, result, want)
		}
	}
	for n := range maxKeys {
		number, result := first.Find(fmt.Sprint(n), &bound)
		if number != uint32(n) || result != Known || *first.At(number) != n {
			t.Fatalf("key %d has the number %d and the value %d, result %d", n, number, *first.At(number), result)
		}
	}
	if first.Len() != maxKeys || second.Len() != maxKeys/2 {
		t.Errorf("%d and %d keys", first.Len(), second.Len())
	}
}
