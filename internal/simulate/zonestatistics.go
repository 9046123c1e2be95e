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

	tally                                            report.Tally
	byBan, bySlots, delayed, withoutKey, beyondBound int64
	firstDenied, lastDenied, longestDelay            algorithms.Micros
	top                                              topKeys

	keys    keytable.Table[keyCounts]
	demands []windowDemand // of the keys, by their numbers: one for each window
	denials []keyDenials   // by keyCounts.denials
}

// keyCounts has the counts of a key.
type keyCounts struct {
	requests int64
	denials  uint32 // the number of its keyDenials plus 1, or 0 if the key was never denied
}

// keyDenials has the counts of a key that was denied. Keys are numbered in the order of their first denials.
type keyDenials struct {
	denied, shadowDenied int64
	first, last          algorithms.Micros
}

// windowDemand is how many events a key asked for in windows of one length.
type windowDemand struct {
	window   int64 // the number of the latest window in which the key made a request
	inWindow int64 // events in it
	peak     int64
}

func newZoneStatistics(zone Zone, shownKey func(key string) string) zoneStatistics {
	z := zoneStatistics{zone: zone, shownKey: shownKey, keys: keytable.New[keyCounts]()}
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
	return z
}

// observe counts a request that the zone decided. bound bounds the keys of all zones.
func (z *zoneStatistics) observe(now algorithms.Micros, d *DecidedZone, bound *keytable.Bound) {
	z.tally.Count(d.Outcome())
	if d.Key == "" {
		z.withoutKey++
	}
	if d.Denied {
		z.countDenial(now, d)
	}
	if d.Delay > 0 {
		z.delayed++
		z.longestDelay = max(z.longestDelay, d.Delay)
	}
	number, result := z.keys.Find(d.Key, bound)
	switch result {
	case keytable.Full:
		z.beyondBound++
		return
	case keytable.Added:
		z.demands = append(z.demands, make([]windowDemand, len(z.windows))...)
	}
	counts := z.keys.At(number)
	counts.requests++
	if !d.BanOnly {
		z.countDemand(now, number, d.Cost)
	}
	if d.Denied {
		z.countKeyDenial(now, number, counts, d)
	}
}

func (z *zoneStatistics) countDenial(now algorithms.Micros, d *DecidedZone) {
	if z.tally.AllDenied() == 1 {
		z.firstDenied = now
	}
	z.lastDenied = now
	switch d.Reason {
	case ByBan:
		z.byBan++
	case ByConcurrency:
		z.bySlots++
	}
}

// demandsOf returns the demands of a key.
func (z *zoneStatistics) demandsOf(number uint32) []windowDemand {
	from := int(number) * len(z.windows)
	return z.demands[from : from+len(z.windows)]
}

func (z *zoneStatistics) countDemand(now algorithms.Micros, number uint32, cost int64) {
	demands := z.demandsOf(number)
	for i, window := range z.windows {
		demand := &demands[i]
		if current := floor(now, window) / window; demand.window != current {
			demand.window, demand.inWindow = current, 0
		}
		demand.inWindow += cost
		demand.peak = max(demand.peak, demand.inWindow)
	}
}

func (z *zoneStatistics) countKeyDenial(now algorithms.Micros, number uint32, counts *keyCounts, d *DecidedZone) {
	if counts.denials == 0 {
		z.denials = append(z.denials, keyDenials{first: now})
		counts.denials = uint32(len(z.denials))
	}
	denials := &z.denials[counts.denials-1]
	if d.Shadow {
		denials.shadowDenied++
	} else {
		denials.denied++
	}
	denials.last = now
	z.top.count(topKey{key: number, order: counts.denials, denied: denials.denied + denials.shadowDenied}, d.Key, z.shownKey)
}

func (z *zoneStatistics) report() report.Zone {
	r := report.Zone{
		Name: z.zone.Name, Key: z.zone.Key, Limits: limitTexts(z.zone), Shadow: z.zone.Shadow,
		Tally: z.tally, DeniedByBan: z.byBan, DeniedBySlots: z.bySlots,
		Delayed: z.delayed, LongestDelay: seconds(z.longestDelay),
		Keys: z.keys.Len(), RequestsWithoutKey: z.withoutKey, RequestsWithoutRoom: z.beyondBound,
		TopKeys: []report.Key{}, Demand: []report.Demand{},
	}
	for _, d := range z.denials {
		if d.denied > 0 {
			r.KeysDenied++
		} else {
			r.KeysShadowDenied++
		}
	}
	if z.tally.AllDenied() > 0 {
		r.FirstDenied, r.LastDenied = timeOf(z.firstDenied), timeOf(z.lastDenied)
	}
	for _, top := range z.top {
		denials := z.denials[top.order-1]
		k := report.Key{
			Key: top.shown, Tally: report.Tally{Requests: z.keys.At(top.key).requests, Denied: denials.denied, ShadowDenied: denials.shadowDenied},
			Peaks: []int64{}, First: *timeOf(denials.first), Last: *timeOf(denials.last),
		}
		for _, demand := range z.demandsOf(top.key) {
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
		peaks[number] = z.demandsOf(uint32(number))[i].peak
	}
	return report.Demand{WindowSeconds: seconds(window), Quantiles: quantilesOf(peaks)}
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
