package keyhash

import (
	"fmt"
	"strings"
	"testing"
)

// Only long keys are made short. A short key has the beginning and the name of the long one.
func TestShorten(t *testing.T) {
	name := func(key string) string { return fmt.Sprint("name of ", len(key)) }
	for length, short := range map[int]bool{0: false, 128: false, MaxKept: false, MaxKept + 1: true, 1_000_000: true} {
		key := strings.Repeat("x", length)
		got := Shorten(key, name)
		beginning, its, ok := SplitShort(got)
		if ok != short || !ok && got != key || ok && (beginning != key[:MaxKept] || its != name(key)) {
			t.Errorf("%d bytes: %.80q, %v, named %q", length, got, ok, its)
		}
		if Shorten(got, name) != got {
			t.Errorf("%d bytes: shortened twice", length)
		}
	}
	for _, key := range []string{"", shortMark, shortMark + strings.Repeat("x", MaxKept), strings.Repeat("x", 2*MaxKept)} {
		if _, _, ok := SplitShort(key); ok {
			t.Errorf("%.80q is taken for a short key", key)
		}
	}
}
