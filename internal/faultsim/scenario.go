// Package faultsim tries the promises of docs/guarantees.md in simulated time. A seed draws instances of the limiter, a
// Redis, the zones, the requests of clients, and the faults. All run as in production, but for the Redis, which is package
// simredis, and the time, which is that of a testing/synctest bubble. In the end an oracle compares what the clients saw
// with the promises. It knows nothing of how they are kept.
package faultsim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// scenario is all that a seed draws. The simulation adds only the order of what happens at the same instant.
type scenario struct {
	seed      uint64
	topology  string // single, sentinel or cluster
	mode      string // of on_store_error: local, share, allow or deny; share is a local budget of 1/instances
	instances int
	delay     time.Duration // of the network in each direction, at least; at most twice as long
	zones     []*zonePlan
	clients   []*record // the first request of each
	requests  []*record // of all
	faults    []*fault
	keys      int           // of the zones behind the first one
	operated  []*operation  // by operators, in the order of time
	starts    time.Duration // after midnight UTC, where the periods of calendars begin
	length    time.Duration // of the traffic
	long      bool          // some requests take longer than slots live in Redis without being set again
}

// zonePlan is a zone of the only directive of each instance. Its key is that of the client, but in the first zone it is
// the number of the request, so that each request has its own budget.
type zonePlan struct {
	name    string
	quota   algorithms.Quota // no algorithm: the zone has no limit
	slots   int64            // 0: any number of requests may be in flight
	weights []int64          // of the tenants that share the slots; none: requests have no tenants
	delay   time.Duration    // 0: no request is delayed
	settles bool
	wait    time.Duration // for events that others have reserved
	ban     *algorithms.Ban

	overridden bool // operators override the limit of keys
}

// forever is the window of budgets that must not refill during a simulation, in microseconds.
const forever = 1000 * 3600 * 1_000_000

const second = 1_000_000 // in microseconds

// longestDay is the window of calendars whose period is a day, in microseconds.
const longestDay = 25 * 3600 * second

// isCounted reports whether the charges of the zone add up, because none refills, or only at midnight.
func (z *zonePlan) isCounted() bool {
	return z.isCalendar() || z.quota.Algorithm != "" && z.quota.Window == forever
}

// isCalendar reports whether the zone counts the events of a day. The next day may begin during the simulation.
func (z *zonePlan) isCalendar() bool { return z.quota.Algorithm == "calendar" }

func (z *zonePlan) String() string {
	text := z.name + ":"
	switch {
	case z.isCalendar():
		text += fmt.Sprintf(" calendar %d day", z.quota.Events)
	case z.quota.Algorithm != "":
		text += fmt.Sprintf(" %s %d %v", z.quota.Algorithm, z.quota.Events, time.Duration(z.quota.Window)*time.Microsecond)
	}
	if z.slots > 0 {
		text += fmt.Sprintf(" concurrency %d", z.slots)
	}
	if len(z.weights) > 0 {
		text += fmt.Sprintf(" share %v", z.weights)
	}
	if z.delay > 0 {
		text += fmt.Sprintf(" delay %v", z.delay)
	}
	if z.wait > 0 {
		text += fmt.Sprintf(" wait %v", z.wait)
	}
	if z.settles {
		text += " settle"
	}
	if z.ban != nil {
		text += fmt.Sprintf(" ban after %d for %v", z.ban.After, time.Duration(z.ban.Duration)*time.Microsecond)
	}
	if z.overridden {
		text += " runtime_overrides"
	}
	return text
}

// delays reports whether a zone delays requests.
func (s *scenario) delays() bool {
	return slices.ContainsFunc(s.zones, func(z *zonePlan) bool { return z.delay > 0 })
}

// hasSeveralValues reports whether Redis has several values for a key.
func (s *scenario) hasSeveralValues() bool {
	return len(s.zones) > 2 || s.zones[1].ban != nil
}

func (s *scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d instances, %v to %v away, on_store_error %s, %d requests in %v",
		s.topology, s.instances, s.delay, 2*s.delay, s.mode, len(s.requests), s.length)
	if s.starts > 0 {
		fmt.Fprintf(&b, ", midnight after %v", 24*time.Hour-s.starts)
	}
	b.WriteString("\n")
	for _, z := range s.zones {
		fmt.Fprintf(&b, "  %v\n", z)
	}
	for _, f := range s.faults {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	return b.String()
}

// draw draws the scenario of a seed.
func draw(seed uint64) *scenario {
	r := rand.New(rand.NewPCG(seed, 28))
	s := &scenario{
		seed: seed, instances: 1 + r.IntN(3), length: time.Duration(30+r.IntN(30)) * time.Second,
		topology: pick(r, "single", "single", "sentinel", "cluster"), mode: pick(r, "local", "share", "deny", "deny", "allow"),
		delay: pick(r, 100*time.Microsecond, 500*time.Microsecond, 3*time.Millisecond), long: r.IntN(5) == 0,
	}
	s.drawZones(r)
	s.drawRequests(r)
	s.drawFaults(r)
	s.drawCalendar(rand.New(rand.NewPCG(seed, 30)))
	s.drawOperations(rand.New(rand.NewPCG(seed, 32)))
	s.drawChanges(rand.New(rand.NewPCG(seed, 34)))
	s.drawTenants(rand.New(rand.NewPCG(seed, 36)))
	return s
}

// drawTenants lets tenants share the slots for which requests wait.
func (s *scenario) drawTenants(r *rand.Rand) {
	for _, z := range s.zones {
		if z.slots > 0 && z.delay > 0 && r.IntN(3) > 0 {
			z.weights = []int64{1, 1 + r.Int64N(3), 1}[:2+r.IntN(2)]
		}
	}
	for _, q := range s.requests {
		q.tenant = r.IntN(3)
	}
}

// drawCalendar lets some budgets count the events of a day, which ends during the traffic or soon after it.
func (s *scenario) drawCalendar(r *rand.Rand) {
	for _, z := range s.zones {
		if z.name == "budget" && r.IntN(2) == 0 {
			z.quota = algorithms.Quota{Algorithm: "calendar", Events: z.quota.Events, Period: "day", Window: longestDay}
			s.starts = 24*time.Hour - span(r, 0, s.length+10*time.Second)
		}
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func span(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

func (s *scenario) drawZones(r *rand.Rand) {
	s.zones = []*zonePlan{{name: "once", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 20, Window: forever}, settles: true}}
	drawn := []*zonePlan{
		{
			name: "budget", settles: r.IntN(2) == 0,
			quota: algorithms.Quota{Algorithm: pick(r, "fixed_window", "token_bucket", "gcra"), Events: 20 + r.Int64N(100), Window: forever},
		},
		{
			name: "rate", settles: r.IntN(2) == 0,
			quota: algorithms.Quota{
				Algorithm: pick(r, "fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket", "leaky_bucket"),
				Events:    3 + r.Int64N(12), Window: pick[int64](r, 1*second, 3*second, 10*second),
			},
		},
		{name: "slots", slots: 1 + r.Int64N(4)},
		{
			name: "banned", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 6 + r.Int64N(6), Window: 5 * second},
			ban: &algorithms.Ban{After: 3, Window: 20 * second, Duration: 4 * second, Max: 8 * second},
		},
	}
	if a := drawn[1].quota.Algorithm; r.IntN(3) == 0 && a != "sliding_window" && a != "sliding_log" {
		drawn[1].delay = span(r, 100*time.Millisecond, 2*time.Second)
	}
	if r.IntN(2) == 0 {
		drawn[2].delay = span(r, time.Second, 5*time.Second)
	}
	r.Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
	s.zones = append(s.zones, drawn[:1+r.IntN(3)]...)
}

// record is a request, and what its client saw.
type record struct {
	number   int
	at       time.Duration // since the beginning
	next     *record       // which the client sends when this one has ended
	pause    time.Duration // before next
	instance int
	tenant   int
	key      string
	zones    uint64 // bit i: it belongs to zone i
	cost     int64
	trueCost int64
	limits   []*zonePlan   // the zones of the configuration that decided it
	takes    time.Duration // its response
	length   string        // the Content-Length of its response; "": unknown
	patience time.Duration // after which its client disconnects; 0: never
	sent     time.Time
	passed   time.Time // when the next handler was called; zero: it was not
	ended    time.Time // when the response was complete
	status   int
	denied   []string // the zones that denied it
	left     bool     // the client has disconnected before its end
	killed   bool     // the instance was killed before its end
}

func keyName(n int) string { return fmt.Sprint("k", n) }

func drawCost(r *rand.Rand) int64 { return 1 + r.Int64N(6) }

func (s *scenario) drawRequests(r *rand.Rand) {
	least := 10 * time.Millisecond
	s.keys = 1 + r.IntN(3)
	at := time.Second
	flood := 0 // how many requests of the same key still come at once
	instance, key := 0, 0
	for at < s.length {
		switch {
		case flood > 0:
			flood--
			at += span(r, 0, least)
		case r.IntN(80) == 0:
			at += span(r, 0, 5*time.Second)
			flood = 8 + r.IntN(12)
		default:
			at += pick(r, 0, least, span(r, least, time.Second), span(r, least, time.Second))
		}
		if flood == 0 || r.IntN(10) == 0 {
			instance, key = r.IntN(s.instances), r.IntN(s.keys)
		}
		q := &record{
			number: len(s.requests), at: at, instance: instance, key: keyName(key), zones: 1,
			cost: drawCost(r), trueCost: pick[int64](r, 0, 1, 5), takes: span(r, 0, 300*time.Millisecond), length: pick(r, "", "0", "5"),
		}
		for i := range s.zones {
			if r.IntN(4) > 0 {
				q.zones |= 1 << i
			}
		}
		if r.IntN(20) == 0 {
			q.takes = span(r, 0, 5*time.Second)
		}
		if s.long && r.IntN(20) == 0 {
			q.takes = span(r, 32*time.Second, 50*time.Second)
		}
		if r.IntN(12) == 0 {
			q.patience = span(r, 1, 300*time.Millisecond)
		}
		s.clients, s.requests = append(s.clients, q), append(s.requests, q)
		if r.IntN(3) == 0 {
			next := *q
			next.number, next.cost, next.trueCost = len(s.requests), drawCost(r), pick[int64](r, 0, 1, 5)
			q.next, q.pause = &next, pick(r, 0, span(r, 0, 4*s.delay))
			s.requests = append(s.requests, &next)
		}
	}
}

// belongs reports whether the request belongs to zone i.
func (q *record) belongs(i int) bool { return q.zones&(1<<i) != 0 }

// most is the largest number of events that the request can be charged in a zone.
func (q *record) most(z *zonePlan) int64 {
	if z.settles {
		return max(q.cost, q.trueCost)
	}
	return q.cost
}

// fair is the number of events that a request is charged that passed, if nothing fails.
func (q *record) fair(z *zonePlan) int64 {
	if z.settles {
		return q.trueCost
	}
	return q.cost
}

func (q *record) String() string {
	text := fmt.Sprintf("%v request %d, instance %d, key %s, tenant %d, zones %b, cost %d",
		q.at.Round(time.Microsecond), q.number, q.instance, q.key, q.tenant, q.zones, q.cost)
	switch {
	case q.ended.IsZero():
		return text + ": never ended"
	case q.passed.IsZero():
		text += fmt.Sprintf(": status %d", q.status)
	default:
		text += fmt.Sprintf(", true cost %d: passed after %v, status %d", q.trueCost, q.passed.Sub(q.sent), q.status)
	}
	if len(q.denied) > 0 {
		text += fmt.Sprint(" by ", q.denied)
	}
	if q.patience > 0 {
		text += fmt.Sprintf(", patient for %v", q.patience)
	}
	return text + fmt.Sprintf(", ended after %v", q.ended.Sub(q.sent))
}
