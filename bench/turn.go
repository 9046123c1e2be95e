package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
)

// oneWay is how long bytes take to a Redis that is far away, and back from it.
const oneWay = 5 * time.Millisecond

// running is a setup under load. Each has its own Redis, so that no keys of others expire in its
// turns.
type running struct {
	*setup
	caddy  *server
	redis  []*server
	relay  *relay.Relay
	client *client
}

// start starts the servers of the setup, and connects to Caddy.
func (r *running) start(b *bench, p *part) (err error) {
	switch r.setup.redis {
	case "near", "far":
		var redis *server
		if redis, err = startRedis(b.dir); err == nil {
			r.redis = []*server{redis}
		}
	case "cluster":
		r.redis, err = startCluster(context.Background(), b.dir, r.nodes)
	}
	if err != nil {
		return err
	}
	r.inRedis = make([]time.Duration, len(r.redis))
	var addrs []string
	for _, server := range r.redis {
		addrs = append(addrs, server.addr)
	}
	if r.setup.redis == "far" {
		if r.relay, err = relay.Start(addrs[0]); err != nil {
			return err
		}
		late := relay.Fault{Delay: oneWay}
		r.relay.Set(late, late)
		addrs[0] = r.relay.Addr
	}
	config := func(addr string) string { return r.caddyfile(addr, addrs, p.timeout) }
	r.caddy, err = startCaddy(b.programs[r.program], b.dir, p.halved, config, "BENCH_REDIS="+strings.Join(addrs, ","))
	if err != nil {
		return err
	}
	r.client, err = dial(r.caddy.addr, p.connections, 1, r.keys, r.fields, r.body)
	return err
}

// stop stops all that start started.
func (r *running) stop() {
	if r.client != nil {
		r.client.close()
	}
	if r.caddy != nil {
		r.caddy.stop()
	}
	if r.relay != nil {
		_ = r.relay.Close()
	}
	for _, server := range r.redis {
		server.stop()
	}
}

// results has the measurements of a setup.
type results struct {
	rates             []float64 // requests a second, of each round
	requests          int
	inCaddy, inClient time.Duration   // processor time for all requests
	inRedis           []time.Duration // of each node
	waits             []time.Duration
	fault             error // how the server answered other than it should
}

// turn loads the server for a while. A warming one is not measured, and the budgets of a setup
// whose requests are denied have been used up after it.
func (r *running) turn(d time.Duration, warming bool) error {
	before, err := r.times()
	if err != nil {
		return err
	}
	t, err := r.client.load(d)
	if err != nil {
		return err
	}
	after, err := r.times()
	if err != nil || warming {
		return err
	}
	if err := r.check(t); err != nil {
		return err
	}
	r.rates = append(r.rates, t.rate)
	r.requests += len(t.waits)
	r.waits = append(r.waits, t.waits...)
	r.inCaddy += after.caddy - before.caddy
	r.inClient += after.client - before.client
	for n := range after.redis {
		r.inRedis[n] += after.redis[n] - before.redis[n]
	}
	return nil
}

// times is the processor time that processes have taken.
type times struct {
	caddy, client time.Duration
	redis         []time.Duration // of each node
}

func (r *running) times() (t times, err error) {
	if t.caddy, err = cpuTime(r.caddy); err != nil {
		return t, err
	}
	for _, node := range r.redis {
		taken, err := cpuTime(node)
		if err != nil {
			return t, err
		}
		t.redis = append(t.redis, taken)
	}
	var usage syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	t.client = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return t, err
}

const fewest = 100 // responses of a turn

// check returns an error if the server did not answer as it should.
func (s *setup) check(t turn) error {
	if t.statuses[s.status] < len(t.waits) {
		var counts []string
		for _, status := range slices.Sorted(maps.Keys(t.statuses)) {
			counts = append(counts, fmt.Sprintf("%d to %d", status, t.statuses[status]))
		}
		return fmt.Errorf("status %s of %d requests, want %d to all", strings.Join(counts, ", "), len(t.waits), s.status)
	}
	if t.lacking > 0 {
		return fmt.Errorf("%d of %d responses lack one of the fields %q", t.lacking, len(t.waits), s.fields)
	}
	if len(t.waits) < fewest {
		return fmt.Errorf("only %d responses, want at least %d", len(t.waits), fewest)
	}
	return nil
}
