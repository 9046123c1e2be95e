package ratelimit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// waitForWaiters waits until so many requests wait for slots.
func (c *caddyProcess) waitForWaiters(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " requests wait for slots"), func() bool {
		r, err := c.do("GET", "http://"+c.admin+"/debug/pprof/goroutine?debug=2", "")
		return err == nil && strings.Count(r.body, "(*slotLines).awaitTurn(") == n
	})
}

// resetAfter asks the admin endpoint when the first limit of a key is full again, in seconds.
func (c *caddyProcess) resetAfter(t *testing.T, zone, key string) float64 {
	t.Helper()
	r, err := c.do("GET", "http://"+c.admin+"/rate_limit/zones/"+zone+"/keys/"+url.PathEscape(key), "")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Budgets []struct {
			Limits []struct {
				ResetAfter float64 `json:"reset_after_seconds"`
			}
		}
	}
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil || len(answer.Budgets) == 0 {
		t.Fatalf("%s: %v", r.body, err)
	}
	return answer.Budgets[0].Limits[0].ResetAfter
}

// A request waits for a slot, and passes when one is given back. Other keys don't wait. A client that
// leaves is charged nothing. A request that waits too long is denied as one that doesn't wait.
func TestWaitForSlot(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := startCaddy(t, gated(g, `zone api {
			key {query.key}
			concurrency 2
			fixed_window 100 1000h
			delay 1h
		}
		`+use))
		first, second := c.hold(t.Context(), "/hold?key=k"), c.hold(t.Context(), "/hold?key=k")
		g.wait(t, 2)
		ctx, leave := context.WithCancel(t.Context())
		left := c.hold(ctx, "/hold?key=k")
		c.waitForWaiters(t, 1)
		third := c.hold(t.Context(), "/hold?key=k")
		c.waitForWaiters(t, 2)
		c.get(t, "/?key=other").want(t, 200)
		leave()
		<-left
		c.waitForWaiters(t, 1)
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 0`)
		g.pass <- struct{}{}
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="delayed",zone="api"} 1`)
		g.wait(t, 2)
		for range 2 {
			g.pass <- struct{}{}
		}
		for _, done := range []<-chan int{first, second, third} {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		if n := c.remaining(t, "api", "k"); n != 97 {
			t.Errorf("%d events remain, want 97: three requests passed", n)
		}
	})
}

// Time is up for a request that waits.
func TestWaitForSlotTooLong(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := startCaddy(t, gated(g, "zone api {\n concurrency 1\n delay 30ms\n}\n"+use))
		held := c.hold(t.Context(), "/hold")
		g.wait(t, 1)
		for range 3 {
			c.get(t, "/").want(t, 429, "Retry-After", "1", "RateLimit-Policy", `"api";q=1;qu="concurrent-requests"`, "RateLimit", `"api";r=0;t=1`)
		}
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="denied",zone="api"} 3`)
		c.waitForLog(t, `"reason":"concurrency","limit":"concurrency 1"`)
		c.waitForWaiters(t, 0)
		g.pass <- struct{}{}
		<-held
		waitForSlots(t, c, 1)
	})
}

// A slot that one Caddy gives back is found by a request that waits in another Caddy.
func TestWaitForSlotOfAnotherInstance(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	config := gated(g, "zone api {\n concurrency 1\n delay 1h\n}\nredis "+redistest.Start(t).Addr+" {\n timeout 30s\n}\n")
	one, other := startCaddy(t, config), startCaddy(t, config)
	for range 3 {
		held := one.hold(t.Context(), "/hold")
		g.wait(t, 1)
		waiting := other.hold(t.Context(), "/hold")
		other.waitForWaiters(t, 1)
		g.pass <- struct{}{}
		<-held
		g.wait(t, 1)
		g.pass <- struct{}{}
		if status := <-waiting; status != 200 {
			t.Errorf("status %d", status)
		}
	}
}

// Requests of two Caddys flood one key. No more of them are in flight than may be, and all pass.
func TestWaitForSlotsUnderFlood(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 3\n delay 10m\n}\n"+use)
		caddys := []*caddyProcess{startCaddy(t, config)}
		if use != "" {
			caddys = append(caddys, startCaddy(t, config))
		}
		statuses := flood(t, 200, 32, "/short", caddys...)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.most != 3 || statuses[200] != 200 {
			t.Errorf("%d were in flight at once, and the answers were %v", g.most, statuses)
		}
	})
}

// A request goes on waiting after a reload, in one line with those of the new configuration.
func TestWaitForSlotDuringReload(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := gated(g, "zone api {\n concurrency 1\n delay 1h\n}\n"+use)
		c := startCaddy(t, config)
		held := c.hold(t.Context(), "/hold")
		g.wait(t, 1)
		waiting := c.hold(t.Context(), "/hold?old")
		c.waitForWaiters(t, 1)
		c.reload(t, config+"# again\n")
		later := c.hold(t.Context(), "/hold?new")
		c.waitForWaiters(t, 2)
		g.pass <- struct{}{}
		<-held
		g.wait(t, 1)
		c.waitForWaiters(t, 1)
		g.pass <- struct{}{}
		if status := <-waiting; status != 200 {
			t.Errorf("the request of the old configuration: status %d", status)
		}
		g.wait(t, 1)
		g.pass <- struct{}{}
		if status := <-later; status != 200 {
			t.Errorf("the request of the new configuration: status %d", status)
		}
	})
}

// A reload changes the number of slots while requests wait. They get the slots of the new configuration,
// also in one line with its requests: all at once if there are enough, and none while there are too few.
func TestWaitForSlotDuringReloadOfConcurrency(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		config := func(slots int) string {
			return gated(g, fmt.Sprintf("zone api {\n concurrency %d\n delay 1h\n}\n%s", slots, use))
		}
		c := startCaddy(t, config(1))
		var held []<-chan int
		hold := func() { held = append(held, c.hold(t.Context(), "/hold")) }
		hold()
		g.wait(t, 1)
		for n := range 3 {
			hold()
			c.waitForWaiters(t, n+1)
		}
		c.reload(t, config(4))
		g.wait(t, 4)
		hold()
		c.waitForWaiters(t, 1)
		c.reload(t, config(2))
		hold()
		c.waitForWaiters(t, 2)
		for range 2 { // two are left, so no slot is free
			g.pass <- struct{}{}
		}
		g.wait(t, 2)
		time.Sleep(2 * maxSlotPause)
		g.wait(t, 2)
		c.waitForWaiters(t, 2)
		for range 4 {
			g.pass <- struct{}{}
		}
		for _, done := range held {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.most != 4 {
			t.Errorf("%d requests were in flight at once, want 4", g.most)
		}
	})
}

// Redis fails while requests wait: on_store_error decides.
func TestWaitForSlotInOutage(t *testing.T) {
	long(t)
	t.Parallel()
	for _, test := range []struct {
		mode string
		want int
	}{{"local", 200}, {"allow", 200}, {"deny", 503}} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			g := startGate(t)
			server := redistest.Start(t)
			c := startCaddy(t, gated(g, "zone api {\n concurrency 1\n delay 1h\n}\non_store_error "+test.mode+"\nredis "+server.Addr+" {\n timeout 5s\n}\n"))
			held := c.hold(t.Context(), "/hold")
			g.wait(t, 1)
			var waiting []<-chan int
			for i := range 2 {
				waiting = append(waiting, c.hold(t.Context(), "/"))
				c.waitForWaiters(t, i+1)
			}
			server.Kill(t)
			if test.mode == "local" { // which counts the request in flight
				c.waitForLog(t, "Redis fails")
				c.waitForWaiters(t, 2)
				g.pass <- struct{}{}
				<-held
			}
			for _, done := range waiting {
				if status := <-done; status != test.want {
					t.Errorf("status %d, want %d", status, test.want)
				}
			}
			if test.mode != "local" {
				g.pass <- struct{}{}
				<-held
			}
		})
	}
}

// A key is banned while its request waits: it is denied when it asks next.
func TestWaitForSlotAndBan(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		g := startGate(t)
		c := startCaddy(t, gated(g, "zone api {\n key static\n concurrency 1\n fixed_window 100 1h\n ban 1h\n delay 1h\n}\n"+use))
		held := c.hold(t.Context(), "/hold")
		g.wait(t, 1)
		waiting := c.hold(t.Context(), "/")
		c.waitForWaiters(t, 1)
		c.operate(t, 204, "PUT", keyPath("static")+"/ban", "")
		if status := <-waiting; status != 429 {
			t.Errorf("status %d", status)
		}
		waitForMetric(t, c, `caddy_rate_limit_requests_total{outcome="banned",zone="api"} 1`)
		g.pass <- struct{}{}
		<-held
	})
}

// Requests of a shadow don't wait, and don't make others wait. A zone that charges denials is charged
// once, so its requests don't wait. A shadow counts a request once.
func TestSlotWaitAndOtherZones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 3_600_000_000, Burst: 10})
		if err != nil {
			t.Fatal(err)
		}
		s := newSlotTest(inMemory(), time.Second)
		s.addZone(t, "slots", time.Hour, 100)
		s.addZone(t, "other", time.Hour, 100)
		s.zones["other"].delay = nil
		limits := []store.Limit{store.NewLimit("other", "", limit)}
		ban := &store.Ban{ID: store.BanID("other", ""), Ban: &algorithms.Ban{After: 5, Window: 1 << 40, Duration: 1 << 40, Max: 1 << 40}}
		slots := slotAsk{zone: "slots", key: "k", slots: 1}
		first, _ := s.decide(t.Context(), slots)

		shadow := slots
		shadow.shadow = true
		began := time.Now()
		state, err := s.decide(t.Context(), shadow)
		if err != nil || !state.allowed || time.Since(began) > 0 {
			t.Errorf("a shadow: allowed %v after %v; %v", state.allowed, time.Since(began), err)
		}
		state.finish()

		uniform := slotAsk{zone: "other", key: "k", limits: limits, mode: algorithms.Uniform}
		state, err = s.decide(t.Context(), slots, uniform)
		if err != nil || state.allowed || time.Since(began) > 0 || state.requests[1].Outcome.Decisions[0].Remaining != 9 {
			t.Errorf("with a zone that charges denials: allowed %v after %v; %v, %+v", state.allowed, time.Since(began), err, state.requests[1].Outcome)
		}
		state.finish()

		time.AfterFunc(time.Minute, first.finish)
		counted := slotAsk{zone: "other", key: "k", limits: limits, ban: ban, shadow: true, cost: 11}
		state, err = s.decide(t.Context(), slots, counted)
		if took := time.Since(began); err != nil || !state.allowed || took != time.Minute {
			t.Errorf("with a shadow that denies: allowed %v after %v; %v", state.allowed, took, err)
		}
		state.finish()
		for n := range 4 { // with the one above, five denials
			counted.shadow = false
			state, _ = s.decide(t.Context(), counted)
			if began := state.requests[0].Outcome.Ban.Began; began != (n == 3) {
				t.Errorf("after %d denials: a ban began: %v", n+2, began)
			}
			state.finish()
		}
		s.wantIdle(t)
	})
}

// A zone of one handler denies, and a zone of the same name in another handler is a shadow. A request of the
// shadow passes at once, although others wait for the slots of its key.
func TestShadowPassesOccupiedLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlotTest(inMemory(), time.Hour)
		s.addZone(t, "slots", time.Hour, 100)
		ask := slotAsk{zone: "slots", key: "k", slots: 1}
		first, _ := s.decide(t.Context(), ask)
		var waiting *requestState
		go func() { waiting, _ = s.decide(t.Context(), ask) }()
		synctest.Wait()
		s.waitForWaiters(t, 1)
		began, shadow := time.Now(), ask
		shadow.shadow = true
		state, err := s.decide(t.Context(), shadow)
		if err != nil || !state.allowed || time.Since(began) > 0 || state.requests[0].Outcome.Verdict != store.Denied {
			t.Errorf("allowed %v after %v, %+v; %v", state.allowed, time.Since(began), state.requests[0].Outcome, err)
		}
		state.finish()
		first.finish()
		synctest.Wait()
		if waiting == nil || !waiting.allowed {
			t.Fatal("the request that waited was denied")
		}
		waiting.finish()
		s.wantIdle(t)
	})
}

// A zone that doesn't wait for slots, or whose request finds a slot, allocates nothing for lines.
func TestSlotWaitAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations can't be counted")
	}
	const zone = `"c":{"key":"{http.request.header.X-Key}","limits":[{"algorithm":"token_bucket","events":1000000,"window":"1s"}],"concurrency":10`
	without, with := benchRequest(loadHandler(t, zone+`}`)), benchRequest(loadHandler(t, zone+`,"delay":{"max":"10s"}}`))
	for range 2000 {
		without()
		with()
	}
	before, after := testing.AllocsPerRun(1000, without), testing.AllocsPerRun(1000, with)
	if after > before {
		t.Errorf("%v allocations with delay, %v without", after, before)
	}
}

// A shadow charges a request that waits for a slot of another zone once, in any mode. A ban of the shadow
// that stands keeps it from charging, before and after the wait.
func TestShadowsChargeWaitingRequestsOnce(t *testing.T) {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 10, Window: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	ban := &store.Ban{ID: store.BanID("shadow", ""), Ban: &algorithms.Ban{After: 1, Window: 1 << 40, Duration: 1 << 40, Max: 1 << 40}}
	for _, test := range []struct {
		mode      algorithms.Mode
		ban       *store.Ban
		banned    bool
		allowed   bool
		remaining int64 // after the wait
	}{
		{mode: algorithms.Binary, remaining: 7},
		{mode: algorithms.Uniform, remaining: 7},
		{mode: algorithms.Nary, remaining: 7},
		{mode: algorithms.Force, remaining: 7},
		{mode: algorithms.Uniform, ban: ban, remaining: 7},
		{mode: algorithms.Binary, ban: ban, banned: true, remaining: 10},
		{mode: algorithms.Uniform, ban: ban, banned: true, remaining: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			budgets := inMemory()
			s := newSlotTest(budgets, time.Hour)
			s.addZone(t, "slots", time.Hour, 100)
			s.addZone(t, "shadow", time.Hour, 100)
			s.zones["shadow"].delay = nil
			if test.banned {
				if err := budgets.Change(t.Context(), store.Change{Zone: "shadow", Key: "k", Ban: []*store.Ban{ban}, BanFor: 1 << 40}); err != nil {
					t.Fatal(err)
				}
			}
			slots := slotAsk{zone: "slots", key: "k", slots: 1}
			shadow := slotAsk{zone: "shadow", key: "k", limits: []store.Limit{store.NewLimit("shadow", "", limit)}, mode: test.mode, ban: test.ban, shadow: true, cost: 3}
			first, _ := s.decide(t.Context(), slots)
			time.AfterFunc(time.Minute, first.finish)
			state, err := s.decide(t.Context(), slots, shadow)
			if err != nil || !state.allowed {
				t.Fatalf("denied: %v", err)
			}
			state.finish()
			look := []store.Request{{Zone: "shadow", Key: "k", Limits: shadow.limits}}
			if _, err := budgets.Take(t.Context(), look); err != nil || look[0].Outcome.Decisions[0].Remaining != test.remaining {
				t.Errorf("mode %v, banned %v: %d events remain, want %d; %v", test.mode, test.banned, look[0].Outcome.Decisions[0].Remaining, test.remaining, err)
			}
			if (state.requests[1].Outcome.Verdict == store.Banned) != test.banned {
				t.Errorf("mode %v, banned %v: %+v", test.mode, test.banned, state.requests[1].Outcome)
			}
			s.wantIdle(t)
		})
	}
}
