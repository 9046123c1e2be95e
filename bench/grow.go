package main

import (
	"fmt"
	"time"
)

// growth is a Caddy whose memory fills with keys.
type growth struct {
	setup
	stages []*stage
}

// stage is a number of keys, and what they cost.
type stage struct {
	keys   int
	load   time.Duration   // for how long to measure latency
	perKey int64           // resident bytes
	total  int64           // resident bytes of the process
	waits  []time.Duration // under full load
}

// fillRate is how many keys a second are planned to be filled in.
const fillRate = 50_000

func growths() []*growth {
	all := []*growth{{
		setup:  setup{program: ours, directive: zone("fixed_window 1000000 24h\n")},
		stages: []*stage{{keys: 10_000, load: 8 * time.Second}, {keys: 1_000_000}, {keys: 5_000_000, load: 8 * time.Second}},
	}}
	if *mholtBinary != "" {
		all = append(all, &growth{
			setup:  setup{program: mholt, directive: zone("events 10\nwindow 24h\n")},
			stages: []*stage{{keys: 10_000}, {keys: 1_000_000}},
		})
	}
	for _, g := range all {
		g.complete()
		for _, s := range g.stages {
			if *quick {
				s.keys, s.load = s.keys/5, s.load/8
			}
		}
	}
	return all
}

func (g *growth) planned() (total time.Duration) {
	before := 0
	for _, s := range g.stages {
		total += s.planned(before)
		before = s.keys
	}
	return total
}

func (s *stage) planned(before int) time.Duration {
	return time.Duration(s.keys-before)*time.Second/fillRate + s.load
}

// grow measures the memory that keys take and the latency that they cost.
func (b *bench) grow(g *growth) error {
	caddy, err := startCaddy(b.programs[g.program], b.dir, false, func(addr string) string { return g.caddyfile(addr, nil, "") })
	if err != nil {
		return err
	}
	defer caddy.stop()
	const connections, depth, warming = 64, 16, 1000
	most := g.stages[len(g.stages)-1].keys
	filling, err := dial(caddy.addr, connections, depth, most, g.fields, body{})
	if err != nil {
		return err
	}
	defer filling.close()
	if _, err := filling.fill(warming); err != nil {
		return err
	}
	before, err := resident(caddy.pid)
	if err != nil {
		return err
	}
	filled := 0
	for _, s := range g.stages {
		step(s.planned(filled), "keys, %s with %d", g.program, s.keys)
		filled = s.keys
		t, err := filling.fill(s.keys)
		if err == nil {
			err = g.check(t)
		}
		if err != nil {
			return fmt.Errorf("%d keys: %w", s.keys, err)
		}
		if s.total, err = resident(caddy.pid); err != nil {
			return err
		}
		s.perKey = (s.total - before) / int64(s.keys)
		if s.load == 0 {
			continue
		}
		loading, err := dial(caddy.addr, connections, 1, s.keys, g.fields, body{})
		if err != nil {
			return err
		}
		t, err = loading.load(s.load)
		loading.close()
		if err == nil {
			err = g.check(t)
		}
		if err != nil {
			return fmt.Errorf("%d keys: %w", s.keys, err)
		}
		s.waits = t.waits
	}
	return nil
}
