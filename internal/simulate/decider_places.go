package simulate

import "github.com/caddy-rate-limit/caddy-rate-limit/algorithms"

// places are the places of a zone for delayed requests, those that wait for a slot included. Their number
// bounds the memory.
type places struct {
	taken int64
	byKey map[string]int64 // never 0
}

// heldPlace is a place that a request has taken.
type heldPlace struct {
	zone int
	key  string
}

func newPlaces(zones []Zone) []places {
	all := make([]places, len(zones))
	for i := range zones {
		if zones[i].MaxDelay > 0 {
			all[i].byKey = make(map[string]int64)
		}
	}
	return all
}

// isFree reports whether there is a place for another request of a key. A key gets another place only
// while more places are free than the key has, unless it is the only key.
func (p *places) isFree(z *Zone, key string) bool {
	free := z.Places - p.taken
	return free > 0 && (z.SingleKey || p.byKey[key] < free)
}

// findPlaces finds out in which zones of the handler the request can be delayed, and for how long. A
// decision takes no time, so a place is taken only when the request is really delayed.
func (d *Decider) findPlaces(f *flight) {
	h := f.handlerVisit()
	for i := range h.Requests {
		r, z := &h.Requests[i], d.zoneOf(f, i)
		if z.MaxDelay == 0 || len(r.Limits) == 0 && r.Slots == nil {
			continue
		}
		maxWait := d.longestLimitDelay(f, i, 0)
		switch {
		case maxWait == 0 && r.Slots == nil:
		case r.Shadow: // is charged in advance, but not delayed
			r.MaxWait = maxWait
		case d.places[h.Zones[i].Zone].isFree(z, r.Key):
			r.MaxWait, f.hasPlace[i] = maxWait, true
		}
	}
}

// longestLimitDelay returns how long the limits of a zone can delay a request that has waited for a slot
// before.
func (d *Decider) longestLimitDelay(f *flight, i int, waited algorithms.Micros) algorithms.Micros {
	longest := d.zoneOf(f, i).MaxDelay - waited
	for _, l := range f.handlerVisit().Requests[i].Limits {
		longest = min(longest, l.MaxDelay())
	}
	return max(longest, 0)
}

// takePlaces takes the places that the request needs while it is delayed. Later calls do nothing.
func (d *Decider) takePlaces(f *flight) {
	if len(f.places) > 0 {
		return
	}
	h := f.handlerVisit()
	for i, hasPlace := range f.hasPlace {
		if hasPlace {
			p := heldPlace{h.Zones[i].Zone, h.Requests[i].Key}
			f.places = append(f.places, p)
			d.places[p.zone].taken++
			d.places[p.zone].byKey[p.key]++
		}
	}
}

// releasePlaces gives back the places that the request has taken.
func (d *Decider) releasePlaces(f *flight) {
	for _, held := range f.places {
		p := &d.places[held.zone]
		p.taken--
		if p.byKey[held.key]--; p.byKey[held.key] == 0 {
			delete(p.byKey, held.key)
		}
	}
	clear(f.places)
	f.places = f.places[:0]
}
