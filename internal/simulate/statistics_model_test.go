package simulate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// modelReport computes a report slowly, from all requests at once.
func modelReport(c *reportConfiguration, all []*Decided) report.Configuration {
	r := report.Configuration{
		Notes: append([]string{}, c.notes...), Timeline: []report.Tally{},
		Zones: []report.Zone{},
	}
	var instants []algorithms.Micros
	for i, d := range all {
		if instants = append(instants, d.Came); i > 0 {
			instants[i] = max(d.Came, instants[i-1])
		}
	}
	for _, d := range all {
		r.Add(modelTally(d.Denied, modelShadow(d)))
		if d.Delay > 0 {
			r.Delayed++
		}
		if d.Denied || slices.ContainsFunc(d.Zones, func(z DecidedZone) bool { return !z.BanOnly }) {
			r.Limited++
		}
	}
	begins, length, buckets := modelBuckets(instants)
	r.BucketSeconds = float64(length) / 1e6
	if len(all) > 0 {
		r.Begins = timeOf(begins)
	}
	timeline := func(counts func(*Decided) []report.Tally) []report.Tally {
		series := make([]report.Tally, buckets)
		for i, d := range all {
			for _, counted := range counts(d) {
				series[(instants[i]-begins)/length].Add(counted)
			}
		}
		return series
	}
	r.Timeline = timeline(func(d *Decided) []report.Tally { return []report.Tally{modelTally(d.Denied, modelShadow(d))} })
	for zone := range c.zones {
		z := modelZone(c, zone, all, instants)
		z.Timeline = timeline(func(d *Decided) (outcomes []report.Tally) {
			for _, z := range modelDecisions(d, zone) {
				outcomes = append(outcomes, modelTally(z.Denied && !z.Shadow, z.Denied))
			}
			return outcomes
		})
		r.Zones = append(r.Zones, z)
	}
	return r
}

// modelShadow reports whether a zone in shadow mode denied the request.
func modelShadow(d *Decided) bool {
	return slices.ContainsFunc(d.Zones, func(z DecidedZone) bool { return z.Denied && z.Shadow })
}

// modelTally counts one request, which is denied or else shadow denied.
func modelTally(denied, shadow bool) report.Tally {
	one := map[bool]int64{true: 1}
	return report.Tally{Requests: 1, Denied: one[denied], ShadowDenied: one[shadow && !denied]}
}

func modelBuckets(instants []algorithms.Micros) (begins, length algorithms.Micros, buckets int) {
	if len(instants) == 0 {
		return 0, 10_000, 0
	}
	for _, text := range strings.Fields("10ms 50ms 100ms 500ms 1s 5s 10s 30s 1m 5m 10m 30m 1h 3h 6h 12h 24h 168h 336h 672h 1344h 2688h 5376h 10752h 21504h 43008h") {
		d, _ := time.ParseDuration(text)
		length = d.Microseconds()
		for begins = 0; begins+length <= instants[0]; {
			begins += length * max((instants[0]-begins)/length, 1)
		}
		if last := (instants[len(instants)-1] - begins) / length; last < 200 {
			return begins, length, int(last) + 1
		}
	}
	panic("a log of thousands of years")
}

// modelDecisions returns the decisions that count in a zone.
func modelDecisions(d *Decided, zone int) (decisions []DecidedZone) {
	for _, z := range d.Zones {
		if z.Zone == zone && z.Reached && (!z.BanOnly || z.Denied) {
			decisions = append(decisions, z)
		}
	}
	return decisions
}

func modelZone(c *reportConfiguration, zone int, all []*Decided, instants []algorithms.Micros) report.Zone {
	z := report.Zone{
		Name: c.zones[zone].Name, Key: c.zones[zone].Key, Shadow: c.zones[zone].Shadow,
		Limits: []string{}, TopKeys: []report.Key{}, Demand: []report.Demand{},
	}
	var windows []algorithms.Micros
	for _, set := range c.zones[zone].Sets {
		for _, l := range set.Limits {
			z.Limits = append(z.Limits, strings.TrimPrefix(set.Name+": "+l.String(), ": "))
			if !slices.Contains(windows, l.Window) {
				windows = append(windows, l.Window)
			}
		}
		if set.Open {
			windows = []algorithms.Micros{1e6, 10e6, 60e6, 3600e6, 86400e6}
		}
	}
	if c.zones[zone].Concurrency > 0 {
		z.Limits = append(z.Limits, "concurrency 5", "delay 2m")
	}
	slices.Sort(windows)
	type event struct {
		DecidedZone
		at algorithms.Micros
	}
	byKey, keys, firstDenied := make(map[string][]event), []string{}, make(map[string]int)
	for i, d := range all {
		for _, e := range modelDecisions(d, zone) {
			z.Add(modelTally(e.Denied && !e.Shadow, e.Denied))
			z.RequestsWithoutKey += map[string]int64{"": 1}[e.Key]
			if e.Denied {
				if z.FirstDenied == nil {
					z.FirstDenied = timeOf(instants[i])
				}
				z.LastDenied = timeOf(instants[i])
				z.DeniedByBan += map[Reason]int64{ByBan: 1}[e.Reason]
				z.DeniedBySlots += map[Reason]int64{ByConcurrency: 1}[e.Reason]
			}
			if e.Delay > 0 {
				z.Delayed++
				z.LongestDelay = max(z.LongestDelay, float64(e.Delay)/1e6)
			}
			if byKey[e.Key] == nil {
				if len(keys) == int(c.maxKeys) {
					z.RequestsWithoutRoom++
					continue
				}
				keys = append(keys, e.Key)
			}
			byKey[e.Key] = append(byKey[e.Key], event{e, instants[i]})
			if _, was := firstDenied[e.Key]; e.Denied && !was {
				firstDenied[e.Key] = len(firstDenied)
			}
		}
	}
	z.Keys = int64(len(keys))
	peaks := make(map[string][]int64)
	for _, key := range keys {
		for _, window := range windows {
			sums, peak := make(map[int64]int64), int64(0)
			for _, e := range byKey[key] {
				if !e.BanOnly {
					sums[e.at/window] += e.Cost
					peak = max(peak, sums[e.at/window])
				}
			}
			peaks[key] = append(peaks[key], peak)
		}
		report := report.Key{Key: c.ShownKey(zone, key), Peaks: append([]int64{}, peaks[key]...)}
		for _, e := range byKey[key] {
			report.Add(modelTally(e.Denied && !e.Shadow, e.Denied))
			if e.Denied {
				if report.AllDenied() == 1 {
					report.First = *timeOf(e.at)
				}
				report.Last = *timeOf(e.at)
			}
		}
		if report.AllDenied() > 0 {
			z.KeysDenied += min(report.Denied, 1)
			z.KeysShadowDenied += 1 - min(report.Denied, 1)
			z.TopKeys = append(z.TopKeys, report)
		}
	}
	order := func(shown string) int {
		for key, order := range firstDenied {
			if c.ShownKey(zone, key) == shown {
				return order
			}
		}
		return -1
	}
	slices.SortFunc(z.TopKeys, func(a, b report.Key) int {
		return cmp.Or(cmp.Compare(b.AllDenied(), a.AllDenied()), cmp.Compare(order(a.Key), order(b.Key)))
	})
	z.TopKeys = z.TopKeys[:min(len(z.TopKeys), 20)]
	if len(keys) == 0 {
		return z
	}
	for i, window := range windows {
		var values []int64
		for _, key := range keys {
			values = append(values, peaks[key][i])
		}
		slices.Sort(values)
		d := report.Demand{WindowSeconds: float64(window) / 1e6, Quantiles: modelQuantiles(values)}
		z.Demand = append(z.Demand, d)
	}
	return z
}

// modelQuantiles counts, for each value, how many are at most as large.
func modelQuantiles(values []int64) report.Quantiles {
	quantile := func(percent int) float64 {
		for _, candidate := range values {
			atMost := 0
			for _, v := range values {
				if v <= candidate {
					atMost++
				}
			}
			if 100*atMost >= percent*len(values) {
				return float64(candidate)
			}
		}
		return -1
	}
	return report.Quantiles{P50: quantile(50), P95: quantile(95), P99: quantile(99), Max: quantile(100)}
}
