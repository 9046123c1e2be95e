package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The parity test plays the same seeded program (some limits, 40 requests on a
// timeline) through the Go functions and through the composed Lua script on a
// real Redis. Every decision, and the state at the end, must be the same.

const programSteps = 40

var parityNames = keyNames{prefix: "parity"}

// latest is the last instant the bounds of package algorithms are made for, with
// room to spare: the year 2096.
const latest algorithms.Micros = 4_000_000_000_000_000

// program is one run of one seed.
type program struct {
	seed     uint64
	requests []store.Request // of every step, with the costs of the moment
	states   []*algorithms.State
	nows     []algorithms.Micros
	costs    [][]int64
	waits    []algorithms.Micros     // per step: MaxWait of its Binary requests
	want     [][]algorithms.Decision // per step, all limits of all requests
	refunds  []refund                // what is given back after each step
	changes  []store.Change          // what is changed before each step
	asked    [][]string              // per step: by which override each request is asked
	others   [][]string              // per step: which there are, if these are others; then nothing is decided
	inForce  []string                // the override of each request

	startFrom *algorithms.State // what the first budget holds before the first step, or nil
}

// refund is that so many events of the charges of an earlier step are given back; 0
// is none.
type refund struct {
	of     int
	events int64
}

func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d:", p.seed)
	for _, r := range p.requests {
		for _, l := range r.Limits {
			fmt.Fprintf(&b, " [%s key %s %v] %v", r.Zone, r.Key, r.Mode, l.Limit)
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

// randomBan draws the ban of a zone with these limits.
func randomBan(r *rand.Rand, limits []store.Limit) *algorithms.Limit {
	window := limits[0].Window
	b := algorithms.Ban{
		After: pick[int64](r, 1, 1, 2, 3, 5), Window: window,
		Duration: pick(r, 1, 1000, window, 1+r.Int64N(2*window), 1+r.Int64N(1<<r.IntN(48))),
	}
	b.Duration = min(b.Duration, 1<<50)
	b.Most = min(pick(r, b.Duration, b.Duration+1, 3*b.Duration, 8*b.Duration, b.Duration<<r.IntN(40)), 1<<51)
	if b.Most < b.Duration { // which has overflowed
		b.Most = 1 << 51
	}
	l, err := algorithms.NewBan(b)
	if err != nil {
		panic(err)
	}
	return l
}

// newProgram draws a program and decides it in Go. What happens next is aimed at
// the edges of what was just decided: exactly then, 1 µs before and after.
func newProgram(seed uint64) *program {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &program{seed: seed}
	for z := range pick(r, 1, 1, 1, 2, 3) {
		q := store.Request{
			Zone: fmt.Sprint("z", z), Key: fmt.Sprint(seed, "/", r.IntN(2)),
			Mode:   pick(r, algorithms.Binary, algorithms.Binary, algorithms.Nary, algorithms.Uniform, algorithms.Force),
			Shadow: r.IntN(4) == 0, Overridable: r.IntN(4) == 0,
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
			p.states = append(p.states, new(algorithms.State))
		}
		if r.IntN(3) == 0 {
			q.Limits = append(q.Limits, store.NewBan(q.Zone, "", randomBan(r, q.Limits)))
			p.states = append(p.states, new(algorithms.State))
		}
		p.requests, p.inForce = append(p.requests, q), append(p.inForce, "")
	}
	now := 1_763_640_000_000_000 + r.Int64N(1_000_000_000)
	edges, back := []algorithms.Micros{0}, algorithms.Micros(0)
	for range programSteps {
		step := pick(r, edges...) + pick[int64](r, -1, 0, 0, 1)
		switch r.IntN(12) {
		case 0: // the clock steps back: a little, about as far as holds a budget still, or further
			step = -pick(r, r.Int64N(10), 999_999+r.Int64N(4), r.Int64N(2_000_000), r.Int64N(1_000_000_000_000))
			back = max(back-step, 0)
		case 1:
			if r.IntN(3) == 0 { // and goes back to where it was
				step, back = back, 0
				break
			}
			step = pick[int64](r, 0, 1, r.Int64N(1000), r.Int64N(100_000_000))
		case 2:
			step = 0
		}
		now = min(now+step, latest)
		p.step(r, now)
		if of := r.IntN(len(p.want)); r.IntN(4) == 0 && of < len(p.want)-1 && p.others[of] == nil {
			p.refund(of, 1+r.Int64N(3))
		}
		edges = edges[:0]
		for _, d := range p.want[len(p.want)-1] {
			edges = append(edges, d.RetryAfter, d.MoreAfter, d.ResetAfter)
		}
		for _, q := range p.requests {
			for _, l := range q.Limits {
				edges = append(edges, l.Window, l.Window/l.Events, l.MinInterval)
			}
		}
	}
	return p
}

func (p *program) step(r *rand.Rand, now algorithms.Micros) {
	var costs []int64
	for _, q := range p.requests {
		b, e := q.Limits[0].Burst, q.Limits[0].Events
		costs = append(costs, min(pick(r, 1, 1, 1, 0, 2, b, b+1, e, e+1, (e+1)/2, 1<<31-1), p.mostCost()))
	}
	var wait algorithms.Micros
	if r.IntN(2) == 0 {
		l := p.requests[0].Limits[0]
		wait = pick(r, 1, l.Window/l.Events, l.Window, 3*l.Window, r.Int64N(10*l.Window))
	}
	change, asked := store.Change{}, slices.Clone(p.inForce)
	for z, q := range p.requests {
		if !q.Overridable {
			continue
		}
		if text := pick(r, "", "a", "b"); r.IntN(6) == 0 && change.Override == nil {
			change = store.Change{Zone: q.Zone, Key: q.Key, Override: &text}
			p.inForce[z] = text
		}
		if asked[z] = p.inForce[z]; r.IntN(8) == 0 {
			asked[z] = pick(r, "", "a", "b", "=a")
		}
	}
	p.changes, p.asked = append(p.changes, change), append(p.asked, asked)
	if !slices.Equal(asked, p.inForce) {
		p.nows, p.costs, p.want = append(p.nows, now), append(p.costs, costs), append(p.want, nil)
		p.waits, p.refunds, p.others = append(p.waits, wait), append(p.refunds, refund{}), append(p.others, slices.Clone(p.inForce))
		return
	}
	p.decide(now, costs, wait)
}

// decide decides a step in Go, with a cost for each request.
func (p *program) decide(now algorithms.Micros, costs []int64, wait algorithms.Micros) {
	var requests []algorithms.Request
	n := 0
	for i, q := range p.requests {
		request := algorithms.Request{Mode: q.Mode, Cost: costs[i], MaxWait: maxWait(q, wait), Shadow: q.Shadow}
		for _, l := range q.Limits {
			request.Checks = append(request.Checks, algorithms.Check{Limit: l.Limit, State: p.states[n]})
			n++
		}
		requests = append(requests, request)
	}
	algorithms.Take(requests, now)
	var want []algorithms.Decision
	for _, request := range requests {
		for _, c := range request.Checks {
			want = append(want, c.Decision)
		}
	}
	p.nows, p.costs, p.want = append(p.nows, now), append(p.costs, costs), append(p.want, want)
	p.waits, p.refunds, p.others = append(p.waits, wait), append(p.refunds, refund{}), append(p.others, nil)
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

// refund gives back events of an earlier step, right after the one decided last and
// at its instant.
func (p *program) refund(of int, events int64) {
	last := len(p.want) - 1
	p.refunds[last] = refund{of: of, events: events}
	n := 0
	for _, q := range p.requests {
		for _, l := range q.Limits {
			if d := p.want[of][n]; d.Charged > 0 {
				algorithms.Refund(l.Limit, p.states[n], p.nows[last], d.Receipt, min(events, d.Charged))
			}
			n++
		}
	}
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

// difference replays the program on Redis in one pipeline and returns the first
// thing that isn't as in Go, or "".
func (p *program) difference(client *redis.Client, load func(algorithms.Set) loaded) (string, error) {
	ctx := context.Background()
	var set algorithms.Set
	for _, q := range p.requests {
		for _, l := range q.Limits {
			set = set.With(l.Algorithm())
		}
	}
	if p.startFrom != nil {
		if err := putState(client, p.requests[0], *p.startFrom); err != nil {
			return "", err
		}
	}
	pipe := client.Pipeline()
	var replies, refunds []*redis.Cmd
	var keys []string
	for i, now := range p.nows {
		for z := range p.requests {
			p.requests[z].Cost, p.requests[z].MaxWait = p.costs[i][z], maxWait(p.requests[z], p.waits[i])
			if p.asked != nil {
				p.requests[z].Override = p.asked[i][z]
			}
		}
		if p.changes != nil {
			for _, c := range encodeChange(parityNames, now, p.changes[i]) {
				pipe.Eval(ctx, algorithms.ChangeScript(), c.keys, c.argv...)
			}
		}
		var argv []any
		keys, argv = encode(parityNames, now, 0, p.requests)
		replies = append(replies, pipe.EvalSha(ctx, load(set).take, keys, argv...))
		if given := p.refunds[i]; given.events > 0 {
			n := 0
			for z := range p.requests {
				q := &p.requests[z]
				q.Decisions = append(q.Decisions[:0], p.want[given.of][n:n+len(q.Limits)]...)
				n += len(q.Limits)
			}
			if back, argv := encodeRefund(parityNames, p.requests, given.events, now); len(back) > 0 {
				refunds = append(refunds, pipe.EvalSha(ctx, load(set).refund, back, argv...))
			}
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return "", err
	}
	for _, reply := range refunds {
		values, err := reply.Slice()
		if err != nil || slices.ContainsFunc(values[1:], func(v any) bool { return v != int64(1) }) {
			return fmt.Sprintf("a refund: %v", values), err
		}
	}
	for i, reply := range replies {
		values, err := reply.Slice()
		if err != nil {
			return "", err
		}
		r := reader{reply: values}
		now, _ := r.decodeHead()
		_, failed := r.decodeGroup(p.requests)
		if err := r.end(); err != nil {
			return fmt.Sprintf("step %d: %v", i, err), nil
		}
		if found, is := errors.AsType[*store.OverriddenError](failed); is && slices.Equal(found.Overrides, p.others[i]) {
			continue
		} else if is || p.others[i] != nil {
			return fmt.Sprintf("step %d, asked by the overrides %q: %v, want %q", i, p.asked[i], found, p.others[i]), nil
		}
		if failed != nil {
			return fmt.Sprintf("step %d: %v", i, failed), nil
		}
		var got []algorithms.Decision
		for _, q := range p.requests {
			got = append(got, q.Decisions...)
		}
		if now != p.nows[i] || !slices.Equal(got, p.want[i]) {
			return fmt.Sprintf("step %d at %d, costs %v:\n  Go  %+v\n  Lua %+v", i, p.nows[i], p.costs[i], p.want[i], got), nil
		}
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":o") }) // of overrides
	return p.stateDifference(client, keys)
}

// putState writes the state of a request's first limit into Redis.
func putState(client *redis.Client, r store.Request, s algorithms.State) error {
	key := parityNames.name(r.Key, r.Limits[0].ID)
	if s.Log != nil {
		for i := range s.Log.Len() {
			if err := client.RPush(context.Background(), key, s.Log.At(i)).Err(); err != nil {
				return err
			}
		}
		return client.Expire(context.Background(), key, time.Hour).Err()
	}
	state := binary.LittleEndian.AppendUint64(nil, uint64(s.A))
	state = binary.LittleEndian.AppendUint64(state, uint64(s.B))
	return client.Set(context.Background(), key, state, time.Hour).Err()
}

func (p *program) stateDifference(client *redis.Client, keys []string) (string, error) {
	ctx := context.Background()
	last := p.nows[len(p.nows)-1]
	for i, key := range keys {
		kind, err := client.Type(ctx, key).Result()
		if err != nil {
			return "", err
		}
		want := p.states[i]
		switch kind {
		case "string":
			state, err := client.Get(ctx, key).Bytes()
			if err != nil {
				return "", err
			}
			var got algorithms.State
			for n, field := range []*int64{&got.A, &got.B, &got.C}[:len(state)/8] {
				*field = int64(binary.LittleEndian.Uint64(state[8*n:]))
			}
			if got != *want {
				return fmt.Sprintf("state of %s: Go %+v, Lua %+v", key, *want, got), nil
			}
		case "list":
			entries, err := client.LRange(ctx, key, 0, -1).Result()
			if err != nil {
				return "", err
			}
			var got, log []int64
			for _, entry := range entries {
				got = append(got, logEntry(entry)...)
			}
			for n := range want.Log.Len() {
				log = append(log, want.Log.At(n))
			}
			if want.A > 0 { // how far the log's own time is ahead stands last
				log = append(log, want.A)
			}
			if !slices.Equal(got, log) {
				return fmt.Sprintf("state of %s: Go %d, Lua %d", key, log, got), nil
			}
		default: // none
			if *want != (algorithms.State{}) {
				return fmt.Sprintf("state of %s: Go %+v, Lua none", key, want), nil
			}
			continue
		}
		if ttl := client.PTTL(ctx, key).Val(); ttl < 0 || ttl == 0 {
			return fmt.Sprintf("%s has no expiry at %d", key, last), nil
		}
	}
	return "", nil
}

// logEntry reads an entry of a log: an instant, or three packed numbers.
func logEntry(entry string) (numbers []int64) {
	if len(entry) == 24 {
		for n := range 3 {
			numbers = append(numbers, int64(binary.LittleEndian.Uint64([]byte(entry[8*n:]))))
		}
		return numbers
	}
	stamp, _ := strconv.ParseInt(entry, 10, 64)
	return []int64{stamp}
}

// loaded are the hashes of the two scripts of a set.
type loaded struct{ take, refund string }

// loader loads each composed script once, changed by mutate. Keys are there for an hour
// longer than they need to be: Redis forgets in true time, of which a busy machine may
// take seconds where a program takes a microsecond.
func loader(t testing.TB, client *redis.Client, mutate func(string) string) func(algorithms.Set) loaded {
	t.Helper()
	known := make(map[algorithms.Set]loaded)
	load := func(script string) string {
		const spare = "/ 1000) + 1000\n"
		if strings.Count(script, spare) != 1 {
			t.Fatalf("the script no longer holds %q", spare)
		}
		lasting := strings.Replace(mutate(script), spare, "/ 1000) + 3600000\n", 1)
		hash, err := client.ScriptLoad(context.Background(), lasting).Result()
		if err != nil {
			t.Fatalf("load: %v", err)
		}
		return hash
	}
	return func(set algorithms.Set) loaded {
		l, ok := known[set]
		if !ok {
			l = loaded{take: load(set.TakeScript()), refund: load(set.RefundScript())}
			known[set] = l
		}
		return l
	}
}

func unchanged(script string) string { return script }

func TestParity(t *testing.T) {
	programs := 3000
	if testing.Short() {
		programs = 300
	}
	client := redistest.Start(t).Client
	script := loader(t, client, unchanged)
	first := uint64(time.Now().UnixNano())
	for i := range programs {
		// Half of the seeds are always the same, half are new each time.
		p := newProgram(uint64(i) + first*uint64(i%2))
		if diff, err := p.difference(client, script); err != nil || diff != "" {
			t.Fatalf("%v\n%s %v", p, diff, err)
		}
	}
	t.Logf("%d programs of %d requests", programs, programSteps)
}

// FuzzParity plays the program of any seed.
func FuzzParity(f *testing.F) {
	client := redistest.Start(f).Client
	script := loader(f, client, unchanged)
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		client.FlushAll(context.Background())
		p := newProgram(seed)
		if diff, err := p.difference(client, script); err != nil || diff != "" {
			t.Fatalf("%v\n%s %v", p, diff, err)
		}
	})
}

// mutants are small mistakes in the Lua. A parity test that misses one of them
// would miss the like in a real change.
var mutants = []struct{ name, old, new string }{
	{"take: all limits charged although one refuses", "      charge = 0\n", ""},
	{"take: the last limit alone decides", "allowed = allowed and (room[c] > 0 or ask.shadow)", "allowed = room[c] > 0 or ask.shadow"},
	{"take: cost below what fits", "want <= fits[c]", "want < fits[c]"},
	{"take: the cost of another zone", "local mode, cost, passes = ask.mode, ask.cost", "local mode, cost, passes = ask.mode, zones[1].cost"},
	{"take: nary grants by its first limit", "for n = 1, #ask do charge", "for n = 1, 1 do charge"},
	{"take: nary wants everything", "ask.want = min(cost, 1)", "ask.want = cost"},
	{"take: force wants something", "ask.want = 0 end", "ask.want = 1 end"},
	{"take: force charges what does not fit", "charge = min(cost, fits[c])", "charge = cost"},
	{"take: force charges although another zone refuses", "if mode == 'force' and passes then", "if mode == 'force' then"},
	{"take: uniform's refusals are free", "if not passes and mode ~= 'uniform' then", "if not passes then"},
	{"take: uniform forgets what was charged just now", "_, retry[c] = l.decide(l, key, now, cost)", ""},
	{"take: shadows refuse", "room[c] > 0 or ask.shadow", "room[c] > 0"},
	{"take: shadows are charged what they have no room for", "do passes = passes and room[c + n] > 0 end", "do end"},
	{"take: shadows go by their first limit", "for n = 1, #ask do passes", "for n = 1, 1 do passes"},
	{"take: shadows are charged although another zone refuses", "if ask.shadow then\n", "if ask.shadow then passes = true\n"},
	{"take: a shadow's refusals are its neighbours' too", "do passes = passes and room[c + n] > 0 end", "do passes = passes and room[c + n] > 0 end\n      allowed = passes"},
	{"take: all are shadows", "shadow = checks < 0", "shadow = true"},
	{"token_bucket: debt without bound", "used = min(used + charge * window, most)", "used = used + charge * window"},
	{"gcra: debt without bound", "    ahead, part = floor(most / events), most % events\n", ""},
	{"fixed_window: a charged refusal does not restart the window", "start, count = max(now, start), events - charge", "count = events - charge"},
	{"fixed_window: counts past events", "start, count = max(now, start), events - charge", "start = max(now, start)"},
	{"fixed_window: a charged refusal moves the window back", "start, count = max(now, start), events - charge", "start, count = now, events - charge"},
	{"fixed_window: counts past events at the clock", "charge = max(events - count, 0)", "charge = charge"},
	{"leaky_bucket: debt without bound", "charge = max(min(charge, 2 * burst - level), 0)", ""},
	{"sliding_window: counts without bound", "charge = max(min(charge, 2 * events - cur), 0)", ""},
	{"sliding_log: keeps more than its newest events", "dead, live = dead + over, live - over", ""},
	{"prelude: state loses digits", "struct.pack('<i8i8', a, b)", "struct.pack('<i8i8', a - a % 10, b)"},
	{"prelude: no expiry", "state, 'PX', ttl(reset)", "state"},
	{"token_bucket: clock steps back", "local eff = max(now, at)\n  used = max", "local eff = now\n  used = max"},
	{"token_bucket: elapsed is not clamped to the time to full", "used = max(used - min(eff - at, ceil(used / events)) * events, 0)", "used = used - (eff - at) * events"},
	{"token_bucket: rounds the refill up", "min(eff - at, ceil(used / events))", "min(eff - at + 1, ceil(used / events))"},
	{"token_bucket: retry rounds down", "retry = ceil((cost * window - free) / events) + eff - now", "retry = floor((cost * window - free) / events) + eff - now"},
	{"token_bucket: retry forgets the step back", "retry = ceil((cost * window - free) / events) + eff - now", "retry = ceil((cost * window - free) / events)"},
	{"token_bucket: cost of burst refused for ever", "if cost > burst then\n    retry = forever\n  elseif cost > fits then\n    retry = ceil((cost", "if cost >= burst then\n    retry = forever\n  elseif cost > fits then\n    retry = ceil((cost"},
	{"token_bucket: more counts from the wrong token", "more = ceil(((remaining + 1) * window - free) / events)", "more = ceil((remaining * window - free) / events)"},
	{"gcra: a passed arrival time counts", "if tat < eff then", "if tat < eff - 1 then"},
	{"gcra: keeps the part of a passed arrival time", "tat, part = eff, 0", "tat = eff"},
	{"gcra: spacing is rounded", "ahead, part = ahead + floor(part / events), part % events", "ahead, part = ahead + floor(part / events), 0"},
	{"gcra: part does not count", "(burst * window - ahead * events - part)", "(burst * window - ahead * events)"},
	{"gcra: retry forgets the step back", "/ events) + eff - now\n  end\n  return fits, retry, tat", "/ events)\n  end\n  return fits, retry, tat"},
	{"gcra: retry rounds down", "retry = ahead + ceil(", "retry = ahead + floor("},
	{"gcra: reset forgets the part", "reset = ahead + ceil(part / events)", "reset = ahead"},
	{"fixed_window: the last instant belongs to the old window", "now - start >= window", "now - start > window"},
	{"fixed_window: windows never start at the clock", "if clock then", "if false then"},
	{"fixed_window: retry from the start", "retry = start + floor((count + cost - 1) / events) * window - now", "retry = floor((count + cost - 1) / events) * window"},
	{"leaky_bucket: clock steps back", "(max(now, drip) - drip)", "(now - drip)"},
	{"leaky_bucket: one drip at a time", "max(level - drips * events, 0)", "max(level - drips, 0)"},
	{"leaky_bucket: the grid moves with every request", "drip, level = drip + drips * window,", "drip, level = max(now, drip),"},
	{"leaky_bucket: the grid of an empty bucket stays", "  if level == 0 then\n    drip = now\n  end\n", ""},
	{"leaky_bucket: retry rounds down", "retry = drip + ceil(", "retry = drip + floor("},
	{"leaky_bucket: more by one event", "ceil((level - burst + remaining + 1) / events)", "ceil((level - burst + remaining) / events)"},
	{"sliding_window: forgets the window before", "start, prev, cur = start + window, cur, 0\n  end\n  return", "start, prev, cur = start + window, 0, 0\n  end\n  return"},
	{"sliding_window: keeps what is two windows old", "now - start >= 2 * window", "now - start > 2 * window"},
	{"sliding_window: clock steps back", "floor((max(now, start) - start) / unit)", "floor((now - start) / unit)"},
	{"sliding_window: the border belongs to the old window", "elseif now - start >= window then", "elseif now - start > window then"},
	{"sliding_window: the window before does not weigh less", "prev * (width - into)", "prev * width"},
	{"sliding_window: rounds the way in up", "floor((max(now, start) - start) / unit)", "ceil((max(now, start) - start) / unit)"},
	{"sliding_window: never waits for the next window", "if cur + cost > events then\n    start, prev, cur = start + window, cur, 0\n  end", ""},
	{"sliding_window: waits past the next window", "start + min(into * unit, window)", "start + into * unit"},
	{"sliding_window: reset one window early", "reset = start + 2 * window - now", "reset = start + window - now"},
	{"sliding_log: an event of exactly one window still counts", "sliding_log_stamp(l, key, high - 1) <= edge", "sliding_log_stamp(l, key, high - 1) < edge"},
	{"sliding_log: halving is off", "sliding_log_stamp(l, key, middle - 1) <= edge", "sliding_log_stamp(l, key, middle - 1) < edge"},
	{"sliding_log: expired buckets count as events", "return number - first", "return entry"},
	{"sliding_log: clock steps back", "local eff = max(now, newest - grid + 1)", "local eff = now"},
	{"sliding_log: min_interval is only told, not kept", "    fits = 0\n    if cost > 0", "    if cost > 0"},
	{"sliding_log: min_interval refuses peeks", "    if cost > 0 then\n      retry = max(retry, early)\n    end", "    retry = max(retry, early)"},
	{"sliding_log: min_interval hides the window", "retry = max(retry, early)", "retry = early"},
	{"sliding_log: more although it is too early", "max(more, early), max(reset", "more, max(reset"},
	{"sliding_log: forgets the last request too early", "max(more, early), max(reset, early)", "max(more, early), reset"},
	{"sliding_log: retry by the wrong event", "dead + live + cost - events - 1", "dead + live + cost - events"},
	{"sliding_log: keeps what is dead", "redis.call('LTRIM', key, n, -1)", ""},
	{"sliding_log: drops one too many", "redis.call('LTRIM', key, n, -1)", "redis.call('LTRIM', key, n + 1, -1)"},
	{"sliding_log: pushes at most 1000", "for left = n, 1, -1000 do", "for left = n, n, -1000 do"},
	{"sliding_log: a stamp with 14 digits", "string.format('%.0f', stamp)", "tostring(stamp)"},
	{"sliding_log: no expiry", "redis.call('PEXPIRE', key, ttl(reset))", ""},
	{"sliding_log: an early bucket end is an early request", "interval > 0 and early > 0 and", "early > 0 and"},
	{"sliding_log: buckets end early", "ceil((eff + ahead) / grid) * grid", "floor((eff + ahead) / grid) * grid"},
	{"sliding_log: events die by the end of a bucket", "newest - grid + 1)", "newest)"},
	{"sliding_log: a bucket of each event", "if newest == stamp then", "if false then"},
	{"sliding_log: numbers begin anew", "number = after", "number = 0"},
	{"sliding_log: a part of a bucket is kept", "stamp, first + n, after))", "stamp, first, after))"},
	{"sliding_log: the bucket before", "if first <= number then", "if first < number then"},
	{"sliding_log: gives back the oldest", "local low, high = sliding_log_dead(l, key, held, at - 1),", "local low, high = 0,"},
	{"sliding_log: gives back more than there is", "n = min(n, high - low)", "n = high - low"},
	{"sliding_log: gives back in another order", "redis.call('LREM', key, -n,", "redis.call('LREM', key, 0,"},
	{"sliding_log: later buckets keep their numbers", "for i = bucket + 1, sliding_log_entries(key) - 1 do", "for i = bucket + 2, sliding_log_entries(key) - 1 do"},
	{"sliding_log: an empty bucket stays", "redis.call('LREM', key, 1, struct.pack", "local _ = (struct.pack"},
	{"take: nothing is charged in advance", "elseif retry[c] <= longest then", "elseif false then"},
	{"take: charges 1 µs too far in advance", "elseif retry[c] <= longest then", "elseif retry[c] <= longest + 1 then"},
	{"take: any mode charges in advance", "longest = tonumber(mode) or 0", "longest = tonumber(mode) or 1000"},
	{"take: has to come back for room, not for a place", "retry[c] = retry[c] - longest", ""},
	{"take: a receipt for nothing", "if charged == 0 then a, b = 0, 0 end", ""},
	{"take: peeks are requests", "cost == 0 and 'peek' or", ""},
	{"token_bucket: initial is full", "return withheld * window, now, 1", "return 0, now, 1"},
	{"token_bucket: a refused first request is forgotten", "or dirty == 1 and outcome ~= 'peek' then\n    save(key, reset + linger, used, eff)", "then\n    save(key, reset + linger, used, eff)"},
	{"token_bucket: debt in advance is bounded, too", "if outcome == 'refused' then\n    local most = max(used, 2 * burst", "if true then\n    local most = max(used, 2 * burst"},
	{"token_bucket: gives back what was refilled", "left = n * window\n", "left = n * window\n  else\n    left = n * window\n"},
	{"token_bucket: gives back all", "  if n < ceil(left / window) then\n    left = n * window\n  end\n", ""},
	{"token_bucket: those behind don't count", "if used > burst * window and used > left then", "if false then"},
	{"gcra: those behind don't count", "local behind = tat > a or tat == a and part > b", "local behind = false"},
	{"leaky_bucket: those behind don't count", "if level > burst and level > left then", "if false then"},
	{"fixed_window: those behind don't count", "if count > events and count > left then", "if false then"},
	{"smooth: those behind don't count", "if free > eff and (free > next_free or free == next_free and used ~= left) then", "if false then"},
	{"gcra: gives back what has passed", "if a - eff <= floor(back / events) then", "if false then"},
	{"gcra: gives back more than there is", "    tat, part = eff, 0\n  end\n  save", "    part = 0\n  end\n  save"},
	{"leaky_bucket: debt in advance is bounded, too", "if outcome == 'refused' then\n    charge = max(min(charge, 2 * burst - level), 0)", "if true then\n    charge = max(min(charge, 2 * burst - level), 0)"},
	{"leaky_bucket: gives back what has leaked", "n = min(n, left)\n  if n > 0 and level > 0", "if n > 0 and level > 0"},
	{"fixed_window: later windows take nothing", "max(count - passed * events, 0)", "0"},
	{"fixed_window: more after one window", "more = start + max(floor(count / events), 1) * window - now", "more = start + window - now"},
	{"fixed_window: reset after one window", "reset = start + ceil(count / events) * window - now", "reset = start + window - now"},
	{"fixed_window: gives back to another window", "and start == current then", "then"},
	{"fixed_window: a refusal undoes what was charged in advance", "if clock or count > events then", "if clock then"},
	{"sliding_window: gives back to the current window only", "elseif at == start - window and prev > 0 then", "elseif false then"},
	{"sliding_window: gives back to any window", "if at == start and cur > 0 then", "if cur > 0 then"},
	{"smooth: this request pays", "if free > eff then\n    fits = 0", "if free > eff + cost then\n    fits = 0"},
	{"smooth: nothing is saved up", "free = free + ceil((charge * window - spent) / events)", "free = free + ceil(charge * window / events)"},
	{"smooth: saves up during debt", "if now > free then\n    used = max(used - min(now - free,", "if now > free then\n    used = max(used - min(now,"},
	{"smooth: the wait rounds down", "free + ceil((charge * window - spent) / events)", "free + floor((charge * window - spent) / events)"},
	{"smooth: charges without bound", "  charge = min(charge, most)\n", ""},
	{"smooth: never warm", "local dx = min(ceil(min(charge, enough) * idle_n / idle_per), idle)", "local dx = 0"},
	{"smooth: warms up too far", "idle_n / idle_per), idle)", "idle_n / idle_per), warm_up)"},
	{"smooth: cold costs the same", "local extra = ceil(", "local extra = 0 * ceil("},
	{"smooth: cools down", "if not warm_up then\n    used = max(used - min(max(back", "if true then\n    used = max(used - min(max(back"},
	{"smooth: less is given back", "min(ceil(back / events), free - eff)", "min(floor(back / events), free - eff)"},
	{"smooth: more is used when given back", "max(back - sooner * events, 0)", "(back - sooner * events)"},
	{"smooth: initial is full", "withheld * window, now, now, 1", "0, now, now, 1"},
	{"take: the last override alone counts", "same = same and found[n] == overrides[n]", "same = found[n] == overrides[n]"},
	{"take: overrides don't count", "return not same and found or nil", "return nil"},
	{"take: the first budget is an override", "local k = k + number", ""},
	{"take: what is left of another reply", "for at = #reply, r + 1, -1 do reply[at] = nil end", ""},
	{"take: an override of nothing", "or ''", "or '='"},
	{"ban: a window that has passed still counts", "if now - start >= window then\n    start, refusals", "if now - start > window then\n    start, refusals"},
	{"ban: the window never ends", "if now - start >= window then\n    start, refusals", "if false then\n    start, refusals"},
	{"ban: the window begins with the last refusal", "if refusals == 0 then\n      start = now", "if true then\n      start = now"},
	{"ban: bans are never forgotten", "if level == 0 or now >= ends + most then", "if level == 0 then"},
	{"ban: bans are forgotten 1 µs late", "now >= ends + most", "now > ends + most"},
	{"ban: bans are forgotten when they end", "now >= ends + most", "now >= ends"},
	{"ban: stands 1 µs too long", "if ends > now then\n    fits", "if ends >= now then\n    fits"},
	{"ban: what costs nothing passes", "fits, retry = -1, ends - now", "fits, retry = 0, ends - now"},
	{"ban: one refusal too many", "refusals >= after", "refusals > after"},
	{"ban: never doubles", "duration = min(2 * duration, most)", ""},
	{"ban: doubles without bound", "duration = min(2 * duration, most)", "duration = 2 * duration"},
	{"ban: doubles at once", "for _ = 1, level do", "for _ = 0, level do"},
	{"ban: refusals before a ban count after it", "start, refusals = now, 0\n      ends", "start = now\n      ends"},
	{"ban: state says less than reset-after", "reset = max(reset, ends + most - now)", "reset = max(reset, ends - now)"},
	{"ban: refusals are forgotten at once", "reset = start + window - now\n  end\n  if level", "reset = 1\n  end\n  if level"},
	{"ban: peeks write", "if outcome == 'refused' or dirty == 1 and outcome ~= 'peek' then\n    save(key, reset, start, ends", "if true then\n    save(key, reset, start, ends"},
	{"ban: more although it stands", "remaining, more = 0, ends - now", "more = ends - now"},
	{"take: requests are held until a ban ends", "if l.bans then longest = 0 end", ""},
	{"take: what a ban refuses is charged", "        charge = 0\n      else", "        charge = charge\n      else"},
	{"take: refusals during a ban count", "      else\n        for n = 1, #ask do\n          if room", "      end\n      do\n        for n = 1, #ask do\n          if room"},
	{"take: a ban counts what other zones refuse", "if room[c + n] == 0 then counts = 'refused' end", "if not allowed then counts = 'refused' end"},
	{"take: a ban counts what its first limit refuses", "for n = 1, #ask do\n          if room", "for n = 1, 1 do\n          if room"},
	{"take: a ban counts what passes", "local counts = cost == 0 and 'peek' or 'granted'", "local counts = 'refused'"},
	{"take: a ban counts charges", "if l.bans then charge, outcome = 0, counts end", ""},
	{"take: the refusal that brings a ban doesn't say so", "if l.bans then retry[c] = more end", ""},
	{"prelude: a step back of a second and 1 µs holds", "step_back = 1000000", "step_back = 1000001"},
	{"prelude: a step back of a second doesn't hold", "step_back = 1000000", "step_back = 999999"},
	{"prelude: receipts ahead give back", "if at - now <= step_back or l.log then", "if true then"},
	{"prelude: a receipt 1 s ahead gives nothing back", "if at - now <= step_back or l.log then", "if at - now < step_back or l.log then"},
	{"prelude: a log's receipts are those of a clock", "if at - now <= step_back or l.log then", "if at - now <= step_back then"},
	{"token_bucket: stays behind a clock that stepped back", "    at, dirty = now, 1", ""},
	{"token_bucket: a step back gives back what was used", "    at, dirty = now, 1", "    used, at, dirty = 0, now, 1"},
	{"token_bucket: a denied request doesn't save the step back", "    at, dirty = now, 1", "    at = now"},
	{"token_bucket: a peek saves the step back", "dirty == 1 and outcome ~= 'peek' then\n    save(key, reset + linger, used, eff)", "dirty == 1 then\n    save(key, reset + linger, used, eff)"},
	{"leaky_bucket: stays behind a clock that stepped back", "    drip, dirty = now, 1", ""},
	{"leaky_bucket: a step back empties it", "    drip, dirty = now, 1", "    drip, level, dirty = now, 0, 1"},
	{"leaky_bucket: a denied request doesn't save the step back", "    drip, dirty = now, 1", "    drip = now"},
	{"leaky_bucket: a peek saves the step back", "dirty == 1 and outcome ~= 'peek' then\n    save(key, reset, drip", "dirty == 1 then\n    save(key, reset, drip"},
	{"fixed_window: stays behind a clock that stepped back", "    start, dirty = fresh, 1", ""},
	{"fixed_window: a step back gives back what was used", "    start, dirty = fresh, 1", "    start, count, dirty = fresh, 0, 1"},
	{"fixed_window: a step back moves windows off the clock", "    start, dirty = fresh, 1", "    start, dirty = now, 1"},
	{"fixed_window: a denied request doesn't save the step back", "    start, dirty = fresh, 1", "    start = fresh"},
	{"fixed_window: a peek saves the step back", "dirty == 1 and outcome ~= 'peek' then\n    save(key, reset, start, count)", "dirty == 1 then\n    save(key, reset, start, count)"},
	{"sliding_window: stays behind a clock that stepped back", "    start, dirty = now - now % window, 1", ""},
	{"sliding_window: a step back gives back what was used", "    start, dirty = now - now % window, 1", "    start, cur, dirty = now - now % window, 0, 1"},
	{"sliding_window: a step back gives back the window before", "    start, dirty = now - now % window, 1", "    start, prev, dirty = now - now % window, 0, 1"},
	{"sliding_window: a step back moves windows off the clock", "    start, dirty = now - now % window, 1", "    start, dirty = now, 1"},
	{"sliding_window: a denied request doesn't save the step back", "    start, dirty = now - now % window, 1", "    start = now - now % window"},
	{"sliding_window: a peek saves the step back", "dirty == 1 and outcome ~= 'peek' then\n    save(key, reset, start, prev", "dirty == 1 then\n    save(key, reset, start, prev"},
	{"gcra: stays behind a clock that stepped back", "    tat, at, dirty = tat - at + now, now, 1", ""},
	{"gcra: a step back gives back what was used", "    tat, at, dirty = tat - at + now, now, 1", "    tat, at, dirty = now, now, 1"},
	{"gcra: a step back leaves tat", "    tat, at, dirty = tat - at + now, now, 1", "    at, dirty = now, 1"},
	{"gcra: forgets when the last charge was", "    tat, at, dirty = tat - at + now, now, 1", "    tat, dirty = tat - at + now, 1"},
	{"gcra: a denied request doesn't save the step back", "    tat, at, dirty = tat - at + now, now, 1", "    tat, at = tat - at + now, now"},
	{"gcra: a peek saves the step back", "dirty == 1 and outcome ~= 'peek' then\n    save(key, reset, tat", "dirty == 1 then\n    save(key, reset, tat"},
	{"gcra: a node behind sets the last charge back", "local eff = max(now, at)\n  if tat", "local eff = now\n  if tat"},
	{"smooth: stays behind a clock that stepped back", "    free, at, dirty = free - at + now, now, 1", ""},
	{"smooth: a step back gives back what was used", "    free, at, dirty = free - at + now, now, 1", "    free, at, dirty = now, now, 1"},
	{"smooth: a step back leaves the next free instant", "    free, at, dirty = free - at + now, now, 1", "    at, dirty = now, 1"},
	{"smooth: a denied request doesn't save the step back", "    free, at, dirty = free - at + now, now, 1", "    free, at = free - at + now, now"},
	{"smooth: a peek saves the step back", "dirty == 1 and outcome ~= 'peek' then\n    save(key, reset + linger, used, free", "dirty == 1 then\n    save(key, reset + linger, used, free"},
	{"smooth: a node behind sets the last charge back", "return used, free, max(now, at), dirty", "return used, free, now, dirty"},
	{"sliding_log: stays behind a clock that stepped back", "if back > step_back then", "if false then"},
	{"sliding_log: a step back by buckets is one by their ends", "local back = newest - grid + 1 - now", "local back = newest - now"},
	{"sliding_log: a second step back forgets the first", "newest, ahead = newest - back, ahead + back", "newest, ahead = newest - back, back"},
	{"sliding_log: the newest instant stays", "newest, ahead = newest - back, ahead + back", "ahead = ahead + back"},
	{"sliding_log: expires by the clock, not by its own time", "eff - window + ahead)", "eff - window)"},
	{"sliding_log: retry by its own time", "dead + live + cost - events - 1) - ahead", "dead + live + cost - events - 1)"},
	{"sliding_log: more by its own time", "oldest = sliding_log_at(l, key, dead) - ahead", "oldest = sliding_log_at(l, key, dead)"},
	{"sliding_log: reset by its own time", "newest = last - ahead", "newest = last"},
	{"sliding_log: min_interval by its own time", "    newest = newest - ahead\n", ""},
	{"sliding_log: charges by the clock", "local stamp = ceil((eff + ahead) / grid) * grid", "local stamp = ceil(eff / grid) * grid"},
	{"sliding_log: tells of charges by its own time", "local oldest, newest = stamp - ahead, stamp - ahead", "local oldest, newest = stamp, stamp"},
	{"sliding_log: keeps its own time when it begins anew", "if charge > 0 and live == 0 then\n    ahead = 0", "if false then\n    ahead = 0"},
	{"sliding_log: begins anew with a denied request", "if charge > 0 and live == 0 then\n    ahead = 0", "if live == 0 then\n    ahead = 0"},
	{"sliding_log: a denied request doesn't save the step back", "elseif outcome ~= 'peek' and ahead > 0 and", "elseif false and"},
	{"sliding_log: a peek saves the step back", "elseif outcome ~= 'peek' and ahead > 0 and", "elseif ahead > 0 and"},
	{"sliding_log: a charge doesn't save the step back", "    if ahead > 0 then\n      sliding_log_set_ahead(key, ahead)\n    end\n", ""},
	{"sliding_log: how far it is ahead stays among the events", "    if ahead > 0 then\n      sliding_log_set_ahead(key, 0)\n    end\n", ""},
	{"sliding_log: how far it is ahead is an event", "return length - 1, sliding_log_number(last), redis", "return length, sliding_log_number(last), redis"},
	{"sliding_log: how far it is ahead is the newest event", "sliding_log_number(last), redis.call('LINDEX', key, -2)", "sliding_log_number(last), '0'"},
	{"sliding_log: how far it was ahead stays", "    redis.call('LTRIM', key, 0, -2)\n", ""},
	{"sliding_log: how far it is ahead stays when all is given back", "  elseif n == held then\n    redis.call('DEL', key)\n", ""},
	{"ban: stays behind a clock that stepped back", "    start, ends, dirty = now, ends - start + now, 1", ""},
	{"ban: a step back ends it", "    start, ends, dirty = now, ends - start + now, 1", "    start, ends, dirty = now, now, 1"},
	{"ban: a step back leaves its end", "    start, ends, dirty = now, ends - start + now, 1", "    start, dirty = now, 1"},
	{"ban: a denied request doesn't save the step back", "    start, ends, dirty = now, ends - start + now, 1", "    start, ends = now, ends - start + now"},
	{"ban: a peek saves the step back", "if outcome == 'refused' or dirty == 1 and outcome ~= 'peek' then", "if outcome == 'refused' or dirty == 1 then"},
	{"ban: forgets when it began", "start, refusals = now, 0\n      ends", "start, refusals = 0, 0\n      ends"},
	{"take: what a ban refuses saves no step back of it", "local counts = cost == 0 and 'peek' or 'granted'", "local counts = 'peek'"},
	{"take: what a ban refuses saves no step back of limits", "        charge = 0\n      else", "        charge, outcome = 0, 'peek'\n      else"},
}

func TestParityCatchesMutants(t *testing.T) {
	client := redistest.Start(t).Client
	var every algorithms.Set
	for _, a := range algorithms.All() {
		every = every.With(a)
	}
	every = every.With(randomBan(rand.New(rand.NewPCG(1, 1)), []store.Limit{{Limit: randomLimit(rand.New(rand.NewPCG(1, 1)))}}).Algorithm())
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if strings.Count(every.TakeScript()+every.RefundScript(), m.old) == 0 {
				t.Fatalf("the script no longer holds %q", m.old)
			}
			client.FlushAll(context.Background())
			script := loader(t, client, func(s string) string { return strings.ReplaceAll(s, m.old, m.new) })
			for seed := range uint64(5000) {
				p := newProgram(seed)
				if diff, err := p.difference(client, script); err != nil || diff != "" {
					t.Logf("caught by seed %d", seed)
					return
				}
			}
			t.Error("not caught")
		})
	}
}
