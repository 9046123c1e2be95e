package simulate

import (
	"fmt"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// zoneStatistics counts the outcomes in one zone.
type zoneStatistics struct {
	zone     Zone
	shownKey func(key string) string
	windows  []algorithms.Micros // the different windows of the limits, the shortest first

	requests, denied, byBan, bySlots, byShadow, delayed, withoutRoom int64
	firstDenied, lastDenied                                          algorithms.Micros
	delays                                                           delays
	longestRun                                                       run
	top                                                              topKeys

	hasher  keyhash.Hasher
	keys    keyTable
	demands slab[windowDemand] // by the number of the key: one for each window
	denials slab[keyDenials]   // by keyRecord.denials
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

// windowsWithoutLimits are the windows for a zone without limits, whose limits are still to be chosen.
var windowsWithoutLimits = []algorithms.Micros{1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000}

func newZoneStatistics(zone Zone, shownKey func(key string) string) zoneStatistics {
	z := zoneStatistics{
		zone: zone, shownKey: shownKey, hasher: keyhash.New(),
		keys: newKeyTable(), denials: newSlab[keyDenials](1),
	}
	for _, set := range zone.Sets {
		for _, l := range givenLimits(set) {
			z.windows = append(z.windows, l.Window)
		}
	}
	if len(z.windows) == 0 && zone.Concurrency == 0 {
		z.windows = slices.Clone(windowsWithoutLimits)
	}
	slices.Sort(z.windows)
	z.windows = slices.Compact(z.windows)
	z.demands = newSlab[windowDemand](len(z.windows))
	return z
}

// observe counts a request that the zone decided.
func (z *zoneStatistics) observe(now algorithms.Micros, d *DecidedZone, room *keyRoom) {
	z.requests++
	if d.Denied {
		z.countDenial(now, d)
	}
	if d.Delay > 0 {
		z.delayed++
		z.delays.add(d.Delay)
	}
	number, isNew, found := z.keys.find(z.hasher.Sum(d.Key), room.used < room.all || int64(z.keys.records.len) < room.share)
	switch {
	case !found:
		z.withoutRoom++
		return
	case isNew:
		room.used++
		z.demands.add()
	}
	record := z.keys.record(number)
	record.requests++
	if !d.BanOnly {
		z.countDemand(now, number, d.Cost)
	}
	if d.Denied {
		z.countKeyDenial(now, number, record, d.Key)
	} else if record.denials > 0 {
		z.denials.row(record.denials - 1)[0].run = 0
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
	demands := z.demands.row(number)
	for i, window := range z.windows {
		demand := &demands[i]
		if current := floor(now, window) / window; demand.window != current {
			demand.window, demand.inWindow = current, 0
		}
		demand.inWindow += cost
		demand.peak = max(demand.peak, demand.inWindow)
	}
}

func (z *zoneStatistics) countKeyDenial(now algorithms.Micros, number uint32, record *keyRecord, key string) {
	if record.denials == 0 {
		record.denials = z.denials.add() + 1
		z.denials.row(record.denials - 1)[0].first = now
	}
	denials := &z.denials.row(record.denials - 1)[0]
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
	z.top.count(topKey{key: number, order: record.denials, denied: denials.denied}, key, z.shownKey)
}

func (z *zoneStatistics) report() ZoneReport {
	r := ZoneReport{
		Zone: z.zone.Name, Key: z.zone.Key, Limits: limitTexts(z.zone), Shadow: z.zone.Shadow,
		Requests: z.requests, Denied: z.denied, DeniedByBan: z.byBan, DeniedBySlots: z.bySlots, DeniedByShadow: z.byShadow,
		Delayed: z.delayed, Delay: z.delays.report(),
		Keys: int64(z.keys.records.len), KeysDenied: int64(z.denials.len), RequestsWithoutRoom: z.withoutRoom,
		TopKeys: []KeyReport{}, Demand: []Demand{},
	}
	if z.denied > 0 {
		r.FirstDenied, r.LastDenied = timeOf(z.firstDenied), timeOf(z.lastDenied)
	}
	if longest := z.longestRun; longest.requests > 0 {
		r.LongestRun = &Run{longest.shown, longest.requests, *timeOf(longest.from), *timeOf(longest.to)}
	}
	for _, top := range z.top.sorted() {
		denials := z.denials.row(top.order - 1)[0]
		k := KeyReport{
			Key: top.shown, Requests: z.keys.record(top.key).requests, Denied: denials.denied,
			Peaks: []int64{}, First: *timeOf(denials.first), Last: *timeOf(denials.last),
		}
		for _, demand := range z.demands.row(top.key) {
			k.Peaks = append(k.Peaks, demand.peak)
		}
		r.TopKeys = append(r.TopKeys, k)
	}
	if z.keys.records.len > 0 {
		for i, window := range z.windows {
			r.Demand = append(r.Demand, z.demandReport(i, window))
		}
	}
	return r
}

func (z *zoneStatistics) demandReport(i int, window algorithms.Micros) Demand {
	peaks := make([]int64, z.keys.records.len)
	for number := range peaks {
		peaks[number] = z.demands.row(uint32(number))[i].peak
	}
	quantiles := quantilesOf(peaks)
	return Demand{WindowSeconds: seconds(window), Quantiles: quantiles, Histogram: histogramOf(peaks)}
}

// limitTexts returns everything that limits requests of a zone, as options of a Caddyfile. The limits of a
// plan or an override follow its name.
func limitTexts(zone Zone) []string {
	texts := []string{}
	for _, set := range zone.Sets {
		for _, l := range givenLimits(set) {
			text := l.String()
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
		texts = append(texts, "delay "+spanText(zone.MaxDelay))
	}
	return texts
}
