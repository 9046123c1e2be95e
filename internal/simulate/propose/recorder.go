package propose

import (
	"fmt"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/keytable"
)

// Recorder is a [simulate.Proposer] that records the requests of each zone, for proposals. These are
// all requests that came to its handler and belong to the zone, also those that a zone of the handler
// denied. Exempt requests, and requests of which only a ban decides, are not recorded.
//
// A request that waited for a slot can come late to a Recorder. Then it counts at the instant of the
// request of the same key before it.
//
// A Recorder keeps up to 64 MB of requests in memory, and the rest in a temporary file. It also keeps
// the keys, up to [simulate.Configuration.MaxKeys]. Requests of further keys are not recorded.
// Call Close at the end.
type Recorder struct {
	zones  []recordedZone
	target Target
	keys   keytable.Bound // of all zones together
	// shownKey returns a key of a zone as operators see it.
	shownKey func(zone int, key string) string
	spool    *spool
	workers  int // of Propose; 0 stands for one for each core
}

// recordedZone is the requests of a zone.
type recordedZone struct {
	simulate.Zone
	keys  keytable.Table[int64] // with the positions of their names
	names names
	sets  []*stream // as Zone.Sets; nil where nothing is recorded
	all   *stream   // of all sets, for concurrency; nil without
	// unproposedSets are the sets beyond maxSets that had requests.
	unproposedSets map[int]struct{}
	recordedSets   int
}

// maxSets is the largest number of sets of a zone for which limits are proposed. The sets whose requests
// come first are chosen.
const maxSets = 20

// maxRecorded is how many bytes of requests a Recorder keeps in memory.
const maxRecorded = 64 << 20

// NewRecorder returns a Recorder that proposes limits for the zones of a configuration.
func NewRecorder(c simulate.Configuration, target Target) *Recorder {
	return newRecorder(c, target, maxRecorded)
}

func newRecorder(c simulate.Configuration, target Target, maxMemory int64) *Recorder {
	zones := c.Zones()
	r := &Recorder{target: target, shownKey: c.ShownKey, keys: keytable.NewBound(c.MaxKeys(), len(zones)), spool: newSpool(maxMemory)}
	for _, zone := range zones {
		r.zones = append(r.zones, recordedZone{
			Zone: zone, keys: keytable.New[int64](), names: names{spool: r.spool}, sets: make([]*stream, len(zone.Sets)),
			unproposedSets: make(map[int]struct{}),
		})
	}
	return r
}

// Observe records a request.
func (r *Recorder) Observe(d *simulate.Decided) {
	rest := d.Zones
	for i := range d.Handlers {
		handler := &d.Handlers[i]
		n, denies := 0, false
		for j := range handler.Zones {
			if n < len(rest) && rest[n].ZoneVisit == &handler.Zones[j] { // the zone limits the request
				denies = denies || rest[n].Denied && !rest[n].Shadow
				n++
			}
		}
		deniedLater := d.Denied && !denies
		for j := range rest[:n] {
			if z := &rest[j]; !z.BanOnly {
				r.record(d, z, deniedLater)
			}
		}
		if denies { // the request doesn't come to the next handler
			return
		}
		rest = rest[n:]
	}
}

// record records a request to a zone. deniedLater reports whether a later handler denies the request.
func (r *Recorder) record(d *simulate.Decided, z *simulate.DecidedZone, deniedLater bool) {
	zone := &r.zones[z.Zone]
	key, result := zone.keys.Find(z.Key, &r.keys)
	switch result {
	case keytable.Full:
		return
	case keytable.Added:
		*zone.keys.At(key) = zone.names.add(r.shownKey(z.Zone, z.Key), d.UserAgent)
	}
	e := request{at: d.Came, end: max(d.End, d.Came), cost: z.Cost, mode: z.Mode}
	switch {
	case deniedLater: // there is no response, so the logged one says nothing
		e.end, e.settled = d.Came, zone.RefundsDenied && z.Cost > 0
	case z.Settled && !d.WasDenied && z.TrueCost != z.Cost:
		e.settled, e.trueCost = true, z.TrueCost
	}
	if zone.Concurrency > 0 {
		if zone.all == nil {
			zone.all = newStreamWithEnds(r.spool)
		}
		zone.all.add(key, &e)
	}
	if set := &zone.Sets[z.Set]; len(set.Limits) == 0 && !set.Open {
		return
	}
	if zone.sets[z.Set] == nil {
		if zone.recordedSets == maxSets {
			zone.unproposedSets[z.Set] = struct{}{}
			return
		}
		zone.recordedSets++
		zone.sets[z.Set] = newStream(r.spool)
	}
	zone.sets[z.Set].add(key, &e)
}

// Close removes the temporary file.
func (r *Recorder) Close() error { return r.spool.close() }

// request is a request as a limit sees it.
type request struct {
	at   algorithms.Micros
	end  algorithms.Micros // of the response, if the limit needs to know
	cost int64
	mode algorithms.Mode
	// settled reports whether the charge becomes trueCost when the response ends.
	settled  bool
	trueCost int64
}

// lateCharge returns how many events are charged when the response ends, beyond the cost.
func (e *request) lateCharge() int64 {
	if !e.settled {
		return 0
	}
	return max(e.trueCost-e.cost, 0)
}

func (e *request) String() string {
	return fmt.Sprintf("at %d, until %d, cost %d, %v, settled %v %d", e.at, e.end, e.cost, e.mode, e.settled, e.trueCost)
}
