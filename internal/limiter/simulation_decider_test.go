package limiter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A Decider decides random requests as the handler does, in a time that only the test makes pass. The same
// requests are denied by the same zones for the same reasons. They are delayed as long, and charged the
// same. The zones have limits of all algorithms and modes, slots, bans, settle and delay, and are in one
// handler or in two.
func TestDeciderLikeHandler(t *testing.T) {
	hits := make(map[string]int)
	cases := seedtest.Cases(t, uint64(100))
	for seed := range cases {
		p := drawSimulation(t, seed)
		var served []servedRequest
		synctest.Test(t, func(t *testing.T) { served = p.serve(t) })
		decided := p.simulate()
		for i := range served {
			if got, want := decided[i], served[i]; got != want {
				t.Fatalf("seed %d, request %d of %d: simulated\n%s\nserved\n%s", seed, i, len(served), got.text, want.text)
			}
			served[i].count(hits)
		}
	}
	for _, what := range []string{"denied", "delayed", "waited and denied", "by limit", "by concurrency", "by ban", "not reached", "denied later"} {
		if cases >= 100 && uint64(hits[what]) < cases/8 { // with -short there are too few to draw all
			t.Errorf("only %d requests: %s", hits[what], what)
		}
	}
}

// simulationProgram is a random program for TestDeciderLikeHandler.
type simulationProgram struct {
	simulate.Configuration // of which a Decider asks only what follows below

	zones    []simulatedZone
	handlers [][]int // the zones of each handler
	requests []simulatedRequest
}

type simulatedZone struct {
	simulate.Zone
	limits  []store.Limit
	slots   *store.Slots
	ban     *store.Ban
	mode    algorithms.Mode
	settles bool
	holds   bool
}

type simulatedRequest struct {
	at, takes algorithms.Micros
	key       string
	costs     []int64 // by zone
	trueCosts []int64 // by zone; -1: unknown
	holds     []int64 // by zone
	shadows   []bool  // by zone
	belongs   []bool  // by zone
}

// servedRequest is the outcome of a request.
type servedRequest struct {
	text    string
	denied  bool
	delayed bool
}

func (s servedRequest) count(hits map[string]int) {
	count := func(what string, happened bool) {
		if happened {
			hits[what]++
		}
	}
	count("denied", s.denied)
	count("delayed", s.delayed)
	count("waited and denied", s.denied && s.delayed)
	for _, what := range []string{"by limit", "by concurrency", "by ban", "not reached", "denied later"} {
		count(what, strings.Contains(s.text, what))
	}
}

func drawSimulation(t *testing.T, seed uint64) *simulationProgram {
	random := rand.New(rand.NewPCG(seed, 16))
	p := &simulationProgram{handlers: make([][]int, 1+random.IntN(2))}
	waits := false // a zone has slots and delay
	for i := range 1 + random.IntN(4) {
		z := simulatedZone{Zone: simulate.Zone{Name: fmt.Sprint("zone", i), Places: 1000}}
		h := random.IntN(len(p.handlers))
		z.mode = []algorithms.Mode{algorithms.Binary, algorithms.Binary, algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force}[random.IntN(6)]
		variants := storetest.Variants(1+random.Int64N(6), 1_000_003*(1+random.Int64N(8)))
		for range random.IntN(3) {
			l := storetest.Limit(t, z.Name, variants[random.IntN(len(variants))])
			same := slices.ContainsFunc(z.limits, func(other store.Limit) bool { return other.ID == l.ID })
			if !same && (z.mode == algorithms.Binary || !l.Algorithm().BinaryOnly) {
				z.limits = append(z.limits, l)
			}
		}
		if len(z.limits) == 0 || random.IntN(3) == 0 {
			z.slots = &store.Slots{ID: store.SlotsID(z.Name, ""), Limit: 1 + random.Int64N(3)}
		}
		if len(z.limits) > 0 && random.IntN(4) == 0 {
			z.ban = &store.Ban{ID: store.BanID(z.Name, ""), Ban: &algorithms.Ban{
				After: 1 + random.Int64N(3), Window: 5_000_000, Duration: 1_000_000, Max: 1_000_000 * (1 + random.Int64N(4)),
			}}
		}
		if z.ban == nil && random.IntN(3) == 0 {
			z.holds = true
			z.ban = &store.Ban{ID: store.BanID(z.Name, ""), Ban: &algorithms.Ban{Window: 1, Duration: 9_000_000, Max: 9_000_000}}
		}
		z.settles = z.mode == algorithms.Binary && len(z.limits) > 0 && random.IntN(2) == 0
		z.RefundsDenied = z.settles && random.IntN(2) == 0
		delay := 1 + random.Int64N(5_000_000)
		cannotDelay := slices.ContainsFunc(z.limits, func(l store.Limit) bool { return l.CheckDelay(delay) != nil })
		// The order of events of one instant is unknown. Such events come from an end that gives back the
		// slots of two zones, and from limits that let several requests pass at once.
		twoLines := z.slots != nil && waits
		atOnce := h < len(p.handlers)-1 && slices.ContainsFunc(z.limits, func(l store.Limit) bool { return l.Algorithm().Name != "gcra" || len(z.limits) > 1 })
		if z.mode == algorithms.Binary && !cannotDelay && !twoLines && !atOnce && !z.holds && random.IntN(2) == 0 {
			z.MaxDelay, waits = delay, waits || z.slots != nil
			if random.IntN(2) == 0 {
				z.Places, z.SingleKey = 1+random.Int64N(8), random.IntN(2) == 0
			}
		}
		p.zones, p.handlers[h] = append(p.zones, z), append(p.handlers[h], i)
	}
	if z := &p.zones[0]; len(p.zones) == 1 && z.holds { // requests that wait for the end of a ban come at one instant
		z.limits, z.slots, z.settles, z.mode, z.MaxDelay, z.Places = nil, nil, false, algorithms.Binary, 1+random.Int64N(9_000_000), 1000
	}
	at, keys := algorithms.Micros(1), 1+random.IntN(3)
	for range 120 {
		at += 1 + random.Int64N(1+random.Int64N(500_000))
		r := simulatedRequest{at: at, takes: 1 + random.Int64N(1+random.Int64N(3_000_000)), key: fmt.Sprint(random.IntN(keys))}
		for i := range p.zones {
			z := &p.zones[i]
			cost, trueCost := random.Int64N(4), int64(-1)
			if z.MaxDelay > 0 {
				cost = max(cost, 1) // requests of cost 0 pass at once with another
			}
			if z.settles && random.IntN(4) > 0 {
				trueCost = random.Int64N(6)
				if slices.ContainsFunc(z.limits, func(l store.Limit) bool { return l.Algorithm().BinaryOnly }) {
					trueCost = 0 // can't be charged after the response
				}
			}
			hold := int64(0)
			if z.holds && random.IntN(4) == 0 {
				hold = 1 + random.Int64N(9_000_000)
			}
			r.costs, r.trueCosts, r.holds = append(r.costs, cost), append(r.trueCosts, trueCost), append(r.holds, hold)
			r.shadows, r.belongs = append(r.shadows, random.IntN(4) == 0), append(r.belongs, random.IntN(8) > 0)
		}
		p.requests = append(p.requests, r)
	}
	return p
}

// zoneRequest returns the request of zone i.
func (p *simulationProgram) zoneRequest(r *simulatedRequest, i int) store.ZoneRequest {
	z := &p.zones[i]
	return store.ZoneRequest{
		Zone: z.Name, Key: r.key, Limits: z.limits, Slots: z.slots, Ban: z.ban, Mode: z.mode, Cost: r.costs[i], Shadow: r.shadows[i],
	}
}

// serve lets handlers decide the requests.
func (p *simulationProgram) serve(t *testing.T) []servedRequest {
	s := newSlotTest(inMemory(), time.Second/4)
	for i := range p.zones {
		z := &p.zones[i]
		s.addZone(t, z.Name, time.Duration(z.MaxDelay)*time.Microsecond, z.Places)
		s.zones[z.Name].Delay.SingleKey = z.SingleKey
		if z.MaxDelay == 0 {
			s.zones[z.Name].Delay = nil
		}
		if z.settles {
			s.zones[z.Name].Settle = new(SettlePolicy)
		}
	}
	served := make([]servedRequest, len(p.requests))
	began := time.Now()
	var clients sync.WaitGroup
	for n := range p.requests {
		r := &p.requests[n]
		time.Sleep(time.Until(began.Add(time.Duration(r.at) * time.Microsecond))) // virtual time
		clients.Go(func() {
			served[n] = p.serveOne(t, s, r)
		})
		synctest.Wait()
	}
	clients.Wait()
	s.wantIdle(t)
	return served
}

func (p *simulationProgram) serveOne(t *testing.T, s *slotTest, r *simulatedRequest) (served servedRequest) {
	came, delay := time.Now(), time.Duration(0)
	var passed []*State
	var describe outcomeText
	for _, zones := range p.handlers {
		state := &State{Limiter: s.handler}
		for _, i := range zones {
			if r.belongs[i] {
				state.add(Entry{Zone: s.zones[p.zones[i].Name], LimitSet: &LimitSet{}}, p.zoneRequest(r, i))
			}
		}
		state.endCollecting()
		switch {
		case served.denied:
			for range state.Entries {
				describe.notReached()
			}
			continue
		case len(state.Requests) == 0:
			continue
		}
		errtest.Report(t, s.handler.decide(t.Context(), state))
		for i := range state.Entries {
			e := &state.Entries[i]
			reason := ""
			if e.Denies() {
				reason, _ = e.DenialReason()
			}
			if reason == store.DeniedByHold {
				reason = store.DeniedByBan // as simulations call it
			}
			describe.zone(e.ZoneRequest, reason)
		}
		delay = time.Since(came)
		if !state.Allowed {
			state.sendCorrections()
			served.denied = true
			continue
		}
		passed = append(passed, state)
	}
	served.delayed = delay > 0
	served.text = describe.text(delay.Microseconds(), served.denied, len(passed))
	if !served.denied {
		time.Sleep(time.Duration(r.takes) * time.Microsecond) // virtual time
	}
	for _, state := range slices.Backward(passed) {
		for i := range state.Entries {
			e := &state.Entries[i]
			z := slices.IndexFunc(p.zones, func(z simulatedZone) bool { return z.Name == e.Zone.Name })
			if span := r.holds[z]; span > 0 && !served.denied {
				errtest.Report(t, s.handler.Store.Change(t.Context(), e.Hold(span)))
			}
			if trueCost := r.trueCosts[z]; e.Settles() && served.denied {
				e.TrueCost, e.Settled = 0, p.zones[z].RefundsDenied
			} else if e.Settles() && trueCost >= 0 {
				e.TrueCost, e.Settled = trueCost, true
			}
		}
		state.sendCorrections()
	}
	return served
}

// outcomeText describes the outcome of a request.
type outcomeText string

func (o *outcomeText) notReached() { *o += "not reached\n" }

// zone adds the outcome of a zone.
func (o *outcomeText) zone(r *store.ZoneRequest, reason string) {
	if r.Outcome.Verdict == store.NotAsked {
		o.notReached()
		return
	}
	if r.Shadow && r.Slots != nil && !r.Outcome.Slots.Free && slices.ContainsFunc(r.Outcome.Decisions, algorithms.Decision.Denies) {
		reason = "limit or slots" // the wait of the limit decides, which has become less by the delay in another zone
	}
	*o += outcomeText(fmt.Sprintf("%s: denied %t by %s, slots %+v, ban %+v, charged", r.Zone, reason != "", reason, r.Outcome.Slots, r.Outcome.Ban))
	for _, d := range r.Outcome.Decisions {
		*o += outcomeText(fmt.Sprintf(" %d", d.Charged))
	}
	*o += "\n"
}

func (o *outcomeText) text(delay algorithms.Micros, denied bool, passed int) string {
	later := ""
	if denied && passed > 0 {
		later = ", denied later"
	}
	return fmt.Sprintf("%sdenied %t%s, delay %d", string(*o), denied, later, delay)
}

// simulate lets a Decider decide the requests.
func (p *simulationProgram) simulate() []servedRequest {
	o := &simulationObserver{decided: make([]servedRequest, len(p.requests))}
	d := simulate.NewDecider(p, o)
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() // of the time in serve
	for n := range p.requests {
		r := &p.requests[n]
		v := &simulate.Visit{Number: int64(n), Start: start + r.at, End: start + r.at + r.takes}
		for _, zones := range p.handlers {
			var h simulate.HandlerVisit
			for _, i := range zones {
				if r.belongs[i] {
					h.Requests = append(h.Requests, p.zoneRequest(r, i))
					settled := p.zones[i].settles && r.trueCosts[i] >= 0
					h.Zones = append(h.Zones, simulate.ZoneVisit{Zone: i, Settled: settled, TrueCost: r.trueCosts[i], Hold: r.holds[i]})
				}
			}
			v.Handlers = append(v.Handlers, h)
		}
		d.Decide(v)
	}
	d.Finish()
	return o.decided
}

type simulationObserver struct{ decided []servedRequest }

func (o *simulationObserver) Observe(d *simulate.Decided) {
	var describe outcomeText
	zone, passed := 0, 0
	for i := range d.Handlers {
		requests := d.Handlers[i].Requests
		if len(requests) > 0 && slices.ContainsFunc(d.Zones[zone+len(requests):], func(z simulate.DecidedZone) bool { return z.Reached }) {
			passed++
		}
		for j := range requests {
			z := &d.Zones[zone]
			zone++
			if !z.Reached {
				describe.notReached()
				continue
			}
			reason := ""
			if z.Denied {
				reason = map[simulate.Reason]string{
					simulate.ByLimit: store.DeniedByLimit, simulate.ByConcurrency: store.DeniedByConcurrency, simulate.ByBan: store.DeniedByBan,
				}[z.Reason]
			}
			describe.zone(&requests[j], reason)
		}
	}
	o.decided[d.Number] = servedRequest{text: describe.text(d.Delay, d.Denied, passed), denied: d.Denied, delayed: d.Delay > 0}
}

func (p *simulationProgram) Zones() (zones []simulate.Zone) {
	for i := range p.zones {
		zones = append(zones, p.zones[i].Zone)
	}
	return zones
}

func (*simulationProgram) MaxKeys() int64 { return 1_000_000 }
