package slots_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
)

var (
	seeds = flag.Uint64("slots.seeds", 0, "how many programs the model runs, other than usual")
	first = flag.Uint64("slots.first", 1, "the first of them")
)

// each runs a program for each seed, and ends the test at the first violation.
func each(t *testing.T, program func(t *testing.T, seed uint64)) {
	t.Helper()
	n := *seeds
	if n == 0 {
		n = seedtest.Cases(t, uint64(60))
	}
	for seed := *first; seed < *first+n; seed++ {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Fatalf("seed %d: %v", seed, r)
				}
			}()
			program(t, seed)
		}()
	}
}

// Random programs with every accident. Afterwards nothing stays taken.
func TestModel(t *testing.T) {
	served, denied := 0, 0
	each(t, func(t *testing.T, seed uint64) {
		m := newModel(seed, 1+int64(seed%4), 2+int(seed/4%2), "a", "b")
		m.gives = seed%2 == 0
		for range 1500 {
			m.step()
		}
		m.calmDown()
		served, denied = served+m.served, denied+m.denied
	})
	t.Logf("%d requests, %d denied", served, denied)
}

// step does something, and lets time pass.
func (m *model) step() {
	i := m.alive[m.IntN(len(m.alive))]
	key := []string{"a", "b"}[m.IntN(2)]
	requests := m.keys[key].requests
	switch n := m.IntN(1000); {
	case n < 500:
		m.take(i, key, nil)
	case n < 850:
		if len(requests) > 0 {
			if r := requests[m.IntN(len(requests))]; r.running {
				m.finish(r)
			}
		}
	case n < 870:
		m.local(i, key)
	case n < 880: // a burst that ends at once
		for _, r := range append([]*request(nil), requests...) {
			if r.running {
				m.finish(r)
			}
		}
	case n < 900:
		m.lossy = []int{0, 0, 5, 20}[m.IntN(4)]
	case n < 903:
		m.kill(i)
		m.start()
	case n < 905:
		m.empty()
	case n < 907:
		m.restore()
	case n < 909:
		m.jump(m.between(10*second, 600*second))
	case n < 912:
		m.jump(-m.between(0, 600*second))
	case n < 916:
		m.jump(m.between(-second, second))
	}
	switch n := m.IntN(100); {
	case n < 70:
		m.pass(m.between(0, 4*millisecond))
	case n < 95:
		m.pass(m.between(0, 40*millisecond))
	default:
		m.pass(m.between(0, 4*second))
	}
}

// calmDown checks that all is well after a quiet time, while requests are in flight and after
// they end.
func (m *model) calmDown() {
	m.lossy = 0
	if m.IntN(2) == 0 { // otherwise disasters hide all else
		[]func(){m.empty, m.restore, func() { m.kill(m.alive[0]); m.start() }}[m.IntN(3)]()
	}
	m.pass(10*second + 500*millisecond)
	m.healed(false)
	for range 40 { // an old count is noticed by requests
		for key := range m.keys {
			m.probe(key, false)
		}
		m.pass(second)
	}
	m.healed(true)
	for key := range m.keys {
		m.probe(key, true)
	}
	for _, k := range m.keys {
		for len(k.requests) > 0 {
			m.finish(k.requests[0])
		}
	}
	m.pass(second)
	m.healed(true)
	m.pass(41 * second)
	for _, i := range m.alive {
		if all, idle := i.table.Len(); all != 0 || idle != 0 {
			m.violated("%d keys are remembered, %d idle", all, idle)
		}
	}
}

// probe takes a slot and gives it back. With sure it must be free if the limit says so.
func (m *model) probe(key string, sure bool) {
	i := m.alive[m.IntN(len(m.alive))]
	free := int64(len(m.keys[key].requests)) < m.limit
	answered := false
	r := &request{at: i, key: key}
	r.done = func(taken bool, err error) {
		if answered = true; sure && (err != nil || taken != free) {
			m.violated("a request of %s: taken %v, %v, want %v", key, taken, err, free)
		}
		if taken {
			m.finish(r)
		}
	}
	i.waiting[key] = append(i.waiting[key], r)
	m.send(i, key, false)
	if m.pass(900 * millisecond); !answered {
		m.violated("a request of %s waits for ever", key)
	}
}

// healed checks that Redis counts each instance's requests exactly and, with gone, nothing else.
func (m *model) healed(gone bool) {
	for name, k := range m.keys {
		s := m.stored(name)
		for _, i := range m.alive {
			if len(i.waiting[name]) > 0 {
				m.violated("%d requests of %s wait for ever", len(i.waiting[name]), name)
			}
			n := int64(0)
			for _, r := range k.requests {
				if r.at == i {
					n++
				}
			}
			if s.Of(i.id) != n {
				m.violated("instance %v has %d requests of %s in flight, Redis still counts %d", i.id, n, name, s.Of(i.id))
			}
		}
		if gone && s.InFlight() != int64(len(k.requests)) {
			m.violated("%d requests of %s are in flight, Redis still counts %d", len(k.requests), name, s.InFlight())
		}
	}
}

// A client that sends one request after the other is never denied, whatever is lost on the way.
func TestOneClientIsNeverDenied(t *testing.T) {
	each(t, func(t *testing.T, seed uint64) {
		m := newModel(seed, 1, 1, "a")
		m.lossy = []int{0, 5, 30}[seed%3]
		i, requests := m.alive[0], 0
		var next func()
		next = func() {
			r := &request{at: i, key: "a"}
			r.done = func(taken bool, err error) {
				switch requests++; {
				case err != nil:
					next()
				case !taken:
					m.violated("request %d is denied", requests)
				default:
					m.after([]slots.Micros{0, m.between(0, millisecond), m.between(0, second)}[m.IntN(3)], func() {
						m.finish(r)
						next()
					})
				}
			}
			i.waiting["a"] = append(i.waiting["a"], r)
			m.send(i, "a", false)
		}
		next()
		m.pass(60 * second)
		if requests < 60 {
			m.violated("only %d requests in a minute", requests)
		}
	})
}

// Keys that are held at the same instant are set at different ones, each at least every 10 s, and with many keys soon after.
func TestSetsAreSpread(t *testing.T) {
	for keys, longest := range map[int]slots.Micros{1000: 10 * second, 50_000: 11 * second} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			table, last, now := slots.New(algorithms.SlotsExpiry), map[string]slots.Micros{}, second
			table.Due(now, 128)
			for n := range keys {
				last[fmt.Sprint(n)] = now
				table.Replied(table.Prepare(fmt.Sprint(n), true, now), 1, 0, now)
			}
			most := 0
			for ; now < 100*second; now += 100 * millisecond {
				due := table.Due(now, 128)
				for _, name := range due {
					op := table.Prepare(name, false, now)
					if !op.Set || op.Count != 1 {
						t.Fatalf("Prepare: %v", op)
					}
					table.Replied(op, 0, 1, now)
					if now-last[name] > longest {
						t.Fatalf("key %s of %d is set after %d us", name, keys, now-last[name])
					}
					last[name] = now
				}
				most = max(most, len(due))
			}
			if most > 2*keys/100 {
				t.Errorf("%d of %d keys are set in 100 ms", most, keys)
			}
			for name, at := range last {
				if now-at > longest {
					t.Errorf("key %s of %d was set last %d us ago", name, keys, now-at)
				}
			}
		})
	}
}

// When all keys are due at once, as after a loss, Due catches up with twice the average, whatever the limit. So all are
// set within half the time in which each is set once.
func TestDueCatchesUp(t *testing.T) {
	table := slots.New(algorithms.SlotsExpiry)
	const keys = 1000
	for n := range keys {
		table.Replied(table.Prepare(fmt.Sprint(n), true, 0), 1, 5, 0) // Redis had another count
	}
	set := 0
	for now := 100 * millisecond; now <= 5*second; now += 100 * millisecond {
		for _, name := range table.Due(now, 1) {
			table.Replied(table.Prepare(name, false, now), 0, 1, now)
			set++
		}
	}
	if set != keys {
		t.Errorf("%d of %d keys were set in 5 s", set, keys)
	}
}

// A count that Redis must not have is set at once. The count of a request that another store
// allowed is set at once, too.
func TestWrongCountIsSetAtOnce(t *testing.T) {
	table := slots.New(algorithms.SlotsExpiry)
	take := func(found int64) slots.Op {
		op := table.Prepare("a", true, second)
		table.Replied(op, 1, found, second)
		return op
	}
	take(0)
	one, two := table.Prepare("a", true, second), table.Prepare("a", true, second)
	table.Replied(two, 0, 1, second)
	table.Replied(one, 1, 0, second) // the other one may have run before or after it
	if next := table.Next(); one.Set || two.Set || next != 11*second {
		t.Errorf("the key is set at %d us without a reason", next)
	}
	if take(1); table.Next() != second {
		t.Errorf("the key is set at %d us, want 1 s", table.Next())
	}
	if op := take(1); !op.Set || op.Count != 3 {
		t.Errorf("%v, want the count set to 3", op)
	}
	table.Count("a", second)
	if table.Next() != 2*second {
		t.Errorf("the key is set at %d us, want 2 s", table.Next())
	}
	if op := table.Prepare("a", false, second); !op.Set || op.Count != 5 {
		t.Errorf("%v, want the count set to 5", op)
	}
}

// After a loss, each key with held slots is set once, with its next take. Other keys are not.
func TestDistrust(t *testing.T) {
	table := slots.New(algorithms.SlotsExpiry)
	take := func(name string, found int64) slots.Op {
		op := table.Prepare(name, true, 0)
		table.Replied(op, 1, found, 0)
		return op
	}
	take("held", 0)
	take("left", 0)
	table.Leave("left", 1, 0)
	table.Replied(table.Prepare("left", false, 0), 0, 1, 0)
	inFlight := table.Prepare("held", true, 0)
	table.Distrust()
	if wait := table.Wait("held", 0); wait != algorithms.Forever {
		t.Errorf("a take waits for %d us, want that it waits for the one in flight", wait)
	}
	table.Replied(inFlight, 1, 1, 0)
	if op := take("held", 2); !op.Set || op.Count != 2 {
		t.Errorf("%v, want the count set to 2", op)
	}
	for name, found := range map[string]int64{"held": 3, "left": 0, "new": 0} {
		for i := range int64(2) {
			if take(name, found+i).Set {
				t.Errorf("key %s is set without a reason", name)
			}
		}
	}
	if take("higher", 7); take("held", 5).Set {
		t.Error("a key is set because another one had a higher count than expected")
	}
	if take("new", 0); !take("held", 6).Set {
		t.Error("held is not set, although another key had a lower count than expected")
	}
}

// A slot is given back after Wait has allowed a take beside another one. The take is sent without a Set, which
// could overtake the other take. The key is set when both have ended.
func TestNoSetBesideTakes(t *testing.T) {
	table := slots.New(algorithms.SlotsExpiry)
	table.Replied(table.Prepare("k", true, 0), 1, 0, 0)
	first := table.Prepare("k", true, 0)
	if wait := table.Wait("k", 0); wait != 0 {
		t.Fatalf("a take waits for %d us, want 0", wait)
	}
	table.Leave("k", 1, 0)
	second := table.Prepare("k", true, 0)
	if op := table.Prepare("k", false, 0); second.Set || op.Set {
		t.Errorf("a Set to %d is sent beside a take", second.Count)
	}
	table.Replied(first, 1, 1, 0)
	table.Replied(second, 1, 2, 0)
	if due := table.Due(0, 1); !slices.Equal(due, []string{"k"}) {
		t.Errorf("%v are due, want k", due)
	}
	if op := table.Prepare("k", false, 0); !op.Set || op.Count != 2 {
		t.Errorf("%v, want the count set to 2", op)
	}
}

// A key that is due while Redis fails is due again a second later, not at its next turn.
func TestPostpone(t *testing.T) {
	table := slots.New(expiry)
	table.Count("k", 0)
	now := table.Next()
	for range 3 {
		if due := table.Due(now, 1); len(due) != 1 {
			t.Fatalf("%q are due, want k", due)
		}
		table.Postpone("k", now)
		if next := table.Next(); next != now+second {
			t.Fatalf("k is due after %.3f s, want 1 s", float64(next-now)/1e6)
		}
		now += second
	}
	table.Postpone("another", now) // may have been dropped
}

// A wrong count that a take has found is set, even if no request has held a slot for long.
func TestWrongCountIsRemembered(t *testing.T) {
	table := slots.New(expiry)
	table.Count("k", 0)
	table.Leave("k", 1, 0)
	table.Replied(table.Prepare("k", true, expiry-1), 0, 3, expiry-1) // denied
	if due := table.Due(expiry, 1); !slices.Equal(due, []string{"k"}) {
		t.Errorf("%q are due, want k", due)
	}
}

// The end of a line is said by the next Set, also if the key has long been idle, and again if that Set did not run.
func TestEndLine(t *testing.T) {
	table := slots.New(expiry)
	prepare := func(now slots.Micros, want slots.Op) slots.Op {
		t.Helper()
		op := table.Prepare("k", false, now)
		if op.Set != want.Set || op.Count != want.Count || op.EndsLine != want.EndsLine {
			t.Errorf("at %d: %+v, want %+v", now, op, want)
		}
		return op
	}
	table.EndLine("k", 0)
	table.NotRun(prepare(0, slots.Op{Set: true, EndsLine: true}), 0)
	table.Replied(prepare(1, slots.Op{Set: true, EndsLine: true}), 0, 0, 1)
	prepare(2, slots.Op{})
	const late = 2 * expiry
	table.EndLine("k", late)
	if due := table.Due(late, 10); len(due) != 1 || table.Wait("k", late) != 0 {
		t.Errorf("%v are due, want the key", due)
	}
	table.Lost(prepare(late, slots.Op{Set: true, EndsLine: true}), late, late)
	prepare(late+second, slots.Op{Set: true}) // by then, lines have expired
}
