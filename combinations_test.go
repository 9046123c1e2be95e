package ratelimit

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var combinationSeed = flag.Uint64("combination-seed", 0, "which configuration TestCombinations draws alone (default: many)")

// comboHandlers are the handlers of a configuration in force.
type comboHandlers struct {
	outer, inner *Handler
	end          context.CancelFunc
}

func (c comboConfig) provision(t *testing.T) (*comboHandlers, error) {
	t.Helper()
	provisioned, err := caddy.ProvisionContext(&caddy.Config{
		Admin:   &caddy.AdminConfig{Disabled: true},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{WriterRaw: json.RawMessage(`{"output":"discard"}`)}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := caddy.NewContext(provisioned)
	h := &comboHandlers{end: end}
	if _, err = ctx.LoadModuleByID("rate_limit", json.RawMessage(c.app)); err == nil {
		var m any
		if m, err = ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(c.outer)); err == nil {
			h.outer = m.(*Handler)
			if m, err = ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(c.inner)); err == nil {
				h.inner = m.(*Handler)
			}
		}
	}
	if err != nil {
		end()
	}
	return h, err
}

// comboRun is a run of random requests.
type comboRun struct {
	*comboConfig
	t        *testing.T
	seed     uint64
	handlers atomic.Pointer[comboHandlers]
	inRedis  bool
	outages  bool

	mu     sync.Mutex
	flying map[string]int64 // by zone and key
}

func drawComboRequest(random *rand.Rand, zones int) *comboRequest {
	r := &comboRequest{
		user: []string{"a", "a", "a", "b", "vip"}[random.IntN(5)], cost: random.Int64N(3), noFactor: random.IntN(6) == 0,
		runs: time.Duration(random.Int64N(int64(3 * time.Millisecond))), status: []int{200, 200, 200, 401, 500, 0, -1}[random.IntN(7)],
	}
	for range zones {
		r.in, r.free = append(r.in, random.IntN(4) > 0), append(r.free, random.IntN(6) == 0)
	}
	if random.IntN(4) == 0 {
		r.leaves = time.Duration(1 + random.Int64N(int64(50*time.Millisecond)))
	}
	return r
}

// fly notes that a request is in flight in the zones with slots that it belongs to, or no longer is.
func (c *comboRun) fly(r *comboRequest, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.zones {
		z := &c.zones[i]
		if z.slots == 0 || !z.belongs(r, i) || z.settings["shadow"] != nil || z.settings["enforce"] != nil || c.outages {
			continue
		}
		key := z.name + " " + r.user
		if c.flying[key] += n; c.flying[key] > z.slots {
			c.t.Errorf("seed %d: %d requests of %s are in flight, want at most %d", c.seed, c.flying[key], key, z.slots)
		}
	}
}

func (c *comboRun) serve(r *comboRequest) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	if r.leaves > 0 {
		defer time.AfterFunc(r.leaves, end).Stop()
	}
	request := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(`{"user":"`+r.user+`"}`))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User", r.user)
	request.Header.Set("Cost", strconv.FormatInt(r.cost, 10))
	if request.Header.Set("Factor", "1"); r.noFactor {
		request.Header.Set("Factor", "0")
	}
	for i := range r.in {
		if r.in[i] {
			request.Header.Set(fmt.Sprint("In-", i), "1")
		}
		if r.free[i] {
			request.Header.Set(fmt.Sprint("Free-", i), "1")
		}
	}
	w, repl, h := httptest.NewRecorder(), caddy.NewReplacer(), c.handlers.Load()
	last := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		r.passed = true
		c.fly(r, 1)
		time.Sleep(r.runs)
		c.fly(r, -1)
		switch r.status {
		case 0:
			panic(http.ErrAbortHandler)
		case -1:
			return errors.New("an error")
		}
		w.WriteHeader(r.status)
		_, _ = w.Write([]byte("ok"))
		return nil
	})
	middle := caddyhttp.HandlerFunc(func(w http.ResponseWriter, request *http.Request) error {
		r.passedOuter = true
		return h.inner.ServeHTTP(w, request, last)
	})
	func() {
		defer func() { _ = recover() }()
		_ = h.outer.ServeHTTP(w, caddyhttp.PrepareRequest(request, repl, w, nil), middle)
	}()
	c.checkStates(r, repl)
}

// checkStates checks the decisions about a request.
func (c *comboRun) checkStates(r *comboRequest, repl *caddy.Replacer) {
	v, _ := repl.Get(placeholderPrefix)
	outermost := v.(*requestState)
	for state := outermost.innermost; state != nil; state = state.outer {
		denied := false
		for i := range state.entries {
			e := &state.entries[i]
			number := slices.IndexFunc(c.zones, func(z comboZone) bool { return z.name == e.zone.name })
			if number < 0 {
				continue
			}
			wrong := func(what string) { c.t.Errorf("seed %d: %s: %s: %+v", c.seed, e.zone.name, what, e.Outcome) }
			if r.free[number] || !c.zones[number].belongs(r, number) && !e.isBanLookup {
				wrong("a request is decided that is exempt, or doesn't belong to the zone")
			}
			if !state.decided {
				continue
			}
			denied = denied || e.denies() && !e.Shadow
			if (e.limitSet.unlimited || e.isBanLookup) && len(e.Outcome.Decisions) > 0 {
				wrong("limits decide an unlimited key, or a look-up")
			}
			for _, d := range e.Outcome.Decisions {
				if d.Charged > 0 && !state.allowed && e.zone.mode.String() != "uniform" {
					wrong("a denied request is charged")
				}
			}
			if e.Outcome.Slots.Taken && !state.allowed {
				wrong("a denied request has a slot")
			}
		}
		if state.decided && denied == state.allowed {
			c.t.Errorf("seed %d: allowed %v, a zone denies: %v", c.seed, state.allowed, denied)
		}
	}
}

// play sends requests, and loads the configuration again meanwhile.
func (c *comboRun) play(random *rand.Rand, fault func()) []*comboRequest {
	var all []*comboRequest
	for range 120 {
		all = append(all, drawComboRequest(random, len(c.zones)))
	}
	var clients sync.WaitGroup
	const connections = 24
	for i := range connections {
		clients.Go(func() {
			for n := i; n < len(all); n += connections {
				c.serve(all[n])
			}
		})
	}
	if fault != nil {
		clients.Go(fault)
	}
	overrides := []string{"", `{"unlimited":true}`, `{"limits":[{"algorithm":"fixed_window","events":7,"window":"1000h"}]}`}
	clients.Go(func() {
		for step := range 6 {
			time.Sleep(time.Millisecond)
			for i := range c.zones {
				if z := &c.zones[i]; z.settings["runtime_overrides"] != nil {
					h := c.handlers.Load()
					_ = h.outer.store.Change(context.Background(), store.Change{Zone: z.name, Key: "a", Override: &overrides[(step+i)%3]})
				}
			}
			if step == 3 {
				again, err := c.provision(c.t)
				if err != nil {
					c.t.Error(err)
					return
				}
				c.handlers.Swap(again).end()
			}
		}
	})
	clients.Wait()
	return all
}

// checkEnd checks that nothing is left of the requests but their charges.
func (c *comboRun) checkEnd(all []*comboRequest) {
	t, h := c.t, c.handlers.Load()
	l := processSlotLines
	l.mu.Lock()
	if l.waiting.Load() != 0 || len(l.byKey) != 0 {
		t.Errorf("seed %d: %d requests wait in %d lines", c.seed, l.waiting.Load(), len(l.byKey))
	}
	l.mu.Unlock()
	eventually(t, "no memory of bodies is taken", func() bool { return bodyMemory.Used() == 0 })
	counts := requestCounts()
	for number := range c.zones {
		c.checkCounts(number, all, counts[c.zones[number].name])
		handler := h.inner
		if c.zones[number].outer {
			handler = h.outer
		}
		at := slices.IndexFunc(handler.zones, func(z *zone) bool { return z.name == c.zones[number].name })
		z := handler.zones[at]
		if z.delay != nil {
			z.delay.queue().wantEmpty(t)
		}
		for _, user := range []string{"a", "b", "vip"} {
			c.checkBudget(handler.store, z, number, user, all)
		}
	}
}

// checkCounts checks the outcomes that a zone has counted.
func (c *comboRun) checkCounts(number int, all []*comboRequest, counts map[string]int64) {
	z := &c.zones[number]
	least, most, exempt := int64(0), int64(0), int64(0)
	for _, r := range all {
		if !z.outer && !r.passedOuter {
			continue
		}
		counted := z.belongs(r, number) || r.in[number] && r.free[number]
		if counted && (r.passed || z.outer && r.passedOuter) {
			least++
		}
		if ban, _ := z.settings["ban"].(map[string]any); counted || ban["scope"] == "handler" {
			most++
		}
		if r.in[number] && r.free[number] {
			exempt++
		}
	}
	sum := int64(0)
	for n := range maps.Values(counts) {
		sum += n
	}
	if sum < least || sum > most || counts["exempt"] != exempt {
		c.t.Errorf("seed %d: zone %s has counted %v, want %d to %d requests, and %d exempt\n%s", c.seed, z.name, counts, least, most, exempt, c.describe())
	}
}

// checkBudget checks what a key was charged, and that it has all its slots.
func (c *comboRun) checkBudget(s store.Store, z *zone, number int, user string, all []*comboRequest) {
	b, drawn := z.defaultSet.budgets[0], &c.zones[number]
	look := []store.Request{{Zone: z.name, Key: user, Limits: b.limits, Slots: b.slots, Peek: true, Shadow: true}}
	eventually(c.t, "the store decides", func() bool {
		_, err := s.Take(context.Background(), look)
		return err == nil && !look[0].Outcome.Local
	})
	o := look[0].Outcome
	if o.Slots.InFlight != 0 {
		c.t.Errorf("seed %d: zone %s: %d slots of key %s are taken\n%s", c.seed, z.name, o.Slots.InFlight, user, c.describe())
	}
	if drawn.limit == 0 || c.outages {
		return
	}
	least, most := int64(0), int64(0)
	for _, r := range all {
		if r.user == user {
			l, m := drawn.charge(r, number, c.inRedis)
			least, most = least+l, most+m
		}
	}
	if drawn.settings["mode"] == "uniform" { // also charges what is above the limit
		least = min(least, drawn.limit)
	}
	if charged := drawn.limit - o.Decisions[0].Remaining; charged < least || charged > most {
		c.t.Errorf("seed %d: zone %s: key %s is charged %d, want %d to %d\n%s", c.seed, z.name, user, charged, least, most, c.describe())
	}
}

func (c *comboRun) describe() string { return c.app + "\n" + c.outer + "\n" + c.inner }

// Options in any combination, with both stores. No more requests of a key are in flight than it has
// slots, and no more is charged or passes than the rules of the options say. Exempt requests change
// nothing. In the end all slots and places are given back, nobody waits, and every request that passed
// is counted once.
func TestCombinations(t *testing.T) {
	// run runs a configuration, if it is valid.
	run := func(t *testing.T, seed uint64, options string, fault func()) (valid bool) {
		random := rand.New(rand.NewPCG(seed, 18))
		config := drawCombo(random, fmt.Sprintf("%s-%d-", strings.ReplaceAll(t.Name(), "/", "_"), seed), options)
		h, err := config.provision(t)
		if err != nil {
			return false
		}
		c := &comboRun{comboConfig: &config, t: t, seed: seed, inRedis: h.outer.backend != nil, outages: fault != nil, flying: make(map[string]int64)}
		c.handlers.Store(h)
		all := c.play(random, fault)
		c.checkEnd(all)
		c.handlers.Load().end()
		return true
	}
	each := func(t *testing.T, seeds uint64, run func(seed uint64) (valid bool)) {
		valid := uint64(0)
		for seed := range max(seeds, *combinationSeed+1) {
			if *combinationSeed != 0 && seed != *combinationSeed {
				continue
			}
			if run(seed) {
				valid++
			}
			if t.Failed() {
				return
			}
		}
		if valid < seeds/2 && *combinationSeed == 0 {
			t.Errorf("%d of %d configurations are valid", valid, seeds)
		}
	}
	t.Run("memory", func(t *testing.T) {
		seeds := uint64(300)
		if testing.Short() {
			seeds = 100
		}
		each(t, seeds, func(seed uint64) (valid bool) {
			synctest.Test(t, func(t *testing.T) { valid = run(t, seed, "", nil) }) // fails if a goroutine is left
			return valid
		})
	})
	t.Run("redis", func(t *testing.T) {
		server, before := redistest.Start(t), runtime.NumGoroutine()
		each(t, 40, func(seed uint64) bool {
			return run(t, seed, fmt.Sprintf(`,"redis":{"address":[%q],"timeout":"30s"}`, server.Addr), nil)
		})
		eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	})
	t.Run("outages", func(t *testing.T) {
		long(t)
		server, before := redistest.Start(t), runtime.NumGoroutine()
		each(t, 30, func(seed uint64) bool {
			mode := []string{"local", "allow", "deny"}[seed%3]
			options := fmt.Sprintf(`,"redis":{"address":[%q],"timeout":"300ms"},"on_store_error":%q`, server.Addr, mode)
			return run(t, seed, options, func() {
				server.Kill(t)
				time.Sleep(10 * time.Millisecond)
				server.Restart(t)
			})
		})
		eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	})
}
