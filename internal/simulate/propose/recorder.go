package propose

import (
	"unique"

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
// A Recorder keeps all requests in memory, in a few bytes each. It also keeps the keys, up to
// [simulate.Configuration.MaxKeys]. Requests of further keys are not recorded.
type Recorder struct {
	zones  []recordedZone
	target Target
	keys   keytable.Bound // of all zones together
	// shownKey returns a key of a zone as operators see it.
	shownKey func(zone int, key string) string
	workers  int // of Propose; 0 stands for one for each core
}

// recordedZone is the requests of a zone.
type recordedZone struct {
	simulate.Zone
	keys keytable.Table[recordedKey]
	sets []*stream // as Zone.Sets; nil where nothing is recorded
	// unproposedSets are the sets beyond maxSets that had requests.
	unproposedSets map[int]struct{}
	recordedSets   int
}

// recordedKey is a key of a zone, and its requests.
type recordedKey struct {
	shown     string
	userAgent unique.Handle[string] // of the first request
	requests  encodedRequests
}

// maxSets is the largest number of sets of a zone for which limits are proposed. The sets whose requests
// come first are chosen.
const maxSets = 20

// NewRecorder returns a Recorder that proposes limits for the zones of a configuration.
func NewRecorder(c simulate.Configuration, target Target) *Recorder {
	zones := c.Zones()
	r := &Recorder{target: target, shownKey: c.ShownKey, keys: keytable.NewBound(c.MaxKeys(), len(zones))}
	for _, zone := range zones {
		r.zones = append(r.zones, recordedZone{
			Zone: zone, keys: keytable.New[recordedKey](), sets: make([]*stream, len(zone.Sets)), unproposedSets: make(map[int]struct{}),
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
	number, result := zone.keys.Find(z.Key, &r.keys)
	if result == keytable.Full {
		return
	}
	key := zone.keys.At(number)
	if result == keytable.Added {
		key.shown, key.userAgent = r.shownKey(z.Zone, z.Key), unique.Make(d.UserAgent)
	}
	at := max(d.Came, key.requests.last)
	e := request{at: at, end: max(d.End, at), cost: z.Cost, mode: z.Mode}
	switch {
	case deniedLater: // there is no response, so the logged one says nothing
		e.end, e.settled = at, zone.RefundsDenied && z.Cost > 0
	case z.Settled && !d.WasDenied && z.TrueCost != z.Cost:
		e.settled, e.trueCost = true, z.TrueCost
	}
	if set := zone.stream(z.Set); set != nil {
		set.count(number, &e)
		key.requests.add(z.Set, &e)
	}
}

// stream returns the stream of a set. It returns nil if no limits are proposed for the set.
func (z *recordedZone) stream(set int) *stream {
	if limits := &z.Sets[set]; len(limits.Limits) == 0 && !limits.Open {
		return nil
	}
	if z.sets[set] == nil {
		if z.recordedSets == maxSets {
			z.unproposedSets[set] = struct{}{}
			return nil
		}
		z.recordedSets++
		z.sets[set] = &stream{zone: z, set: set}
	}
	return z.sets[set]
}
