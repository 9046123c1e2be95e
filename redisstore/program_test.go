package redisstore

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// latest is the last instant the bounds of package algorithms are made for, with
// room to spare: the year 2096.
const latest algorithms.Micros = 4_000_000_000_000_000

// program is one run of one seed.
type program struct {
	seed     uint64
	format   format
	requests []store.Request // of every step, with the costs of the moment
	states   []zoneState
	steps    []step

	startFrom *algorithms.State // what the first budget holds before the first step, or nil
	inForce   []string          // the override of each request
}

// zoneState is what is known of a zone's key.
type zoneState struct {
	budgets []algorithms.State // of its limits
	ban     algorithms.State
	slots   algorithms.State // a log
}

// step is one step of a program, with an entry per request where it has several.
type step struct {
	now      algorithms.Micros
	costs    []int64
	wait     algorithms.Micros // MaxWait of its Binary requests
	slots    []int64           // how many slots there are
	change   store.Change      // what is changed before
	asked    []string          // by which override each request is asked
	others   []string          // which there are, if these are others; then nothing is decided
	want     []store.Outcome
	bans     [][8]int64           // what is said of bans
	receipts []algorithms.Receipt // of slots that are taken
	refund   refund               // what is given back afterwards
}

// refund is that so many events of the charges of an earlier step are given back, and its
// slots; 0 is none.
type refund struct {
	of     int
	events int64
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

// pick returns one of its arguments.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomLimit draws a limit; one in eight is close to the largest that can be
// counted exactly.
func randomLimit(r *rand.Rand) *algorithms.Limit {
	for {
		all := algorithms.All()
		a := all[r.IntN(len(all))]
		q := algorithms.Quota{
			Algorithm: a.Name,
			Events:    pick(r, 1, 2, 3, 5, 7, 10, 1+r.Int64N(50)),
			Window:    pick[int64](r, 1, 2, 7, 10, 999, 1000, 1_000_000, 60_000_000, 1+r.Int64N(5_000_000)),
		}
		if a.Burst && r.IntN(2) == 0 {
			q.Burst = pick(r, 1, 2, q.Events+1, 2*q.Events, 1+r.Int64N(40))
		}
		if r.IntN(8) == 0 {
			q.Events, q.Burst, q.Window = 1+r.Int64N(3000), 0, 1+r.Int64N(1<<r.IntN(53))
			if a.Burst {
				q.Burst = 1 + r.Int64N(1<<r.IntN(40))
			}
		}
		if slices.Contains(a.Options, "align") {
			q.Align = pick(r, "", "clock")
		}
		if slices.Contains(a.Options, "min_interval") && r.IntN(3) == 0 {
			q.MinInterval = pick(r, 1, q.Window/q.Events, q.Window, 1+r.Int64N(2*q.Window))
		}
		if slices.Contains(a.Options, "buckets") && r.IntN(2) == 0 {
			q.Buckets = pick(r, 1, 2, 10, 1+r.Int64N(200))
		}
		if slices.Contains(a.Options, "initial") && r.IntN(3) == 0 {
			initial := r.Int64N(cmp.Or(q.Burst, q.Events) + 1)
			q.Initial = &initial
		}
		if slices.Contains(a.Options, "warm_up") && r.IntN(2) == 0 {
			q.Burst, q.Initial = 0, nil
			q.WarmUp = pick(r, 1, q.Window, 10*q.Window, 1+r.Int64N(1<<r.IntN(45)))
			q.ColdFactor = pick[int64](r, 0, 0, 1000, 1500, 10_000, 1000+r.Int64N(999_001))
		}
		if l, err := algorithms.NewLimit(q); err == nil {
			return l
		}
	}
}

// randomBan draws a ban, of a zone with such a window.
func randomBan(r *rand.Rand, window algorithms.Micros) *algorithms.Ban {
	b := algorithms.Ban{
		After: pick[int64](r, 1, 1, 2, 3, 5), Window: window,
		Duration: pick(r, 1, 1000, window, 1+r.Int64N(2*window), 1+r.Int64N(1<<r.IntN(48))),
	}
	b.Duration = min(b.Duration, 1<<50)
	b.Most = min(pick(r, b.Duration, b.Duration+1, 3*b.Duration, 8*b.Duration, b.Duration<<r.IntN(40)), 1<<51)
	if b.Most < b.Duration { // which has overflowed
		b.Most = 1 << 51
	}
	if err := b.Check(); err != nil {
		panic(err)
	}
	return &b
}

// newProgram draws a program and decides it in Go. What happens next is aimed at
// the edges of what was just decided: exactly then, 1 µs before and after.
func newProgram(seed uint64) *program {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &program{seed: seed, format: format{parityNames, pick[int64](r, 1000, 1_000_000, 30_000_000)}}
	for z := range pick(r, 1, 1, 1, 2, 3) {
		q := store.Request{
			Zone: fmt.Sprint("z", z), Key: fmt.Sprint(seed, "/", r.IntN(2)),
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
		if r.IntN(4) == 0 {
			q.Slots = &store.Slots{ID: store.SlotsID(q.Zone, "")}
			if r.IntN(4) == 0 {
				q.Limits = nil
			}
		}
		p.requests, p.inForce = append(p.requests, q), append(p.inForce, "")
	}
	now := 1_763_640_000_000_000 + r.Int64N(1_000_000_000)
	edges, back := []algorithms.Micros{0}, algorithms.Micros(0)
	for range programSteps {
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
		now = min(now+ahead, latest)
		p.step(r, now)
		if of := r.IntN(len(p.steps)); r.IntN(4) == 0 && of < len(p.steps)-1 && p.steps[of].others == nil {
			p.refund(of, 1+r.Int64N(3))
		}
		edges = append(edges[:0], p.format.expiry)
		last := p.steps[len(p.steps)-1]
		for i, o := range last.want {
			for _, d := range o.Decisions {
				edges = append(edges, d.RetryAfter, d.MoreAfter, d.ResetAfter)
			}
			if p.requests[i].Ban != nil {
				edges = append(edges, o.Ban.EndsAfter, last.bans[i][7])
			}
		}
		for _, q := range p.requests {
			for _, l := range q.Limits {
				edges = append(edges, l.Window, l.Window/l.Events, l.MinInterval)
			}
			if q.Ban != nil {
				edges = append(edges, q.Ban.Window, q.Ban.Most)
			}
		}
	}
	return p
}

func (p *program) step(r *rand.Rand, now algorithms.Micros) {
	s := step{now: now, asked: slices.Clone(p.inForce)}
	for _, q := range p.requests {
		b, e := int64(1), int64(1)
		if len(q.Limits) > 0 {
			b, e = q.Limits[0].Burst, q.Limits[0].Events
		}
		s.costs = append(s.costs, min(pick(r, 1, 1, 1, 0, 2, b, b+1, e, e+1, (e+1)/2, 1<<31-1), p.mostCost()))
		s.slots = append(s.slots, pick[int64](r, 1, 2, 2, 2, 2, 3, 10))
	}
	if l := p.requests[0].Limits; len(l) > 0 && r.IntN(2) == 0 {
		s.wait = pick(r, 1, l[0].Window/l[0].Events, l[0].Window, 3*l[0].Window, r.Int64N(10*l[0].Window))
	}
	for z, q := range p.requests {
		if q.Override == nil {
			continue
		}
		if text := pick(r, "", "a", "b"); r.IntN(6) == 0 && s.change.Override == nil {
			s.change = store.Change{Zone: q.Zone, Key: q.Key, Override: &text}
			p.inForce[z] = text
		}
		if s.asked[z] = p.inForce[z]; r.IntN(8) == 0 {
			s.asked[z] = pick(r, "", "a", "b", "=a")
		}
	}
	if !slices.Equal(s.asked, p.inForce) {
		s.others = slices.Clone(p.inForce)
		p.steps = append(p.steps, s)
		return
	}
	p.decide(s)
}

// slotsLimit is the log that slots are kept in, with room for all.
func (p *program) slotsLimit() *algorithms.Limit {
	l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "sliding_log", Events: algorithms.MostLogged, Window: p.format.expiry})
	if err != nil {
		panic(err)
	}
	return l
}

// never is a request that nothing fits.
func never() algorithms.Request {
	l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: 1})
	if err != nil {
		panic(err)
	}
	return algorithms.Request{Cost: 2, Checks: []algorithms.Check{{Limit: l, State: new(algorithms.State)}}}
}

// decide decides a step in Go.
func (p *program) decide(s step) {
	for len(p.states) < len(p.requests) {
		p.states = append(p.states, zoneState{budgets: make([]algorithms.State, len(p.requests[len(p.states)].Limits))})
	}
	requests := make([]algorithms.Request, len(p.requests))
	s.want, s.bans = make([]store.Outcome, len(requests)), make([][8]int64, len(requests))
	s.receipts = make([]algorithms.Receipt, len(requests))
	for i, q := range p.requests {
		r, of, o := &requests[i], &p.states[i], &s.want[i]
		*r = algorithms.Request{Mode: q.Mode, Cost: s.costs[i], MaxWait: maxWait(q, s.wait), Shadow: q.Shadow}
		for n, l := range q.Limits {
			r.Checks = append(r.Checks, algorithms.Check{Limit: l.Limit, State: &of.budgets[n]})
		}
		if q.Ban != nil {
			r.Ban = &algorithms.BanCheck{Ban: q.Ban.Ban, State: &of.ban}
		}
		if o.Slots.Free = true; q.Slots != nil {
			look := []algorithms.Request{{Checks: []algorithms.Check{{Limit: p.slotsLimit(), State: &of.slots}}}}
			algorithms.Take(look, s.now)
			r.Slots = &algorithms.SlotsCheck{Limit: s.slots[i], InFlight: algorithms.MostLogged - look[0].Checks[0].Decision.Remaining}
			o.Slots.Free = r.Slots.Free()
		}
	}
	algorithms.Take(requests, s.now)
	for i, r := range requests {
		o := &s.want[i]
		if o.Verdict = store.Allowed; !o.Slots.Free {
			o.Verdict = store.Denied
		}
		for _, c := range r.Checks {
			if o.Decisions = append(o.Decisions, c.Decision); !c.Decision.Allowed {
				o.Verdict = store.Denied
			}
		}
		if r.Ban != nil {
			d := r.Ban.Decision
			o.Ban = store.BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
			s.bans[i] = [8]int64{1, 0, 0, 0, algorithms.Forever, d.EndsAfter, d.EndsAfter, d.ResetAfter}
			if d.EndsAfter > 0 {
				s.bans[i][4] = 0
			}
			if d.Stands {
				o.Verdict, s.bans[i][0] = store.Banned, 0
			}
		}
		if r.Slots != nil {
			o.Slots.Taken, o.Slots.InFlight = r.Slots.Taken, r.Slots.InFlight
			log := []algorithms.Request{{Cost: 1, Checks: []algorithms.Check{{Limit: p.slotsLimit(), State: &p.states[i].slots}}}}
			if !r.Slots.Taken {
				log = append(log, never())
			}
			algorithms.Take(log, s.now)
			s.receipts[i] = log[0].Checks[0].Decision.Receipt
		}
	}
	p.steps = append(p.steps, s)
}

// maxWait is how long a request may wait, if its limits can charge in advance.
func maxWait(q store.Request, wait algorithms.Micros) algorithms.Micros {
	if q.Mode != algorithms.Binary {
		return 0
	}
	for _, l := range q.Limits {
		if l.CheckDelay(wait) != nil {
			return 0
		}
	}
	return wait
}

// refund gives back events and slots of an earlier step, right after the one decided last and
// at its instant.
func (p *program) refund(of int, events int64) {
	last := &p.steps[len(p.steps)-1]
	last.refund = refund{of: of, events: events}
	for z, q := range p.requests {
		if len(p.states) == 0 {
			continue // nothing was decided yet
		}
		for n, l := range q.Limits {
			if d := p.steps[of].want[z].Decisions[n]; d.Charged > 0 {
				algorithms.Refund(l.Limit, &p.states[z].budgets[n], last.now, d.Receipt, min(events, d.Charged))
			}
		}
		if p.steps[of].want[z].Slots.Taken {
			algorithms.Refund(p.slotsLimit(), &p.states[z].slots, last.now, p.steps[of].receipts[z], 1)
		}
	}
}

// credits are what a refund gives back.
func (p *program) credits(given refund) (credits []credit) {
	of := p.steps[given.of]
	for z, q := range p.requests {
		for n, l := range q.Limits {
			if d := of.want[z].Decisions[n]; d.Charged > 0 {
				credits = append(credits, credit{q.Key, l.ID, l.Limit, d.Receipt, min(given.events, d.Charged)})
			}
		}
		if of.want[z].Slots.Taken {
			credits = append(credits, credit{q.Key, q.Slots.ID, slotLimit(of.slots[z]), of.receipts[z], 1})
		}
	}
	return credits
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
