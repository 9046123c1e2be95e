//go:build real

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// soakZone is a zone, as it is configured and as the limits are that its calls speak of.
type soakZone struct {
	name    string
	options string
	limits  map[string]algorithms.Quota // by what the Caddyfile says
	factors []string                    // of requests; none is 1
	slots   int64                       // of concurrency
	ban     *algorithms.Ban
	// overrides are set by operators now and then. Requests of the zone may pass without a charge.
	overrides map[string]algorithms.Quota // in the form of the admin API; the zero Quota is none
	uncharged bool                        // 200 may be without a charge
}

const (
	soakMilli  = 1000
	soakSecond = 1_000_000

	// soakKilled is which of the three Caddys is killed; those before it are reloaded.
	soakKilled = 2
)

// soakLog is the limit that is checked by counting, too.
var soakLog = algorithms.Quota{Algorithm: "sliding_log", Events: 20, Window: 10 * soakSecond}

func soakZones() []soakZone {
	type limits = map[string]algorithms.Quota
	quota := func(algorithm string, events, window, burst int64) algorithms.Quota {
		return algorithms.Quota{Algorithm: algorithm, Events: events, Window: window, Burst: burst}
	}
	clock, buckets := quota("fixed_window", 30, soakSecond, 0), quota("sliding_log", 30, soakSecond, 0)
	apart := quota("sliding_log", 50, soakSecond, 0)
	clock.Align, buckets.Buckets, apart.MinInterval = "clock", 10, 10*soakMilli
	initial, cold, five := quota("token_bucket", 36_000, 3600*soakSecond, 20), quota("smooth", 50, soakSecond, 0), int64(5)
	initial.Initial, cold.WarmUp = &five, 2*soakSecond
	return []soakZone{
		{name: "token_bucket", limits: limits{"token_bucket 20 1s 40": quota("token_bucket", 20, soakSecond, 40)}},
		{name: "gcra", limits: limits{"gcra 20 1s 30": quota("gcra", 20, soakSecond, 30)}},
		{name: "leaky_bucket", limits: limits{"leaky_bucket 5 250ms 20": quota("leaky_bucket", 5, 250*soakMilli, 20)}},
		{name: "fixed_window", limits: limits{"fixed_window 30 1s": quota("fixed_window", 30, soakSecond, 0)}},
		{name: "clock", limits: limits{"fixed_window 30 1s {\n align clock\n}": clock}},
		{name: "log", limits: limits{"sliding_log 20 10s": soakLog}},
		{name: "buckets", limits: limits{"sliding_log 30 1s {\n buckets 10\n}": buckets}},
		{name: "apart", limits: limits{"sliding_log 50 1s {\n min_interval 10ms\n}": apart}},
		{name: "window", limits: limits{"sliding_window 30 1s": quota("sliding_window", 30, soakSecond, 0)}},
		{name: "smooth", limits: limits{"smooth 30 1s 10": quota("smooth", 30, soakSecond, 10)}},
		{name: "cold", limits: limits{"smooth 50 1s {\n warm_up 2s\n}": cold}},
		{name: "initial", limits: limits{"token_bucket 36000 1h 20 {\n initial 5\n}": initial}},
		{name: "two", limits: limits{
			"gcra 20 1s 30":       quota("gcra", 20, soakSecond, 30),
			"sliding_log 100 10s": quota("sliding_log", 100, 10*soakSecond, 0),
		}},
		{name: "nary", options: "mode nary", limits: limits{"token_bucket 20 1s": quota("token_bucket", 20, soakSecond, 0)}},
		{name: "uniform", options: "mode uniform", limits: limits{"leaky_bucket 20 1s": quota("leaky_bucket", 20, soakSecond, 0)}},
		{name: "force", options: "mode force", limits: limits{"fixed_window 20 1s": quota("fixed_window", 20, soakSecond, 0)}},
		{name: "delay", options: "delay 300ms", limits: limits{"gcra 20 1s 5": quota("gcra", 20, soakSecond, 5)}},
		{
			name: "factor", options: "factor {header.X-Factor}", factors: []string{"0.5", "2", "1"},
			limits: limits{"gcra 20 1s 8": quota("gcra", 20, soakSecond, 8)},
		},
		{name: "alone", options: "concurrency 2", slots: 2, uncharged: true},
		{
			name: "slots", options: "delay 300ms\n concurrency 3", slots: 3,
			limits: limits{"gcra 20 1s 5": quota("gcra", 20, soakSecond, 5)},
		},
		{
			name: "ban", options: "ban 100ms max 400ms after 3 scope handler", limits: limits{"gcra 10 10s 5": quota("gcra", 10, 10*soakSecond, 5)},
			ban: &algorithms.Ban{After: 3, Window: 10 * soakSecond, Duration: 100 * soakMilli, Max: 400 * soakMilli},
		},
		{
			name: "settle", options: "settle {\n match status 200\n cost {header.X-Tokens}\n}", uncharged: true,
			limits: limits{
				"token_bucket 20 1s 40":  quota("token_bucket", 20, soakSecond, 40),
				"sliding_window 100 10s": quota("sliding_window", 100, 10*soakSecond, 0),
			},
		},
		{
			name: "overridden", options: "runtime_overrides", uncharged: true,
			limits: limits{"gcra 20 1s 8": quota("gcra", 20, soakSecond, 8)},
			overrides: limits{
				`"unlimited":true`: {},
				`"limits":[{"algorithm":"gcra","events":40,"window":"1s"}]`:        quota("gcra", 40, soakSecond, 0),
				`"limits":[{"algorithm":"token_bucket","events":5,"window":"1s"}]`: quota("token_bucket", 5, soakSecond, 0),
			},
		},
	}
}

// soakConfig is a site with all zones twice: once requests are denied where Redis fails, and once
// they are decided locally. One more zone belongs to all requests of the first kind. soakConfig
// also returns the zones as the audit knows them.
func soakConfig(t *testing.T, redis string) (config string, known []store.ZoneRequest) {
	t.Helper()
	limit := func(zone string, q algorithms.Quota) store.Limit {
		key := keys.NewTemplate("{http.request.header.X-Key}")
		return store.NewLimit(zone, key.Identity(), storetest.Limit(t, zone, q).Limit)
	}
	config = fmt.Sprintf("{\n admin {$ADMIN}\n log {\n  level WARN\n }\n rate_limit {\n  redis %s\n }\n}\n{$SITE}\n", redis)
	for _, mode := range []string{"deny", "local"} {
		config += fmt.Sprintf("rate_limit /%s/* {\n on_store_error %s\n", mode, mode)
		for _, z := range soakZones() {
			r := store.ZoneRequest{Zone: mode + "-" + z.name}
			config += fmt.Sprintf("zone %s {\n match path /%s/%s\n key {header.X-Key}\n %s\n", r.Zone, mode, z.name, z.options)
			if len(z.limits) > 0 {
				config += "cost {header.X-Cost}\n"
			}
			for text, q := range z.limits {
				config += text + "\n"
				l := limit(r.Zone, q)
				r.Limits = append(r.Limits, l)
				for _, factor := range z.factors {
					f, _ := strconv.ParseFloat(factor, 64)
					r.Limits = append(r.Limits, store.Limit{Limit: l.Scaled(int64(f * 1_000_000)), ID: l.ID})
				}
			}
			for _, q := range z.overrides {
				if q.Algorithm != "" {
					r.Limits = append(r.Limits, limit(r.Zone, q))
				}
			}
			if z.slots > 0 {
				r.Slots = &store.Slots{ID: store.SlotsID(r.Zone, ""), Limit: z.slots}
			}
			if strings.Contains(z.options, "settle") {
				r.ReservedID = store.ReservedID(r.Zone, "")
			}
			if z.ban != nil {
				r.Ban = &store.Ban{ID: store.BanID(r.Zone, ""), Ban: z.ban}
				byOperator := *z.ban
				byOperator.Window = 1 // denials don't count for it
				known = append(known, store.ZoneRequest{Zone: r.Zone, Ban: &store.Ban{ID: r.Ban.ID, Ban: &byOperator}})
			}
			known = append(known, r)
			config += "}\n"
		}
		if mode == "deny" {
			config += "zone deny-all {\n key {header.X-Key}\n token_bucket 200 1s\n}\n"
			all := limit("deny-all", algorithms.Quota{Algorithm: "token_bucket", Events: 200, Window: soakSecond})
			known = append(known, store.ZoneRequest{Zone: "deny-all", Limits: []store.Limit{all}})
		}
		config += "}\n"
	}
	return config + "@missing header X-Missing *\nrespond @missing 404\nrespond ok\n", known
}
