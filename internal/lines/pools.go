package lines

import (
	"container/list"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// In this process, at least so many tenants of a key count apart. All others count as one, [store.OtherTenants], until one of
// these uses nothing. So tenants that a client invents grow nothing without bound.
const (
	sharedTenants = 16 // each check reads the tenants of all processes
	localTenants  = 1000
)

// never is the instant of a question that a line has not asked.
const never Micros = -1 << 53

// slotKey names the slots of a key in a zone of the store, or its reserved events.
type slotKey struct {
	id, key string
}

// pool is the slots of a key, or its reserved events, with the lines of its tenants. Without tenants there is one line. A nil
// pool has none.
type pool struct {
	slotKey
	lines []*line
	asker *Request // the one that is asking the store, or nil
	freed bool     // a slot may have become free since the last question was asked
}

// line is the requests of a tenant that wait for a slot, and what the tenant uses. An unused line is dropped.
type line struct {
	*pool
	tenant    uint64
	users     int64     // requests of the tenant that this process decides, or that have a slot; 0 without tenants
	slots     int64     // how many have a slot
	granted   Micros    // when one last got a slot
	requests  list.List // of *Request that wait, in the order in which they came
	mayBeFree bool      // a slot may have become free since the last question was asked
	lastAsk   Micros    // after a pause from then, the first request asks even if mayBeFree is false
}

// slotKey returns the name of the slots or the reserved events that the request needs.
func (r *Request) slotKey(n Need) slotKey {
	q := &r.Requests[n.Zone]
	if n.Reserved {
		return slotKey{q.ReservedID, q.Key}
	}
	return slotKey{q.Slots.ID, q.Key}
}

// tenantOf returns the tenant in whose line the request waits for something.
func (r *Request) tenantOf(n Need) uint64 {
	if n.Reserved {
		return 0
	}
	return r.Requests[n.Zone].Tenant.ID
}

// waits reports whether a request waits in the line. l may be nil.
func (l *line) waits() bool { return l != nil && l.requests.Len() > 0 }

// waits reports whether a request waits in any line of the pool.
func (p *pool) waits() bool { return p != nil && slices.ContainsFunc(p.lines, (*line).waits) }

// line returns the line of a tenant, or nil if it uses nothing.
func (p *pool) line(tenant uint64) *line {
	if p == nil {
		return nil
	}
	at := slices.IndexFunc(p.lines, func(l *line) bool { return l.tenant == tenant })
	if at < 0 {
		return nil
	}
	return p.lines[at]
}

// lineOf returns the line in which the request waits for something, or would wait. It may be nil.
func (s *SlotLines) lineOf(r *Request, n Need) *line {
	return s.byKey[r.slotKey(n)].line(r.tenantOf(n))
}

// addLine is lineOf, but adds the line if it is nil.
func (s *SlotLines) addLine(r *Request, n Need) *line {
	l, key := s.lineOf(r, n), r.slotKey(n)
	if l == nil {
		p := s.byKey[key]
		if p == nil {
			p = &pool{slotKey: key}
			s.byKey[key] = p
		}
		l = &line{pool: p, tenant: r.tenantOf(n)}
		p.lines = append(p.lines, l)
	}
	return l
}

// dropUnused drops a line that is not used.
func (s *SlotLines) dropUnused(l *line) {
	if l.users > 0 || l.waits() {
		return
	}
	if l.lines = slices.DeleteFunc(l.lines, func(other *line) bool { return other == l }); len(l.lines) == 0 {
		delete(s.byKey, l.slotKey)
	}
}

// enter counts the request for its tenants. In a pool with too many tenants, it makes the request one of the others.
func (s *SlotLines) enter(r *Request) {
	s.eachTenant(r, func(n Need, q *store.ZoneRequest) {
		if p := s.byKey[r.slotKey(n)]; p != nil && s.lineOf(r, n) == nil && len(p.lines) > s.maxTenants {
			q.Tenant.ID = store.OtherTenants
		}
		s.addLine(r, n).users++
		r.entered = true
	})
}

// exit counts the slots that the request has taken. For other slots it is no user any more.
func (s *SlotLines) exit(r *Request, now Micros) {
	if !r.entered {
		return
	}
	r.entered = false
	s.eachTenant(r, func(n Need, q *store.ZoneRequest) {
		if l := s.lineOf(r, n); r.allowed && q.Outcome.Slots.Taken {
			l.slots, l.granted = l.slots+1, now
		} else {
			l.users--
			s.dropUnused(l)
		}
	})
}

// eachTenant calls do under mu for each zone of the request in which it has a tenant.
func (s *SlotLines) eachTenant(r *Request, do func(Need, *store.ZoneRequest)) {
	for i := range r.Requests {
		if q := &r.Requests[i]; q.Slots != nil && q.Tenant.ID != 0 && !q.Peek {
			s.mu.Lock()
			do(Need{Zone: i}, q)
			s.mu.Unlock()
		}
	}
}

// Wake makes the first requests of lines ask the store, because corrections have given slots back, or ended reservations.
// Requests that join later ask by themselves. So Wake must come after the corrections.
func (s *SlotLines) Wake(corrections []store.Correction) {
	hasTenant := func(c store.Correction) bool { return c.Leave && c.Request.Tenant.ID != 0 }
	if s.waiting.Load() == 0 && !slices.ContainsFunc(corrections, hasTenant) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range corrections {
		c := &corrections[i]
		if c.Leave {
			p := s.byKey[slotKey{c.Request.Slots.ID, c.Request.Key}]
			if l := p.line(c.Request.Tenant.ID); l != nil && l.users > 0 {
				l.slots--
				l.users--
				s.dropUnused(l)
			}
			s.wakePool(p)
		}
		if c.Releases() {
			s.wakePool(s.byKey[slotKey{c.Request.ReservedID, c.Request.Key}])
		}
	}
}

// wakePool makes the first requests of all lines ask the store, one after the other.
func (s *SlotLines) wakePool(p *pool) {
	if !p.waits() {
		return
	}
	p.freed = true
	for _, l := range p.lines {
		l.mayBeFree = true
	}
	s.wakeNext(p, never)
}

// wakeLine makes the first request of a line look when it is its turn, and the one of the pool that asks next.
func (s *SlotLines) wakeLine(l *line, now Micros) {
	if l.waits() {
		l.first().Wake(s.wait(l.first(), now))
	}
	s.wakeNext(l.pool, now)
}

// wakeNext makes the request look that asks next.
func (s *SlotLines) wakeNext(p *pool, now Micros) {
	if next := s.next(p, now); next != nil {
		next.first().Wake(0)
	}
}

// next returns the line of the pool whose first request asks next, or nil if none does now: another is asking, or none has
// a reason. A shared store decides on the turns, so a line that has not told it for a long time comes first there.
func (s *SlotLines) next(p *pool, now Micros) (next *line) {
	if p == nil || p.asker != nil {
		return nil
	}
	rank := func(l *line) int {
		switch since := now - l.lastAsk; {
		case !l.waits():
			return 0
		case s.endLine != nil && since > algorithms.LineRenewal && since >= s.pauseOf(l):
			return 2
		case l.mayBeFree || since >= s.pauseOf(l):
			return 1
		}
		return 0
	}
	best := 0
	for _, l := range p.lines {
		if r := rank(l); r > best || r == best && r > 0 && l.comesBefore(next, next.first(), next.first().weight()) {
			next, best = l, r
		}
	}
	return next
}

// comesBefore reports whether the tenant of the line has fewer slots for its weight than another one, whose first request is r.
// If both have the same, the tenant comes before that has waited longer, since its last slot. other may be nil.
func (l *line) comesBefore(other *line, r *Request, weight int64) bool {
	slots, since := int64(0), r.Came
	if other != nil {
		slots, since = other.slots, max(since, other.granted)
	}
	a, b := l.slots*weight, slots*l.first().weight()
	return a < b || a == b && max(l.first().Came, l.granted) < since
}

// weight returns the weight of the request in the zone in whose line it stands.
func (r *Request) weight() int64 { return max(r.Requests[r.need.Zone].Tenant.Weight, 1) }

// remaining says whether slots may be free after a question.
type remaining uint8

const (
	slotsMayRemain remaining = iota // for any line
	slotsForOthers                  // not for the line that asked
	noSlotRemains
)

// endQuestion ends the question of a request of the line.
func (l *line) endQuestion(slots remaining, now Micros) {
	l.asker, l.lastAsk = nil, now
	for _, other := range l.lines {
		switch {
		case slots == slotsMayRemain:
			other.mayBeFree = true
		case slots == noSlotRemains && !l.freed:
			other.mayBeFree = false
		}
	}
}
