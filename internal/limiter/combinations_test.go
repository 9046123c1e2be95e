package limiter_test

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

	ratelimit "github.com/caddy-rate-limit/caddy-rate-limit"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var combinationSeed = flag.Uint64("combination-seed", 0, "which configuration TestCombinations draws alone (default: many)")

// combinationRuns is the number of configurations that TestCombinations has drawn.
var combinationRuns atomic.Int64

// comboHandlers are the handlers of a configuration in force.
type comboHandlers struct {
	outer, inner *ratelimit.Handler
	end          context.CancelFunc
}

func provisionCombo(t *testing.T, c caddytest.ComboConfig) (*comboHandlers, error) {
	t.Helper()
	provisioned, err := caddy.ProvisionContext(&caddy.Config{
		Admin:   &caddy.AdminConfig{Disabled: true},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{WriterRaw: json.RawMessage(`{"output":"discard"}`)}}}},
	})
	errtest.None(t, err)
	ctx, end := caddy.NewContext(provisioned)
	h := &comboHandlers{end: end}
	if _, err = ctx.LoadModuleByID("rate_limit", json.RawMessage(c.App)); err == nil {
		var m any
		if m, err = ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(c.Outer)); err == nil {
			h.outer = m.(*ratelimit.Handler)
			if m, err = ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(c.Inner)); err == nil {
				h.inner = m.(*ratelimit.Handler)
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
	*caddytest.ComboConfig
	t        *testing.T
	seed     uint64
	handlers atomic.Pointer[comboHandlers]
	inRedis  bool
	outages  bool

	mu     sync.Mutex
	flying map[string]int64 // by zone and key
}

// fly notes that a request is in flight in the zones with slots that it belongs to, or no longer is.
func (c *comboRun) fly(r *caddytest.ComboRequest, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.Zones {
		z := &c.Zones[i]
		if z.Slots == 0 || !z.Belongs(r, i) || z.Settings["shadow"] != nil || z.Settings["enforce"] != nil || c.outages {
			continue
		}
		key := z.Name + " " + r.User
		if c.flying[key] += n; c.flying[key] > z.Slots {
			c.t.Errorf("seed %d: %d requests of %s are in flight, want at most %d", c.seed, c.flying[key], key, z.Slots)
		}
	}
}

func (c *comboRun) serve(r *caddytest.ComboRequest) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	if r.Leaves > 0 {
		defer time.AfterFunc(r.Leaves, end).Stop()
	}
	request := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(`{"user":"`+r.User+`"}`))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User", r.User)
	request.Header.Set("Cost", strconv.FormatInt(r.Cost, 10))
	if request.Header.Set("Factor", "1"); r.NoFactor {
		request.Header.Set("Factor", "0")
	}
	for i := range r.In {
		if r.In[i] {
			request.Header.Set(fmt.Sprint("In-", i), "1")
		}
		if r.Free[i] {
			request.Header.Set(fmt.Sprint("Free-", i), "1")
		}
	}
	w, repl, h := httptest.NewRecorder(), caddy.NewReplacer(), c.handlers.Load()
	last := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		r.Passed = true
		c.fly(r, 1)
		time.Sleep(r.Runs) // so that requests overlap, also with a Redis
		c.fly(r, -1)
		switch r.Status {
		case 0:
			panic(http.ErrAbortHandler)
		case -1:
			return errors.New("an error")
		}
		w.Header().Set("X-Cost", strconv.FormatInt(r.TrueCost(), 10))
		w.WriteHeader(r.Status)
		_, _ = w.Write([]byte("ok"))
		return nil
	})
	middle := caddyhttp.HandlerFunc(func(w http.ResponseWriter, request *http.Request) error {
		r.PassedOuter = true
		return h.inner.ServeHTTP(w, request, last)
	})
	func() {
		defer func() { _ = recover() }()
		_ = h.outer.ServeHTTP(w, caddyhttp.PrepareRequest(request, repl, w, nil), middle)
	}()
	c.checkStates(r, repl)
}

// checkStates checks the decisions on a request.
func (c *comboRun) checkStates(r *caddytest.ComboRequest, repl *caddy.Replacer) {
	v, _ := repl.Get(limiter.PlaceholderPrefix)
	for state := range limiter.States(v.(*limiter.State)) {
		denied := false
		for i := range state.Entries {
			e := &state.Entries[i]
			number := slices.IndexFunc(c.Zones, func(z caddytest.ComboZone) bool { return z.Name == e.Zone.Name })
			if number < 0 {
				continue
			}
			wrong := func(what string) { c.t.Errorf("seed %d: %s: %s: %+v", c.seed, e.Zone.Name, what, e.Outcome) }
			if r.Free[number] || !c.Zones[number].Belongs(r, number) && !e.IsBanLookup {
				wrong("a request is decided that is exempt, or doesn't belong to the zone")
			}
			if !state.Decided {
				continue
			}
			denied = denied || e.Denies() && !e.Shadow
			if (e.LimitSet.Unlimited || e.IsBanLookup) && len(e.Outcome.Decisions) > 0 {
				wrong("limits decide an unlimited key, or a look-up")
			}
			for _, d := range e.Outcome.Decisions {
				if d.Charged > 0 && !state.Allowed && e.Zone.Mode.String() != "uniform" {
					wrong("a denied request is charged")
				}
			}
			if e.Outcome.Slots.Taken && !state.Allowed {
				wrong("a denied request has a slot")
			}
		}
		if state.Decided && denied == state.Allowed {
			c.t.Errorf("seed %d: allowed %v, a zone denies: %v", c.seed, state.Allowed, denied)
		}
	}
}

// play sends requests, and loads the configuration again in between.
func (c *comboRun) play(random *rand.Rand, fault func()) []*caddytest.ComboRequest {
	var all []*caddytest.ComboRequest
	for range 120 {
		all = append(all, caddytest.DrawComboRequest(random, len(c.Zones)))
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
			time.Sleep(time.Millisecond) // a change falls into the requests, and doesn't come before them
			for i := range c.Zones {
				if z := &c.Zones[i]; z.Settings["runtime_overrides"] != nil {
					h := c.handlers.Load()
					_ = h.outer.Limiter().Store.Change(context.Background(), store.Change{Zone: z.Name, Key: "a", Override: &overrides[(step+i)%3]})
				}
			}
			if step == 3 {
				again, err := provisionCombo(c.t, *c.ComboConfig)
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
func (c *comboRun) checkEnd(all []*caddytest.ComboRequest) {
	t, h := c.t, c.handlers.Load()
	if requests, lines := limiter.ProcessSlotLines.Waiting(); requests != 0 || lines != 0 {
		t.Errorf("%d requests wait in %d lines", requests, lines)
	}
	caddytest.Eventually(t, "no memory of bodies is taken", func() bool { return limiter.ProcessBodyMemory.Bodies.Used() == 0 })
	counts := telemetry.RequestCounts()
	for number := range c.Zones {
		c.checkCounts(number, all, counts[c.Zones[number].Name].ByOutcome())
		handler := h.inner
		if c.Zones[number].Outer {
			handler = h.outer
		}
		zones := handler.Limiter().Zones
		z := zones[slices.IndexFunc(zones, func(z *limiter.Zone) bool { return z.Name == c.Zones[number].Name })]
		if z.Delay != nil {
			if places, keys := z.Delay.Places.Taken(); places != 0 || keys != 0 {
				t.Errorf("%d places are taken, by %d keys, want none", places, keys)
			}
		}
		for _, user := range []string{"a", "b", "vip"} {
			c.checkBudget(handler.Limiter().Store, z, number, user, all)
		}
	}
}

// checkCounts checks the outcomes that a zone has counted.
func (c *comboRun) checkCounts(number int, all []*caddytest.ComboRequest, counts map[string]int64) {
	z := &c.Zones[number]
	least, most, exempt := int64(0), int64(0), int64(0)
	for _, r := range all {
		if !z.Outer && !r.PassedOuter {
			continue
		}
		counted := z.Belongs(r, number) || r.In[number] && r.Free[number]
		if counted && (r.Passed || z.Outer && r.PassedOuter) {
			least++
		}
		if ban, _ := z.Settings["ban"].(map[string]any); counted || ban["scope"] == "handler" {
			most++
		}
		if r.In[number] && r.Free[number] {
			exempt++
		}
	}
	sum := int64(0)
	for n := range maps.Values(counts) {
		sum += n
	}
	if sum < least || sum > most || counts["exempt"] != exempt {
		c.t.Errorf("seed %d: zone %s has counted %v, want %d to %d requests, and %d exempt\n%s", c.seed, z.Name, counts, least, most, exempt, c.describe())
	}
}

// checkBudget checks what a key was charged, and that it has all its slots.
func (c *comboRun) checkBudget(s store.Store, z *limiter.Zone, number int, user string, all []*caddytest.ComboRequest) {
	b, drawn := z.DefaultSet.Budgets[0], &c.Zones[number]
	look := []store.ZoneRequest{{Zone: z.Name, Key: user, Limits: b.Limits, Slots: b.Slots, Peek: true, Shadow: true}}
	caddytest.Eventually(c.t, "the store decides", func() bool {
		_, err := s.Take(context.Background(), look)
		return err == nil && !look[0].Outcome.Local
	})
	o := look[0].Outcome
	if o.Slots.InFlight != 0 {
		c.t.Errorf("seed %d: zone %s: %d slots of key %s are taken\n%s", c.seed, z.Name, o.Slots.InFlight, user, c.describe())
	}
	if drawn.Limit == 0 || c.outages {
		return
	}
	least, most := int64(0), int64(0)
	for _, r := range all {
		if r.User == user {
			l, m := drawn.Charge(r, number, c.inRedis)
			least, most = least+l, most+m
		}
	}
	if drawn.Settings["mode"] == "uniform" { // also charges what is above the limit
		least = min(least, drawn.Limit)
	}
	if charged := drawn.Limit - o.Decisions[0].Remaining; charged < least || charged > most {
		c.t.Errorf("seed %d: zone %s: key %s is charged %d, want %d to %d\n%s", c.seed, z.Name, user, charged, least, most, c.describe())
	}
}

func (c *comboRun) describe() string { return c.App + "\n" + c.Outer + "\n" + c.Inner }

// runCombo runs the configuration of a seed, if it is valid.
func runCombo(t *testing.T, seed uint64, options string, fault func()) (valid bool) {
	random := rand.New(rand.NewPCG(seed, 18))
	// The process counts requests by the names of zones, so these are different in each round of -count.
	prefix := fmt.Sprintf("%s-%d-%d-", strings.ReplaceAll(t.Name(), "/", "_"), combinationRuns.Add(1), seed)
	config := caddytest.DrawCombo(random, prefix, options)
	h, err := provisionCombo(t, config)
	if err != nil {
		return false
	}
	c := &comboRun{ComboConfig: &config, t: t, seed: seed, inRedis: h.outer.Limiter().Backend != nil, outages: fault != nil, flying: make(map[string]int64)}
	c.handlers.Store(h)
	all := c.play(random, fault)
	c.checkEnd(all)
	c.handlers.Load().end()
	return true
}

// eachCombo runs the configurations of some seeds.
func eachCombo(t *testing.T, seeds uint64, run func(seed uint64) (valid bool)) {
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

// Options in any combination, with both stores. No more requests of a key are in flight than it has
// slots, and no more is charged or passes than the rules of the options say. Exempt requests change
// nothing. In the end all slots and places are given back, nobody waits, and every request that passed
// is counted once.
func TestCombinations(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		eachCombo(t, seedtest.Cases(t, uint64(100)), func(seed uint64) (valid bool) {
			synctest.Test(t, func(t *testing.T) { valid = runCombo(t, seed, "", nil) }) // fails if a goroutine is left
			return valid
		})
	})
	t.Run("redis", func(t *testing.T) {
		server, before := redistest.Start(t), runtime.NumGoroutine()
		eachCombo(t, seedtest.Cases(t, uint64(20)), func(seed uint64) bool {
			return runCombo(t, seed, fmt.Sprintf(`,"redis":{"address":[%q],"timeout":"1m","dial_timeout":"1m"}`, server.Addr), nil)
		})
		caddytest.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	})
}
