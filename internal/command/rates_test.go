package command

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// The rate of several instances is the sum of their rates. An instance that has restarted counts from 0, and takes nothing
// away from the others.
func TestRatesOfRestartedInstance(t *testing.T) {
	body := func(from instance, allowed, denied int64) decoded[statusBody] {
		requests := map[string]int64{"allowed": allowed, "denied": denied}
		return decoded[statusBody]{from, statusBody{Zones: []adminapi.Zone{{Name: "api", Requests: requests}}}}
	}
	before := []decoded[statusBody]{body("a:1", 1000, 500), body("b:1", 10, 20)}
	after := []decoded[statusBody]{body("a:1", 3, 1), body("b:1", 14, 28)}
	table := zonesTable(style{}, 2*time.Second, before, after)
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if got, want := strings.Fields(lines[len(lines)-1]), []string{"api", rate(2), rate(4), "17", "29"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Keys of which only the beginning is known may be different ones, in one instance and in several. So each has its own line.
func TestCutKeysAreSeparate(t *testing.T) {
	key := "a long beginning"
	cut, whole := adminapi.ShownKey{Key: &key, Cut: true}, adminapi.ShownKey{Key: &key}
	keys := []adminapi.DeniedKey{{ShownKey: cut, Denied: 1}, {ShownKey: cut, Denied: 2}, {ShownKey: whole, Denied: 4}}
	var bodies []decoded[map[string][]adminapi.DeniedKey]
	for _, from := range []instance{"a:1", "b:1"} {
		bodies = append(bodies, decoded[map[string][]adminapi.DeniedKey]{from, map[string][]adminapi.DeniedKey{"api": keys}})
	}
	var denied []int64
	for _, k := range deniedKeys(bodies) {
		denied = append(denied, k.denied)
	}
	if want := []int64{8, 2, 2, 1, 1}; !slices.Equal(denied, want) {
		t.Errorf("denials by key: %v, want %v", denied, want)
	}
}
