package simulate

import (
	"cmp"
	"slices"
)

// shownKeys is how many keys of a zone a report shows.
const shownKeys = 20

// topKey is a key that is among those with most denials.
type topKey struct {
	key    uint32 // its number
	order  uint32 // the lower, the earlier the key was first denied
	denied int64
	shown  string
}

// comesBefore reports whether a key is more important for a report. Of two keys with equally many denials,
// the key that was denied first is more important.
func (k *topKey) comesBefore(other *topKey) bool { return compareTopKeys(k, other) < 0 }

func compareTopKeys(a, b *topKey) int {
	return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(a.order, b.order))
}

// topKeys finds the keys with most denials, exactly, and remembers the texts of these keys alone. Counts only
// grow. So a key that belongs to them at the end belongs to them since its last denial.
type topKeys struct {
	keys []topKey
	last int // the index of the key that leaves next
}

// count sets the new count of a key.
func (t *topKeys) count(k topKey, key string, shownKey func(string) string) {
	full := len(t.keys) == shownKeys
	if full && !k.comesBefore(&t.keys[t.last]) { // counts only grow, so a key that is there comes before itself
		return
	}
	i := slices.IndexFunc(t.keys, func(other topKey) bool { return other.key == k.key })
	switch {
	case i >= 0:
		t.keys[i].denied = k.denied
	case full:
		k.shown = shownKey(key)
		t.keys[t.last] = k
	default:
		k.shown = shownKey(key)
		t.keys = append(t.keys, k)
	}
	for i := range t.keys {
		if t.keys[t.last].comesBefore(&t.keys[i]) {
			t.last = i
		}
	}
}

func (t *topKeys) sorted() []topKey {
	return slices.SortedFunc(slices.Values(t.keys), func(a, b topKey) int { return compareTopKeys(&a, &b) })
}
