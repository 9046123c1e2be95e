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

// compareTopKeys orders keys for a report. Of two keys with equally many denials, the key that was denied first is more
// important.
func compareTopKeys(a, b topKey) int {
	return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(a.order, b.order))
}

// topKeys are the keys with most denials, the most important first. They are exact, and only these keys have their
// texts. Counts only grow. So a key that belongs to them at the end belongs to them since its last denial.
type topKeys []topKey

// count sets the new count of a key.
func (t *topKeys) count(k topKey, key string, shownKey func(string) string) {
	keys := *t
	full := len(keys) == shownKeys
	if full && compareTopKeys(k, keys[shownKeys-1]) > 0 { // a key that is there is not behind its old count
		return
	}
	if i := slices.IndexFunc(keys, func(other topKey) bool { return other.key == k.key }); i >= 0 {
		keys[i].denied = k.denied
	} else {
		k.shown = shownKey(key)
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareTopKeys)
	*t = keys[:min(len(keys), shownKeys)]
}
