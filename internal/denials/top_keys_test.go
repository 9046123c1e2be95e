package denials

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// Keys that begin alike are counted apart, however long they are, and shown cut. A key and its HMAC are counted apart.
func TestLongDeniedKeysAreCountedApart(t *testing.T) {
	now, denied, long := time.Now(), NewTopKeys(), strings.Repeat("x", 12_000)
	denied.Add(now, "", long+"a", false, Cause{})
	denied.Add(now, "", long+"a", false, Cause{})
	denied.Add(now, "", long+"b", false, Cause{})
	denied.Add(now, "", long[:keys.MaxShown], false, Cause{})
	denied.Add(now, "pepper", long[:keys.MaxShown], false, Cause{})
	shown := keys.Shown{Text: long[:keys.MaxShown], Cut: true}.View()
	list := denied.List(now)
	if len(list) != 4 || !reflect.DeepEqual(list[0].ShownKey, shown) || list[0].Denied != 2 || list[1].Denied != 1 || list[3].Denied != 1 {
		t.Errorf("%+v", list)
	}
}
