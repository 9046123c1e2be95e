package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const programSteps = 40

// latest is the last instant the bounds of package algorithms are made for, with
// room to spare: the year 2096.
const latest algorithms.Micros = 4_000_000_000_000_000

// program is one run of one seed: steps on a timeline, with the results of the Go functions.
type program struct {
	seed     uint64
	expiry   algorithms.Micros   // of slots
	lines    *rand.Rand          // draws lines, so that the rest of the program does not depend on them
	requests []store.ZoneRequest // one for each zone
	states   []zoneState
	steps    []step

	isLarge   bool              // it asks one log of thousands of events
	startFrom *algorithms.State // what the first budget holds before the first step, or nil
	startBans map[int]algorithms.State
	inForce   []string // the override of each request
	poisons   []poisonedKey
}

// zoneState is the known state of a zone's key.
type zoneState struct {
	budgets []algorithms.State // of its limits
	writers []store.Limit      // which have written the budgets last
	most    int64              // the largest events of any of them
	ban     algorithms.State

	slots, reserved wiretest.Slots
}

// step asks some zones about one request, and corrects an earlier one.
type step struct {
	now      algorithms.Micros
	instance algorithms.Instance
	joined   bool // it is in the same message as the step before
	zones    []int

	// The next fields have an entry for each zone of the program.

	limits  [][]store.Limit // those in force, if they have changed
	costs   []int64
	peeks   []bool
	wait    algorithms.Micros // MaxWait of its Binary requests
	slots   []int64           // how many slots there are
	lines   []store.SlotLine
	tenants []store.Tenant
	waits   []bool   // for reserved events
	asked   []string // by which override each zone is asked
	want    []store.Outcome

	change     store.Change // what is changed before
	overridden bool         // there are other overrides, then nothing is decided:
	others     []string     // of each zone asked
	found      []int64      // how many slots and reserved events the instance had, for each zone asked that has some
	poison     *poisonedOp  // an operation before it that fails
	correction correction   // made afterwards
}

// correction gives back events of the charges of an earlier step and its slots, and charges it
// again.
type correction struct {
	of             int
	refund, charge int64
	left           map[int]set   // by the zone
	released       map[int]int64 // how many events the instance had reserved, by the zone
	charged        map[int][]algorithms.Decision
}

// set sets the slots of the instance.
type set struct {
	found, left int64
	endsLine    bool
}

// poisonedKey is a key that holds what no budget is.
type poisonedKey struct {
	request store.ZoneRequest
	value   string
	isList  bool // which a script finds out when it writes
}

// poisonedOp asks zones about a request, and then one about a poisoned key.
type poisonedOp struct {
	key   int
	zones []int
}

func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d:", p.seed)
	for _, r := range p.requests {
		fmt.Fprintf(&b, " [%s key %s %v", r.Zone, r.Key, r.Mode)
		if r.Shadow {
			b.WriteString(" shadow")
		}
		if r.Slots != nil {
			b.WriteString(" slots")
		}
		if r.ReservedID != "" {
			b.WriteString(" reserved")
		}
		if r.Ban != nil {
			fmt.Fprintf(&b, " ban %+v", *r.Ban.Ban)
		}
		b.WriteString("]")
		for _, l := range r.Limits {
			fmt.Fprintf(&b, " %v", l.Limit)
		}
	}
	return b.String()
}

// addEnd lets the period of the first budget, a calendar, end where another version of the time zone database says.
func (p *program) addEnd(r *rand.Rand, now algorithms.Micros) {
	const hour = 3_600_000_000
	_, end, next := p.requests[0].Limits[0].Periods(now)
	p.startFrom = &algorithms.State{A: pick(r, end, next) + pick[int64](r, -hour, -1, 0, 1, hour), B: r.Int64N(5), C: 5}
	p.states[0].budgets[0] = *p.startFrom
}

// newProgram draws a program and decides it in Go. The next step is aimed at the edges of the last
// decision: exactly then, 1 µs before and after.
func newProgram(seed uint64) *program {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &program{seed: seed, lines: rand.New(rand.NewPCG(seed, 2)), expiry: pick[int64](r, 1000, 1_000_000, 30_000_000)}
	now := 1_763_640_000_000_000 + r.Int64N(1_000_000_000)
	if p.isLarge = r.IntN(20) == 0; p.isLarge {
		p.addLargeLog(r)
	} else {
		for z := range pick(r, 1, 1, 1, 2, 3) {
			p.addZone(r, z)
		}
	}
	for z := range p.requests {
		if q := &p.requests[z]; q.Mode == algorithms.Binary && len(q.Limits) > 0 && p.lines.IntN(2) == 0 {
			q.ReservedID = store.ReservedID(q.Zone, "")
		}
	}
	p.startBans = make(map[int]algorithms.State)
	for z, q := range p.requests {
		if q.Ban != nil && r.IntN(4) == 0 { // about as many bans as are distinguished
			p.states[z].ban = algorithms.State{A: now - 1, B: now + q.Ban.Duration/2, C: 62 + 65*r.Int64N(2)}
			p.startBans[z] = p.states[z].ban
		}
	}
	if q := p.requests[0]; len(q.Limits) > 0 && q.Limits[0].Algorithm().Calendar && r.IntN(2) == 0 {
		p.addEnd(r, now)
	}
	p.addPoison()
	edges, back := []algorithms.Micros{0}, algorithms.Micros(0)
	for n := range programSteps {
		ahead := pick(r, edges...) + pick[int64](r, -1, 0, 0, 1)
		switch r.IntN(12) {
		case 0: // the clock steps back: a little, about as far as holds a budget still, or further
			ahead = -pick(r, r.Int64N(10), 999_999+r.Int64N(4), r.Int64N(2_000_000), r.Int64N(1_000_000_000_000))
			back = max(back-ahead, 0)
		case 1:
			if r.IntN(3) == 0 { // and goes back to where it was
				ahead, back = back, 0
				break
			}
			ahead = pick[int64](r, 0, 1, r.Int64N(1000), r.Int64N(100_000_000))
		case 2:
			ahead = 0
		}
		joined := n > 0 && r.IntN(3) == 0
		if !joined {
			now = min(now+ahead, latest)
		}
		p.addStep(r, now, joined)
		if of := pick(r, r.IntN(len(p.steps)), max(len(p.steps)-2-r.IntN(4), 0)); r.IntN(3) == 0 && of < len(p.steps)-1 && !p.steps[of].overridden {
			p.correct(of, pick[int64](r, 0, 1, 1, 2, 3), pick(r, 0, 0, 1, 4, r.Int64N(100), p.mostCost()))
		}
		edges = p.edges(edges[:0])
	}
	return p
}

func (p *program) addZone(r *rand.Rand, z int) {
	q := store.ZoneRequest{
		Zone: fmt.Sprint("z", z), Key: fmt.Sprint(p.seed, "/", r.IntN(2)),
		Mode:   pick(r, algorithms.Binary, algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force),
		Shadow: r.IntN(4) == 0,
	}
	if r.IntN(4) == 0 {
		q.Override = new(store.Override)
	}
	for range pick(r, 1, 1, 2, 3) {
		l := store.NewLimit(q.Zone, "", randomLimit(r))
		if l.Algorithm().BinaryOnly {
			q.Mode = algorithms.Binary
		}
		if l.Scalable() && r.IntN(6) == 0 {
			l.Limit = l.Scaled(pick[int64](r, 500_000, 3_000_000, 1))
		}
		if slices.ContainsFunc(q.Limits, func(k store.Limit) bool { return k.ID == l.ID }) {
			continue
		}
		q.Limits = append(q.Limits, l)
	}
	if r.IntN(3) == 0 {
		q.Ban = &store.Ban{Ban: randomBan(r, q.Limits[0].Window), ID: store.BanID(q.Zone, "")}
	}
	if r.IntN(3) == 0 {
		q.Slots = &store.Slots{ID: store.SlotsID(q.Zone, "")}
		if r.IntN(4) == 0 {
			q.Limits = nil
		}
	}
	if q.Ban != nil && r.IntN(5) == 0 { // only looks the ban up
		q.Limits = nil
	}
	p.requests, p.inForce = append(p.requests, q), append(p.inForce, "")
	p.states = append(p.states, zoneState{budgets: make([]algorithms.State, len(q.Limits))})
}

// addLargeLog adds a zone whose log is written piece by piece.
func (p *program) addLargeLog(r *rand.Rand) {
	q := algorithms.Quota{Algorithm: "sliding_log", Events: 2000 + r.Int64N(8000), Window: 60_000_000 + r.Int64N(1000)}
	if r.IntN(4) == 0 {
		q.Events, q.Buckets = 10*q.Events, 1+r.Int64N(2000)
	}
	l, err := algorithms.NewLimit(q)
	if err != nil {
		panic(err)
	}
	limits := []store.Limit{store.NewLimit("z", "", l)}
	request := store.ZoneRequest{Zone: "z", Key: fmt.Sprint(p.seed), Mode: algorithms.Nary, Limits: limits}
	p.requests, p.inForce = append(p.requests, request), append(p.inForce, "")
	p.states = append(p.states, zoneState{budgets: make([]algorithms.State, 1)})
}

// addPoison adds keys of every kind that hold something else.
func (p *program) addPoison() {
	limit := func(algorithm string) []store.Limit {
		l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: algorithm, Events: 5, Window: 1_000_000})
		if err != nil {
			panic(err)
		}
		return []store.Limit{store.NewLimit("p", "", l)}
	}
	ban := &store.Ban{Ban: &algorithms.Ban{After: 1, Window: 1, Duration: 1, Max: 1}, ID: store.BanID("p", "")}
	for n, key := range []poisonedKey{
		{request: store.ZoneRequest{Limits: limit("gcra")}, value: "hello"},
		{request: store.ZoneRequest{Limits: limit("token_bucket")}, value: "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
		{request: store.ZoneRequest{Limits: limit("sliding_log")}, value: "hello"},
		{request: store.ZoneRequest{Slots: &store.Slots{ID: store.SlotsID("p", ""), Limit: 5}}, value: "hello"},
		{request: store.ZoneRequest{Ban: ban}, value: "hello"},
		{request: store.ZoneRequest{Limits: limit("gcra")}, isList: true},
		{request: store.ZoneRequest{Slots: &store.Slots{ID: store.SlotsID("p", ""), Limit: 5}}, isList: true},
		{request: store.ZoneRequest{Limits: limit("sliding_log")}, isList: true},
	} {
		key.request.Zone, key.request.Key, key.request.Cost = "p", fmt.Sprint(p.seed, "/poisoned ", n), 1
		p.poisons = append(p.poisons, key)
	}
}

// edges appends how far off the next edges are.
func (p *program) edges(edges []algorithms.Micros) []algorithms.Micros {
	edges = append(edges, p.expiry)
	last := p.steps[len(p.steps)-1]
	for i, o := range last.want {
		for _, d := range o.Decisions {
			edges = append(edges, d.RetryAfter, d.MoreAfter, d.ResetAfter)
		}
		if p.requests[i].Ban != nil {
			edges = append(edges, o.Ban.EndsAfter)
		}
	}
	for _, q := range p.requests {
		for _, l := range q.Limits {
			edges = append(edges, l.Window, l.Window/l.Events, l.MinInterval)
			if p.isLarge { // most of them expire little by little
				w := l.Window
				edges = append(edges[:0], w/5, w/5, w/4, w/3, w/3, w/2, 2*w, last.want[0].Decisions[0].MoreAfter)
			}
		}
		if q.Ban != nil {
			edges = append(edges, q.Ban.Window, q.Ban.Max)
		}
	}
	return edges
}

// addStep draws a step and decides it.
func (p *program) addStep(r *rand.Rand, now algorithms.Micros, joined bool) {
	s := step{now: now, joined: joined, asked: slices.Clone(p.inForce), instance: algorithms.Instance{byte(r.IntN(3)), 1}}
	if joined {
		s.instance = p.steps[len(p.steps)-1].instance
	}
	s.zones = r.Perm(len(p.requests))
	if r.IntN(2) == 0 {
		s.zones = s.zones[:1+r.IntN(len(s.zones))]
	}
	changes := r.IntN(4) == 0
	for _, q := range p.requests {
		s.limits = append(s.limits, nil)
		if changes {
			s.limits[len(s.limits)-1] = changedLimits(r, q.Limits)
		}
		b, e := int64(1), int64(1)
		if len(q.Limits) > 0 {
			b, e = q.Limits[0].Burst, q.Limits[0].Events
		}
		cost := min(pick(r, 1, 1, 1, 0, 2, b, b+1, e, e+1, (e+1)/2, 1<<31-1), p.mostCost())
		if p.isLarge {
			cost = pick(r, 1, e/20, e/10, e/8, e/5, e/4, e/3, e/2)
		}
		s.costs, s.peeks = append(s.costs, cost), append(s.peeks, r.IntN(8) == 0)
		s.slots = append(s.slots, pick[int64](r, 1, 2, 2, 2, 2, 3, 10))
		s.lines, s.waits = append(s.lines, drawLine(p.lines)), append(s.waits, p.lines.IntN(2) == 0)
		s.tenants = append(s.tenants, p.drawTenant())
	}
	if l := p.requests[0].Limits; len(l) > 0 && r.IntN(2) == 0 {
		s.wait = pick(r, 1, l[0].Window/l[0].Events, l[0].Window, 3*l[0].Window, r.Int64N(10*l[0].Window))
	}
	if r.IntN(12) == 0 {
		s.poison = &poisonedOp{key: r.IntN(len(p.poisons))}
		if !p.poisons[s.poison.key].isList { // else the others are charged before the script finds out
			s.poison.zones = r.Perm(len(p.requests))[:r.IntN(len(p.requests)+1)]
		}
	}
	for z, q := range p.requests {
		if q.Override == nil {
			continue
		}
		if text := pick(r, "", "a", "b"); r.IntN(6) == 0 && s.change.Override == nil && !joined {
			s.change = store.Change{Zone: q.Zone, Key: q.Key, Override: &text}
			p.inForce[z] = text
		}
		if s.asked[z] = p.inForce[z]; r.IntN(8) == 0 {
			s.asked[z] = pick(r, "", "a", "b", "=a")
		}
		s.overridden = s.overridden || s.asked[z] != p.inForce[z] && slices.Contains(s.zones, z)
	}
	if s.overridden {
		s.want = []store.Outcome{}
		for _, z := range s.zones {
			text := ""
			if p.requests[z].Override != nil {
				text = p.inForce[z]
			}
			s.others = append(s.others, text)
		}
		p.steps = append(p.steps, s)
		return
	}
	p.decide(s)
}

// mostCost is the largest cost drawn. With a log it is small: a mutant may push
// that many entries.
func (p *program) mostCost() int64 {
	for _, q := range p.requests {
		for _, l := range q.Limits {
			if l.Algorithm().Name == "sliding_log" {
				return 2500
			}
		}
	}
	return 1<<31 - 1
}

// asks returns the requests of zones at a step.
func (p *program) asks(s step, zones []int) (requests []store.ZoneRequest) {
	for _, z := range zones {
		q := p.requestAt(s, z)
		q.Cost, q.Peek, q.MaxWait = s.costs[z], s.peeks[z], maxWait(q, s.wait)
		if q.Override != nil {
			q.Override = &store.Override{Text: s.asked[z]}
		}
		if q.Slots != nil {
			q.Slots = &store.Slots{ID: q.Slots.ID, Limit: s.slots[z]}
		}
		if q.Slots != nil || q.ReservedID != "" {
			q.Line, q.Tenant, q.WaitsForReserved = s.lines[z], s.tenants[z], s.waits[z]
		}
		requests = append(requests, q)
	}
	return requests
}

// poisonedRequests returns what the poisoned operation of a step asks.
func (p *program) poisonedRequests(s step) []store.ZoneRequest {
	requests := p.asks(s, s.poison.zones)
	for i := range requests {
		requests[i].Override = nil
	}
	return append(requests, p.poisons[s.poison.key].request)
}
