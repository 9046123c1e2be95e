package denials

import (
	"reflect"
	"strconv"
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

// Denials in shadow mode push no real denial out, however many keys there are. Evidence lasts ten minutes.
func TestEvidenceLasts(t *testing.T) {
	now, denied := time.Now(), NewTopKeys()
	denied.Add(now, "", "real", false, Cause{})
	for i := range 3 * maxTopKeys {
		denied.Add(now, "", strconv.Itoa(i), true, Cause{})
	}
	for after, want := range map[time.Duration]int{0: 1, topKeysKeptFor: 1, topKeysKeptFor + 1: 0} {
		if list := denied.Of(now.Add(after), "", "real"); len(list) != want || want == 1 && (list[0].Denied != 1 || list[0].Shadow) {
			t.Errorf("after %v: %+v", after, list)
		}
	}
	if list := denied.List(now); len(list) != 1+maxTopKeys || list[0].Shadow || !list[1].Shadow {
		t.Errorf("%d keys, the first is %+v", len(list), list[0])
	}
}
