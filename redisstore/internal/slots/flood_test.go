package slots_test

import (
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
)

// A flood of keys grows neither memory nor the number of sets without bound.
func TestFloodOfKeys(t *testing.T) {
	table := slots.New(algorithms.SlotsExpiry)
	now, sets := slots.Micros(0), 0
	for n := range 100_000 {
		name := fmt.Sprint(n)
		now += 100
		for _, taken := range []int64{1, 0} {
			op := table.Prepare(name, taken > 0, now)
			table.Replied(op, taken, 1-taken, now)
			if taken == 1 {
				table.Leave(name, 1, now)
			}
		}
		if n%1000 == 0 {
			for _, name := range table.Due(now, 1000) {
				op := table.Prepare(name, false, now)
				table.Replied(op, 0, 0, now)
				sets++
			}
		}
	}
	if all, idle := table.Len(); all != slots.MaxIdle || idle != slots.MaxIdle {
		t.Errorf("%d keys are remembered, %d of them idle, want %d", all, idle, slots.MaxIdle)
	}
	if seconds := int(now / second); sets > (seconds+1)*slots.MaxIdle/10 {
		t.Errorf("%d sets in %d s", sets, seconds)
	}
}

// Keys that nobody holds are not remembered without bound, whatever happens to their messages.
func TestFloodOfKeysIsBounded(t *testing.T) {
	for name, history := range map[string]func(table *slots.Table, key string, now slots.Micros){
		"another store allows all": func(table *slots.Table, key string, now slots.Micros) {
			table.Count(key, now)
			table.Leave(key, 1, now)
		},
		"takes are lost": func(table *slots.Table, key string, now slots.Micros) {
			table.Lost(table.Prepare(key, true, now), now, now)
		},
		"lost takes may still run": func(table *slots.Table, key string, now slots.Micros) {
			table.Lost(table.Prepare(key, true, now), now+timeout, now)
		},
		"nothing is given back in Redis": func(table *slots.Table, key string, now slots.Micros) {
			table.Replied(table.Prepare(key, true, now), 1, 0, now)
			table.Leave(key, 1, now)
		},
		"sets do not run": func(table *slots.Table, key string, now slots.Micros) {
			table.Replied(table.Prepare(key, true, now), 1, 0, now)
			table.Leave(key, 1, now)
			if op := table.Prepare(key, false, now); op.Set { // else the key is forgotten
				table.NotRun(op, now)
			}
		},
		"sets are lost": func(table *slots.Table, key string, now slots.Micros) {
			table.Count(key, now)
			table.Lost(table.Prepare(key, false, now), now+timeout, now)
			table.Leave(key, 1, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			table, now := slots.New(expiry), second
			for n := range 2 * slots.MaxIdle {
				history(table, fmt.Sprint(n), now)
				if now += 100; n%1000 == 0 {
					for _, key := range table.Due(now, 1) {
						table.Postpone(key, now)
					}
				}
				if all, idle := table.Len(); idle > all || all > slots.MaxIdle+3000 { // those that may still run, and those that came since the last Due
					t.Fatalf("%d keys are remembered after %d, %d of them idle", all, n+1, idle)
				}
			}
			table.Due(now+timeout, 1)
			if all, idle := table.Len(); all > slots.MaxIdle || idle != all {
				t.Errorf("%d keys are remembered, %d idle", all, idle)
			}
		})
	}
}

// Random programs with every accident, and a Table that forgets nearly all idle keys at once. Slots
// can stay taken, but no more requests are in flight than may be. In the end nothing is left.
func TestModelThatForgets(t *testing.T) {
	each(t, func(t *testing.T, seed uint64) {
		m := newModel(seed, 1+int64(seed%4), 2+int(seed/4%2), "a", "b")
		for range 200 {
			for _, i := range m.alive {
				i.table.SetMaxIdle(int(seed % 2))
			}
			m.step()
		}
		m.lossy = 0
		m.pass(second)
		for name, k := range m.keys {
			for len(k.requests) > 0 {
				m.finish(k.requests[0])
			}
			m.probe(name, false) // a clock that was set back is noticed by requests
			m.pass(41 * second)
			if n := m.stored(name).InFlight(); n != 0 {
				m.violated("Redis still counts %d requests of %s", n, name)
			}
		}
		m.pass(41 * second)
		for _, i := range m.alive {
			if all, idle := i.table.Len(); all != 0 || idle != 0 {
				m.violated("%d keys are remembered, %d idle", all, idle)
			}
		}
	})
}
