package simulate

import (
	"fmt"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/keytable"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// zoneStatistics counts the outcomes in one zone.
type zoneStatistics struct {
	zone     Zone
	shownKey func(key string) string
	windows  []algorithms.Micros // the different windows of the limits, the shortest first

	requests, denied, byBan, bySlots, byShadow, delayed, withoutKey, beyondBound int64
	firstDenied, lastDenied                                                      algorithms.Micros
	delays                                                                       delays
	longestRun                                                                   run
	top                                                                          topKeys

	keys    keytable.Table[keyCounts]
	demands keytable.Slab[windowDemand] // by the number of the key: one for each window
	denials keytable.Slab[keyDenials]   // by keyCounts.denials
}

// keyCounts has the counts of a key.
type keyCounts struct {
	requests int64
	denials  uint32 // the number of its keyDenials plus 1, or 0 if the key was never denied
}

// keyDenials has the counts of a key that was denied. Keys are numbered in the order of their first denials.
type keyDenials struct {
	denied      int64
	first, last algorithms.Micros
	run         int64 // denials since the last request that was allowed
	runBegan    algorithms.Micros
}

// windowDemand is how many events a key asked for in windows of one length.
type windowDemand struct {
	window   int64 // the number of the latest window in which the key made a request
	inWindow int64 // events in it
	peak     int64
}

// run is a series of denied requests of one key.
type run struct {
	key      uint32
	shown    string
	requests int64
	from, to algorithms.Micros
}

func newZoneStatistics(zone Zone, shownKey func(key string) string) zoneStatistics {
	z := zoneStatistics{
		zone: zone, shownKey: shownKey, keys: keytable.New[keyCounts](), denials: keytable.NewSlab[keyDenials](1),
	}
	for _, set := range zone.Sets {
		for _, l := range set.Limits {
			z.windows = append(z.windows, l.Window)
		}
		if set.Open {
			z.windows = append(z.windows, Windows...)
		}
	}
	slices.Sort(z.windows)
	z.windows = slices.Compact(z.windows)
	z.demands = keytable.NewSlab[windowDemand](len(z.windows))
	return z
}

// observe counts a request that the zone decided. bound bounds the keys of all zones.
func (z *zoneStatistics) observe(now algorithms.Micros, d *DecidedZone, bound *keytable.Bound) {
	z.requests++
	if d.Key == "" {
		z.withoutKey++
	}
	if d.Denied {
		z.countDenial(now, d)
	}
	if d.Delay > 0 {
		z.delayed++
		z.delays.add(d.Delay)
	}
	number, result := z.keys.Find(d.Key, bound)
	switch result {
	case keytable.Full:
		z.beyondBound++
		return
	case keytable.Added:
		z.demands.Add()
	}
	counts := z.keys.At(number)
	counts.requests++
	if !d.BanOnly {
		z.countDemand(now, number, d.Cost)
	}
	if d.Denied {
		z.countKeyDenial(now, number, counts, d.Key)
	} else if counts.denials > 0 {
		z.denials.Row(counts.denials - 1)[0].run = 0
	}
}

func (z *zoneStatistics) countDenial(now algorithms.Micros, d *DecidedZone) {
	if z.denied == 0 {
		z.firstDenied = now
	}
	z.denied++
	z.lastDenied = now
	switch d.Reason {
	case ByBan:
		z.byBan++
	case ByConcurrency:
		z.bySlots++
	}
	if d.Shadow {
		z.byShadow++
	}
}

func (z *zoneStatistics) countDemand(now algorithms.Micros, number uint32, cost int64) {
	demands := z.demands.Row(number)
	for i, window := range z.windows {
		demand := &demands[i]
		if current := floor(now, window) / window; demand.window != current {
			demand.window, demand.inWindow = current, 0
		}
		demand.inWindow += cost
		demand.peak = max(demand.peak, demand.inWindow)
	}
}

func (z *zoneStatistics) countKeyDenial(now algorithms.Micros, number uint32, counts *keyCounts, key string) {
	if counts.denials == 0 {
		counts.denials = z.denials.Add() + 1
		z.denials.Row(counts.denials - 1)[0].first = now
	}
	denials := &z.denials.Row(counts.denials - 1)[0]
	denials.denied++
	denials.last = now
	if denials.run++; denials.run == 1 {
		denials.runBegan = now
	}
	if longest := &z.longestRun; denials.run > longest.requests {
		if longest.requests == 0 || longest.key != number {
			longest.key, longest.shown = number, z.shownKey(key)
		}
		longest.requests, longest.from, longest.to = denials.run, denials.runBegan, now
	}
	z.top.count(topKey{key: number, order: counts.denials, denied: denials.denied}, key, z.shownKey)
}

func (z *zoneStatistics) report() report.Zone {
	r := report.Zone{
		Name: z.zone.Name, Key: z.zone.Key, Limits: limitTexts(z.zone), Shadow: z.zone.Shadow,
		Requests: z.requests, Denied: z.denied, DeniedByBan: z.byBan, DeniedBySlots: z.bySlots, DeniedByShadow: z.byShadow,
		Delayed: z.delayed, Delay: z.delays.report(),
		Keys: z.keys.Len(), KeysDenied: int64(z.denials.Len()), RequestsWithoutKey: z.withoutKey, RequestsWithoutRoom: z.beyondBound,
		TopKeys: []report.Key{}, Demand: []report.Demand{},
	}
	if z.denied > 0 {
		r.FirstDenied, r.LastDenied = timeOf(z.firstDenied), timeOf(z.lastDenied)
	}
	if longest := z.longestRun; longest.requests > 0 {
		r.LongestRun = &report.Run{Key: longest.shown, Requests: longest.requests, From: *timeOf(longest.from), To: *timeOf(longest.to)}
	}
	for _, top := range z.top.sorted() {
		denials := z.denials.Row(top.order - 1)[0]
		k := report.Key{
			Key: top.shown, Requests: z.keys.At(top.key).requests, Denied: denials.denied,
			Peaks: []int64{}, First: *timeOf(denials.first), Last: *timeOf(denials.last),
		}
		for _, demand := range z.demands.Row(top.key) {
			k.Peaks = append(k.Peaks, demand.peak)
		}
		r.TopKeys = append(r.TopKeys, k)
	}
	if z.keys.Len() > 0 {
		for i, window := range z.windows {
			r.Demand = append(r.Demand, z.demandReport(i, window))
		}
	}
	return r
}

func (z *zoneStatistics) demandReport(i int, window algorithms.Micros) report.Demand {
	peaks := make([]int64, z.keys.Len())
	for number := range peaks {
		peaks[number] = z.demands.Row(uint32(number))[i].peak
	}
	quantiles := quantilesOf(peaks)
	return report.Demand{WindowSeconds: seconds(window), Quantiles: quantiles, Histogram: histogramOf(peaks)}
}

// limitTexts returns everything that limits requests of a zone, as options of a Caddyfile. The limits of a
// plan or an override follow its name.
func limitTexts(zone Zone) []string {
	texts := []string{}
	for _, set := range zone.Sets {
		for _, l := range set.Limits {
			text := l.Algorithm().CaddyfileText(l.String())
			if set.Name != "" {
				text = set.Name + ": " + text
			}
			texts = append(texts, text)
		}
	}
	if zone.Concurrency > 0 {
		texts = append(texts, fmt.Sprint("concurrency ", zone.Concurrency))
	}
	if zone.MaxDelay > 0 {
		texts = append(texts, "delay "+report.Span(zone.MaxDelay))
	}
	return texts
}
