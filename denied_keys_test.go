package ratelimit

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

func TestShownKeys(t *testing.T) {
	long := strings.Repeat("x", maxShownKey)
	for _, c := range []struct {
		secret, key string
		want        shownKey
	}{
		{"", "", shownKey{}},
		{"", long, shownKey{text: long}},
		{"", long + "a", shownKey{text: long, cut: true}},
		{"s", "k", shownKey{text: redisstore.HashedKey("s", "k"), hashed: true}},
	} {
		if got := newShownKey(c.secret, c.key, maxShownKey); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.key, got, c.want)
		}
	}
}

// Keys that begin alike are counted apart, however long they are, and shown cut.
func TestLongDeniedKeysAreCountedApart(t *testing.T) {
	now, denied, long := time.Now(), newDeniedKeys(), strings.Repeat("x", 12_000)
	for range 3 {
		denied.add(now, "", long+"a")
	}
	denied.add(now, "", long+"b")
	denied.add(now, "", long[:maxShownKey])
	shown := shownKey{text: long[:maxShownKey], cut: true}
	list := denied.list(now)
	if len(list) != 3 || list[0].Label != shown || list[0].Count != 3 || list[1].Count != 1 || list[2].Count != 1 {
		t.Errorf("%+v", list)
	}
}
