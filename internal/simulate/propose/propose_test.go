package propose

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// zonesOnly is a configuration of which only the zones matter.
type zonesOnly struct {
	simulate.Configuration
	zones   []simulate.Zone
	maxKeys int64
}

func (c zonesOnly) Zones() []simulate.Zone            { return c.zones }
func (c zonesOnly) MaxKeys() int64                    { return c.maxKeys }
func (c zonesOnly) ShownKey(_ int, key string) string { return key }

// zoneRequest is a request to the only zone of a test.
type zoneRequest struct {
	key string
	set int
	request
}

// drawLog draws requests of a few keys, which come in bursts and pauses.
func drawLog(r *rand.Rand, n, keys int, mode algorithms.Mode, settles bool) (log []zoneRequest) {
	at := algorithms.Micros(1_700_000_000_000_000) + r.Int64N(1e9)
	maxCost := []int64{1, 1, 3, 12}[r.IntN(4)]
	for range n {
		at += []int64{0, 1, 1000, r.Int64N(3_000_000), r.Int64N(15_000_000)}[r.IntN(5)]
		l := zoneRequest{key: fmt.Sprint("key ", min(r.IntN(keys), r.IntN(keys)))}
		l.request = request{at: at, end: at + 1 + r.Int64N(4_000_000), cost: 1 + r.Int64N(maxCost), mode: mode}
		if r.IntN(20) == 0 {
			l.cost = 0
		}
		if settles && r.IntN(3) > 0 {
			l.trueCost = r.Int64N(2*maxCost + 1)
			l.settled = l.trueCost != l.cost
		}
		log = append(log, l)
	}
	if settles { // some responses end at the very instant of a later request, or at the same instant
		for _, i := range r.Perm(n)[:n/3] {
			if j := i + 1 + r.IntN(n-i); j < n && log[j].at > log[i].at {
				log[i].end = log[j].at
			}
		}
	}
	return log
}

// record lets a Recorder observe a log.
func record(t testing.TB, log []zoneRequest, zone simulate.Zone) *Recorder {
	t.Helper()
	r := NewRecorder(zonesOnly{zones: []simulate.Zone{zone}, maxKeys: 1000}, DefaultTarget)
	for i := range log {
		l := &log[i]
		visit := simulate.Visit{UserAgent: "agent of " + l.key, Start: l.at, End: l.end, Handlers: []simulate.HandlerVisit{{Zones: []simulate.ZoneVisit{
			{Set: l.set, Settled: l.settled, TrueCost: l.trueCost},
		}}}}
		r.Observe(&simulate.Decided{Visit: &visit, Came: l.at, Zones: []simulate.DecidedZone{
			{ZoneVisit: &visit.Handlers[0].Zones[0], Key: l.key, Cost: l.cost, Mode: l.mode, Reached: true},
		}})
	}
	return r
}

// proposeFor returns the proposals for another target.
func (r *Recorder) proposeFor(target Target) map[string][]report.Proposal {
	r.target = target
	return r.propose()
}

// replayStore decides logs by a real store in memory. To make a store takes longer than to decide a short log, so all
// logs share one. Each has its own keys in it.
type replayStore struct {
	memory  *store.Memory
	decided int
}

func newReplayStore() *replayStore { return &replayStore{memory: store.NewMemory(1 << 40)} }

// denied counts what the store denies that has only this limit.
func (s *replayStore) denied(t testing.TB, log []zoneRequest, l *algorithms.Limit, maxWait algorithms.Micros) (denied, total tally) {
	t.Helper()
	byKey := s.deniedByKey(t, log, l, maxWait)
	for _, n := range byKey {
		denied.add(tally{requests: n, keys: min(n, 1)})
	}
	return denied, tally{requests: int64(len(log)), keys: int64(len(byKey))}
}

// deniedKeys counts the denied requests of the keys that have any.
func (s *replayStore) deniedKeys(t testing.TB, log []zoneRequest, l *algorithms.Limit) map[string]int64 {
	t.Helper()
	byKey := s.deniedByKey(t, log, l, 0)
	maps.DeleteFunc(byKey, func(_ string, n int64) bool { return n == 0 })
	return byKey
}

// deniedByKey counts the denied requests of each key.
func (s *replayStore) deniedByKey(t testing.TB, log []zoneRequest, l *algorithms.Limit, maxWait algorithms.Micros) map[string]int64 {
	t.Helper()
	memory := s.memory
	s.decided++
	own := strconv.Itoa(s.decided) + " "
	type response struct {
		end algorithms.Micros
		store.Correction
	}
	var open []response
	limits := []store.Limit{store.NewLimit("zone", "", l)}
	denied := make(map[string]int64)
	for _, e := range log {
		slices.SortStableFunc(open, func(a, b response) int { return cmp.Compare(a.end, b.end) })
		for len(open) > 0 && open[0].end <= e.at {
			errtest.None(t, memory.CorrectAt(context.Background(), open[0].end, []store.Correction{open[0].Correction}))
			open = open[1:]
		}
		requests := []store.ZoneRequest{{Zone: "zone", Key: own + e.key, Limits: limits, Mode: e.mode, Cost: e.cost, MaxWait: maxWait}}
		allowed, err := memory.TakeAt(context.Background(), e.at, requests)
		errtest.None(t, err)
		denied[e.key] += 0
		if !allowed {
			denied[e.key]++
		} else if e.settled {
			open = append(open, response{e.end + requests[0].Outcome.Decisions[0].Wait, store.Correction{
				Request: &requests[0], Refund: max(e.cost-e.trueCost, 0), Charge: max(e.trueCost-e.cost, 0),
			}})
		}
	}
	return denied
}

// drawQuota draws a limit of any algorithm, with any options.
func drawQuota(r *rand.Rand) algorithms.Quota {
	all := algorithms.All()
	all = slices.DeleteFunc(all, func(a *algorithms.Algorithm) bool { return a.Calendar }) // for which none is proposed
	a := all[r.IntN(len(all))]
	q := algorithms.Quota{Algorithm: a.Name, Events: 1 + r.Int64N(30), Window: (1 + r.Int64N(20)) * 500_000}
	if a.Burst && r.IntN(2) == 0 {
		q.Burst = 1 + r.Int64N(60)
	}
	if a.Takes("align") && r.IntN(2) == 0 {
		q.Align = "clock"
	}
	if a.Takes("min_interval") && r.IntN(4) == 0 {
		q.MinInterval = 1 + r.Int64N(500_000)
	}
	if a.Takes("buckets") && r.IntN(3) == 0 {
		q.Buckets = 1 + r.Int64N(10)
	}
	if a.Takes("warm_up") && r.IntN(3) == 0 {
		q.WarmUp, q.Burst = 1+r.Int64N(20_000_000), 0
	}
	if a.Takes("initial") && q.WarmUp == 0 && r.IntN(3) == 0 {
		q.Initial = new(r.Int64N(max(q.Burst, q.Events*min(1, 1-min(q.Burst, 1))) + 1))
	}
	return q
}

func newLimit(t testing.TB, q algorithms.Quota) *algorithms.Limit {
	t.Helper()
	return storetest.Limit(t, "zone", q).Limit
}

// of returns what a target counts.
func (t Target) of(denied tally) int64 {
	if t.Requests {
		return denied.requests
	}
	return denied.keys
}

// For random logs and limits, the proposal denies at most the share, and the next smaller limit denies
// more. A real store decides the whole log again, and has the same numbers. Where more events never deny
// more, no smaller limit denies so few.
func TestProposalsOfAllAlgorithms(t *testing.T) {
	proposed, withNext, exact := map[string]int{}, map[string]int{}, map[string]int{}
	seeds := seedtest.Cases(t, uint64(300))
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 16))
		l := newLimit(t, drawQuota(r))
		mode := []algorithms.Mode{algorithms.Binary, algorithms.Nary, algorithms.Uniform}[r.IntN(3)]
		if l.Algorithm().BinaryOnly {
			mode = algorithms.Binary
		}
		maxWait := algorithms.Micros(0)
		if mode == algorithms.Binary && r.IntN(3) == 0 && l.CheckDelay(2_000_000) == nil {
			maxWait = 2_000_000
		}
		log := drawLog(r, 20+r.IntN(150), 1+r.IntN(12), mode, r.IntN(3) == 0)
		target := Target{Requests: r.IntN(2) == 0, Share: []int64{0, 10_000_000, 100_000_000, 400_000_000}[r.IntN(4)]}
		sets := []simulate.LimitSet{{Limits: []*algorithms.Limit{l}}}
		zone := simulate.Zone{Name: "zone", Sets: sets, MaxDelay: maxWait, Shadow: r.IntN(2) == 0}
		proposals := record(t, log, zone).proposeFor(target)
		if len(proposals["zone"]) != 1 {
			t.Fatalf("seed %d: %v", seed, proposals)
		}
		p := proposals["zone"][0]
		where := fmt.Sprintf("seed %d, %v, %v, delay %d, target %v: %s", seed, l, mode, maxWait, target, p.Line)
		candidates, byStore := candidatesLike(l, maxWait, algorithms.MaxWork, maxCost), newReplayStore()
		decide := func(events int64) (denied, total tally) {
			return byStore.denied(t, log, newLimit(t, candidates.quota(events)), maxWait)
		}
		for _, point := range p.Curve { // what is skipped in the replay denies nothing
			denied, total := decide(point.Events)
			if point.KeyShare != float64(denied.keys)/float64(total.keys) ||
				point.RequestShare != float64(denied.requests)/float64(total.requests) ||
				denied != (tally{point.DeniedRequests, point.DeniedKeys}) || total != (tally{p.Requests, p.Keys}) {
				t.Fatalf("%s: the curve has %+v, the store denies %+v of %+v", where, point, denied, total)
			}
		}
		if !slices.ContainsFunc(p.Curve, func(c report.CurvePoint) bool { return c.Line == p.Current && c.Events == l.Events }) {
			t.Fatalf("%s: the curve lacks the current %s", where, p.Current)
		}
		if p.Line == "" {
			if p.Reason == "" {
				t.Fatalf("%s: neither a line nor a reason", where)
			}
			for events := range int64(300) { // it is true that none exists
				if denied, total := decide(events + 1); target.allows(denied, total) {
					t.Fatalf("%s: none proposed, %q, but with %d events only %+v are denied", where, p.Reason, events+1, denied)
				}
			}
			continue
		}
		at := slices.IndexFunc(p.Curve, func(c report.CurvePoint) bool { return c.Line == p.Line })
		if at < 0 {
			t.Fatalf("%s: not in the curve", where)
		}
		events := p.Curve[at].Events
		denied, total := decide(events)
		if !target.allows(denied, total) || denied != (tally{p.DeniedRequests, p.DeniedKeys}) {
			t.Fatalf("%s: denies %+v of %+v, as proposed %d requests and %d keys", where, denied, total, p.DeniedRequests, p.DeniedKeys)
		}
		proposed[l.Quota.Algorithm]++
		if (p.Next == nil) != (events == 1) {
			t.Fatalf("%s: next is %+v", where, p.Next)
		}
		if p.Next == nil {
			continue
		}
		withNext[l.Quota.Algorithm]++
		if denied, total := decide(events - 1); p.Next.Events != events-1 || target.allows(denied, total) ||
			p.Next.KeyShare != float64(denied.keys)/float64(total.keys) {
			t.Fatalf("%s: next is %+v, and denies %+v of %+v", where, p.Next, denied, total)
		}
		if events > 400 {
			continue
		}
		last, monotonic, least := int64(1)<<60, true, int64(0)
		for n := range events {
			denied, total := decide(n + 1)
			monotonic = monotonic && target.of(denied) <= last
			last = target.of(denied)
			if least == 0 && target.allows(denied, total) {
				least = n + 1
			}
		}
		if monotonic && least != events {
			t.Fatalf("%s: %d events are the least", where, least)
		}
		if monotonic {
			exact[l.Quota.Algorithm]++
		}
	}
	for _, a := range algorithms.All() { // the draw is wide enough
		if seeds >= 300 && !a.Calendar && (proposed[a.Name] < 10 || withNext[a.Name] < 10 || exact[a.Name] < 5) {
			t.Errorf("%s: %d proposals, %d with a next one, %d compared with all", a.Name, proposed[a.Name], withNext[a.Name], exact[a.Name])
		}
	}
}

// The answer is the same for any number of goroutines.
func TestProposalsAreDeterministic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	log := drawLog(r, 5000, 750, algorithms.Binary, true)
	log = append(log, drawLog(r, 1000, 1, algorithms.Binary, false)...)
	slices.SortStableFunc(log, func(a, b zoneRequest) int { return cmp.Compare(a.at, b.at) })
	zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{
		{Limits: []*algorithms.Limit{
			newLimit(t, algorithms.Quota{Algorithm: "token_bucket", Events: 3, Window: 1_000_000, Burst: 9}),
			newLimit(t, algorithms.Quota{Algorithm: "sliding_log", Events: 100, Window: 60_000_000}),
		}},
		{Name: "plan gold", Limits: []*algorithms.Limit{newLimit(t, algorithms.Quota{Algorithm: "leaky_bucket", Events: 5, Window: 1_000_000})}},
	}}
	for i := range log {
		log[i].set = int(log[i].at) & 1
	}
	var want map[string][]report.Proposal
	for _, workers := range []int{1, 2, 7} {
		recorder := record(t, log, zone)
		recorder.workers = workers
		got := recorder.proposeFor(DefaultTarget)
		if want == nil {
			want = got
			for _, p := range got["zone"] {
				if p.Line == "" || len(p.Curve) < 10 {
					t.Errorf("%+v", p)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("with %d goroutines\n%+v\nwant\n%+v", workers, got, want)
		}
	}
	if len(want["zone"]) != 3 {
		t.Errorf("%d proposals", len(want["zone"]))
	}
}

func TestProposalsWithoutALine(t *testing.T) {
	bucket := newLimit(t, algorithms.Quota{Algorithm: "token_bucket", Events: 5, Window: 1_000_000, Burst: 9})
	empty := newLimit(t, algorithms.Quota{Algorithm: "token_bucket", Events: 5, Window: 1_000_000, Initial: new(int64(0))})
	spaced := newLimit(t, algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: 1_000_000, MinInterval: 10_000})
	at := []request{{at: 1000, cost: 1}, {at: 1001, cost: 1}}
	force := []request{{at: 1000, cost: 1, mode: algorithms.Force}}
	tests := []struct {
		limit  *algorithms.Limit
		varies bool
		log    []request
		reason string
	}{
		{bucket, false, nil, "the log has no request with this limit"},
		{bucket, false, force, "mode force denies nobody, with any limit"},
		{bucket, true, at, "the option factor gives each request a different burst"},
		{empty, false, at, "even with "},
		{spaced, false, at, "with any number of events, min_interval denies 1 of 2 requests, and 1 of 1 keys"},
	}
	for _, test := range tests {
		var log []zoneRequest
		for _, d := range test.log {
			log = append(log, zoneRequest{key: "k", request: d})
		}
		zone := simulate.Zone{Name: "zone", VariesBurst: test.varies, Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{test.limit}}}}
		proposals := record(t, log, zone).proposeFor(DefaultTarget)
		p := proposals["zone"][0]
		if !strings.HasPrefix(p.Reason, test.reason) || p.Line != "" || p.Current == "" {
			t.Errorf("%v: %+v, want the reason %q", test.limit, p, test.reason)
		}
	}
}

// A budget that is cold or empty at first denies by time alone. Then more events are proposed than anybody
// asks for.
func TestProposalsAboveThePeak(t *testing.T) {
	log := []zoneRequest{{key: "k", request: request{at: 1e15, cost: 1}}, {key: "k", request: request{at: 1e15 + 10_000, cost: 1}}}
	for _, test := range []struct {
		quota  algorithms.Quota
		target Target
		want   string
	}{
		// The first event of a cold budget takes about 3 · 1s/events, rounded up.
		{algorithms.Quota{Algorithm: "smooth", Events: 1, Window: 1_000_000, WarmUp: 60_000_000}, Target{}, "smooth 301 1s {\n\twarm_up 1m\n}"},
		// One event comes back in 10 ms.
		{
			algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: 1_000_000, Initial: new(int64(0))},
			Target{Requests: true, Share: whole / 2},
			"token_bucket 100 1s {\n\tinitial 0\n}",
		},
	} {
		zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{newLimit(t, test.quota)}}}}
		proposals := record(t, log, zone).proposeFor(test.target)
		if p := proposals["zone"][0]; p.Line != test.want {
			t.Errorf("%q, %s, next %+v, want %q", p.Line, p.Reason, p.Next, test.want)
		}
	}
}
