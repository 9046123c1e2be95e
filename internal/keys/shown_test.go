package keys

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

func TestShownKeys(t *testing.T) {
	long := strings.Repeat("x", MaxShown)
	for _, c := range []struct {
		secret, key string
		want        Shown
	}{
		{"", "", Shown{}},
		{"", long, Shown{Text: long}},
		{"", long + "a", Shown{Text: long, Cut: true}},
		{"s", "k", Shown{Text: wire.HashedKey("s", "k"), Hashed: true}},
	} {
		if got := NewShown(c.secret, c.key); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.key, got, c.want)
		}
	}
}
