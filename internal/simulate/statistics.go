package simulate

import (
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/keytable"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// Statistics counts the outcomes of a configuration. It must be made by [NewStatistics]. It is not safe for
// concurrent use.
//
// A request counts in a zone once per rate_limit handler that decides it there, as in the metrics of
// the module. It doesn't count in a zone that didn't decide it, because an earlier handler had denied it.
//
// Memory is bounded by [Configuration.MaxKeys]: about 70 bytes for a key of a zone whose limits have one
// window, 24 for each other window, and 64 more if the key was denied.
type Statistics struct {
	configuration Configuration
	now           algorithms.Micros // the latest Came so far
	tally         report.Tally
	limited       int64
	delayed       int64
	timelines     timelines // of all requests, and then of each zone
	zones         []zoneStatistics
	keys          keytable.Bound // of all zones together
}

// NewStatistics returns the statistics of a configuration, before the first request.
func NewStatistics(c Configuration) *Statistics {
	zones := c.Zones()
	s := &Statistics{
		configuration: c,
		timelines:     newTimelines(1 + len(zones)),
		zones:         make([]zoneStatistics, len(zones)),
		keys:          keytable.NewBound(c.MaxKeys(), len(zones)),
	}
	for i, z := range zones {
		s.zones[i] = newZoneStatistics(z, func(key string) string { return c.ShownKey(i, key) })
	}
	return s
}

// Observe counts a request.
func (s *Statistics) Observe(d *Decided) {
	if s.tally.Requests == 0 {
		s.now = d.Came
	}
	// A request that waited for a slot is decided after requests that came later. All statistics over
	// time count it then.
	s.now = max(s.now, d.Came)
	if d.Delay > 0 {
		s.delayed++
	}
	bucket := s.timelines.bucket(s.now)
	outcome, limited := report.Allowed, d.Denied
	if d.Denied {
		outcome = report.Denied
	}
	for i := range d.Zones {
		z := &d.Zones[i]
		limited = limited || !z.BanOnly
		if !z.Reached || z.BanOnly && !z.Denied {
			continue
		}
		outcome = max(outcome, z.Outcome())
		s.timelines.series[1+z.Zone][bucket].Count(z.Outcome())
		s.zones[z.Zone].observe(s.now, z, &s.keys)
	}
	s.tally.Count(outcome)
	s.timelines.series[0][bucket].Count(outcome)
	if limited {
		s.limited++
	}
}

// Report returns the counts so far.
func (s *Statistics) Report() report.Configuration {
	r := report.Configuration{
		Tally: s.tally, Limited: s.limited, Delayed: s.delayed,
		BucketSeconds: seconds(s.timelines.length), Timeline: s.timelines.report(0),
		Zones: []report.Zone{}, LeftOut: s.configuration.LeftOut(), Notes: append([]string{}, s.configuration.Notes()...),
	}
	if s.tally.Requests > 0 {
		r.Begins = timeOf(s.timelines.begins)
	}
	for i := range s.zones {
		zone := s.zones[i].report()
		if slices.ContainsFunc(r.LeftOut, func(l report.LeftOut) bool { return l.Zone == zone.Name && !l.Partly }) {
			continue
		}
		zone.Timeline = s.timelines.report(1 + i)
		r.Zones = append(r.Zones, zone)
	}
	return r
}

func timeOf(at algorithms.Micros) *time.Time {
	t := time.UnixMicro(at).UTC()
	return &t
}
