package configuration_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	ratelimit "github.com/caddy-rate-limit/caddy-rate-limit"
)

// Each option of a zone is in a list here, which says whether simulations decide with it. The handler decides which zone, key and
// limits a request meets, so options about these need nothing here.
func TestSimulationsKnowAllZoneOptions(t *testing.T) {
	decidedByTheHandler := []string{
		"match", "exempt", "key", "ipv4_prefix", "ipv6_prefix", "key_case", "max_events", "window", "limits", "cost", "mode", "factor",
		"override", "plan", "position",
	}
	simulated := map[string]string{
		"concurrency": "simulate.Decider: slots", "delay": "simulate.Decider: places and waiting", "ban": "the store in memory",
		"settle": "loggedWalk.settle", "shadow": "Decided.Denied", "enforce": "the Shadow of each store.ZoneRequest", "status": "configuration.wasDenied",
		"hold": "Decider.hold",
	}
	ignored := map[string]string{
		"runtime_overrides": "a note says so", "share": "a note says so", "notify": "it decides nothing", "max_body": "a log has no bodies",
		"body_timeout": "a log has no bodies", "headers": "it decides nothing",
	}
	zone := reflect.TypeFor[ratelimit.Zone]()
	for i := range zone.NumField() {
		name, _, _ := strings.Cut(zone.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" && !slices.Contains(decidedByTheHandler, name) && simulated[name]+ignored[name] == "" {
			t.Errorf("simulations don't know the option %s of a zone: name it here, with the place that decides with it, or the reason to ignore it", name)
		}
	}
}
