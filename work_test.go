package ratelimit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// One script call decides all limits of a request in time, or the configuration is rejected.
func TestBoundWork(t *testing.T) {
	log := func(events int) string {
		return fmt.Sprintf(`{"algorithm":"sliding_log","events":%d,"window":"1h"}`, events)
	}
	const buckets = `{"algorithm":"sliding_log","events":1000000,"window":"1h","buckets":2000}`
	const anyCost = `"cost":"{http.request.header.Cost}"`
	zone := func(name string, limits ...string) string {
		return fmt.Sprintf(`%q:{"limits":[%s],%s}`, name, strings.Join(limits, ","), anyCost)
	}
	var small []string // at the usual cost, with all of them in one handler
	for i := range 193 {
		small = append(small, fmt.Sprintf(`"z%d":{"max_events":60,"window":"1m"}`, i))
	}
	var counters []string
	for i := range 900 {
		counters = append(counters, fmt.Sprintf(`{"algorithm":"gcra","events":%d,"window":"1h"}`, i+1))
	}
	var lookups []string // of overrides, in zones without limits
	for i := range 601 {
		lookups = append(lookups, fmt.Sprintf(`"l%d":{"runtime_overrides":true,"plan":{"by":"{http.auth.user.plan}","values":{"x":{"unlimited":true}},"default":{"unlimited":true}}}`, i))
	}
	const instead = "take too long to decide in one call: write sliding_window"
	for _, test := range []struct {
		zones []string
		want  string
	}{
		{[]string{zone("a", log(200000)), zone("b", counters[:130]...)}, ""},
		{[]string{zone("a", log(127000), log(126999))}, ""},
		{[]string{zone("a", buckets), zone("b", log(160000))}, ""},
		{[]string{zone("a", counters[:600]...)}, ""},
		{small, ""},
		{append(small[:40:40], `"a":{"limits":[`+log(200000)+`,`+log(80000)+`]}`), ""},
		{append(small[:45:45], `"a":{"limits":[`+log(200000)+`]}`), ""},
		{append(small[:45:45], `"a":{"limits":[`+log(200000)+`],"settle":{"cost":"{http.response.header.Cost}"}}`), instead},
		{[]string{zone("a", log(200000), log(100000))}, instead},
		{[]string{zone("a", log(154574), log(100000))}, ""},
		{[]string{zone("a", buckets), zone("b", buckets), zone("c", log(80000))}, instead},
		{[]string{zone("a", `{"algorithm":"sliding_log","events":1000000,"window":"1h","buckets":1983}`), zone("b", buckets), zone("c", log(80000))}, ""},
		{[]string{zone("a", counters[:601]...)}, instead},
		{[]string{zone("a", counters[:500]...), zone("b", counters[:500]...)}, instead},
		{[]string{zone("a", counters[:598]...), `"b":{"concurrency":10000000,"ban":{"duration":"1h"},"limits":[` + counters[0] + `]}`}, instead},
		{[]string{zone("a", counters[:597]...), `"b":{"concurrency":10000000,"ban":{"duration":"1h"},"limits":[` + counters[0] + `]}`}, ""},
		{[]string{`"a":{"concurrency":10000000}`, `"b":{"concurrency":10000000}`, zone("c", log(200000))}, ""},
		{[]string{zone("a", log(1)), `"b":{"concurrency":10000000,"limits":[` + log(200000) + `],` + anyCost + `}`, `"c":{"concurrency":10000000,"limits":[` + log(60000) + `],` + anyCost + `}`}, instead},
		{[]string{zone("a", log(200000)), `"b":{"limits":[` + log(1) + `],` + anyCost + `,"override":{"x":{"limits":[` + log(100000) + `]}}}`}, instead},
		{[]string{zone("a", log(200000)), `"b":{` + anyCost + `,"plan":{"by":"{http.auth.user.plan}","values":{"x":{"limits":[` + log(100000) + `]}},"default":{"unlimited":true}}}`}, instead},
		{lookups[:600], ""},
		{lookups[:601], instead},
		{append(lookups[:600:600], `"a":{"concurrency":1}`), instead},
		{[]string{`"a":{` + anyCost + `,"plan":{"by":"{http.auth.user.plan}","values":{"x":{"limits":[` + log(199999) + `]},"y":{"limits":[` + log(200000) + `]}},"default":{"unlimited":true}}}`}, ""},
	} {
		err := caddytest.Validate(handlerConfig(`{"handler":"rate_limit","rate_limits":{` + strings.Join(test.zones, ",") + `}}`))
		if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.200v: %v, want %q", test.zones, err, test.want)
		}
	}
}
