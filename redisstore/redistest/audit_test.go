package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
	"github.com/caddy-rate-limit/caddy-rate-limit/store/storetest"
)

// open opens a store through a relay.
func open(t *testing.T, a *Audit, timeout time.Duration) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{Address: a.Addr, Timeout: timeout}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// zones are one of every algorithm, option and mode, and some of two limits.
func zones(t *testing.T, window algorithms.Micros) (zones []store.Request, limits []store.Limit) {
	t.Helper()
	quotas := storetest.Variants(5, window)
	initial := int64(2)
	quotas = append(quotas, algorithms.Quota{Algorithm: "smooth", Events: 5, Window: window, Initial: &initial})
	for i, q := range quotas {
		if q.Initial != nil { // as Replay wants it
			q.Events, q.Window, q.Burst = 3_600_000_000/window*q.Events, 3_600_000_000, 5
		}
		algorithm, err := algorithms.Lookup(q.Algorithm)
		if err != nil {
			t.Fatal(err)
		}
		for mode := algorithms.Binary; mode <= algorithms.Force; mode++ {
			if mode != algorithms.Binary && algorithm.BinaryOnly {
				continue
			}
			r := store.Request{Zone: fmt.Sprint("z", i, mode), Mode: mode}
			r.Limits = append(r.Limits, storetest.Limit(t, r.Zone, q))
			if i%2 == 0 {
				r.Limits = append(r.Limits, storetest.Limit(t, r.Zone, algorithms.Quota{Algorithm: "gcra", Events: 10, Window: 2 * window}))
			}
			if l := r.Limits[0]; l.Scalable() {
				l.Limit = l.Scaled(500_000)
				limits = append(limits, l)
				zones = append(zones, store.Request{Zone: r.Zone, Mode: mode, Limits: []store.Limit{l}})
			}
			limits = append(limits, r.Limits...)
			zones = append(zones, r)
		}
	}
	return zones, limits
}

// draw draws what one HTTP request asks of some zones.
func draw(zones []store.Request) (requests []store.Request) {
	for len(requests) == 0 || rand.IntN(3) == 0 && len(requests) < 4 {
		r := zones[rand.IntN(len(zones))]
		if slices.ContainsFunc(requests, func(other store.Request) bool { return other.Zone == r.Zone }) {
			continue
		}
		costs := []int64{1, 1, 1, 2, 5, 6, 0}
		r.Key, r.Cost = fmt.Sprint("key ", rand.IntN(3)), costs[rand.IntN(len(costs))]
		if wait := rand.Int64N(500_000); r.Mode == algorithms.Binary && rand.IntN(2) == 0 &&
			!slices.ContainsFunc(r.Limits, func(l store.Limit) bool { return l.CheckDelay(wait) != nil }) {
			r.MaxWait = wait
		}
		r.Shadow = rand.IntN(5) == 0
		requests = append(requests, r)
	}
	return requests
}

// Three instances, callers that leave and give back, and everything that may happen
// to Redis and the way to it: each decision is that of the functions.
func TestAudit(t *testing.T) {
	server := Start(t)
	a := StartAudit(t, server)
	all, limits := zones(t, 300_000)
	for _, l := range limits[:10] { // a key that holds something else
		server.Client.HSet(t.Context(), "caddy_rl:{key 0}:"+l.ID, "a", 1)
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer func() {
		stop()
		callers.Wait()
	}()
	for range 3 {
		s := open(t, a, 300*time.Millisecond)
		for range 6 {
			callers.Go(func() {
				for ctx.Err() == nil {
					visit(t, s, draw(all))
				}
			})
		}
	}
	const rounds = 2
	faults := slices.Repeat([]func(){
		func() { a.Cut() },
		func() { a.Trouble(0.1) },
		func() { a.Trouble(0) },
		func() { a.Delay(time.Duration(rand.IntN(20)) * time.Millisecond) },
		func() { a.Delay(0) },
		func() { server.Client.ScriptFlush(ctx) },
		func() { a.Flush(t) },
		func() {
			server.Freeze(t)
			time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
			server.Thaw(t)
		},
		func() {
			a.Kill(t)
			server.Restart(t)
		},
	}, rounds)
	rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	for _, fault := range faults {
		time.Sleep(200 * time.Millisecond)
		fault()
	}
	a.Trouble(0)
	a.Delay(0)
	time.Sleep(200 * time.Millisecond)
	stop()
	callers.Wait()
	r := a.Replay(limits...)
	t.Logf("\n%v", r)
	if r.Different > 0 {
		t.Errorf("%d differences, the first ones:\n%s", r.Different, strings.Join(r.Differences, "\n"))
	}
	if r.Granted < 100 || r.Refused < 100 || r.Refunds < 100 || r.Failed == 0 || r.NotRun == 0 {
		t.Error("too little of something happened to learn from")
	}
	if want := 1 + 2*rounds; r.Eras != want {
		t.Errorf("%d eras, want %d", r.Eras, want)
	}
}

// visit asks, sometimes in a hurry, and sometimes gives back.
func visit(t *testing.T, s *redisstore.Store, requests []store.Request) {
	ctx := context.Background()
	if rand.IntN(8) == 0 {
		hurry, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
		defer cancel()
		ctx = hurry
	}
	allowed, err := s.Take(ctx, requests)
	var failed *store.Error
	if err != nil && !errors.As(err, &failed) && ctx.Err() == nil {
		t.Error(err)
	}
	for _, r := range requests { // what Redis was told is what was asked
		for _, d := range r.Outcome.Decisions {
			if err == nil && allowed && r.Mode == algorithms.Binary && !r.Shadow && d.Charged != r.Cost {
				t.Errorf("%d of %d charged", d.Charged, r.Cost)
			}
		}
	}
	if err == nil && allowed && rand.IntN(4) == 0 {
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		_ = refund(s, requests, 1+rand.Int64N(3))
	}
}

// refund gives back n events of each limit of requests.
func refund(s *redisstore.Store, requests []store.Request, n int64) error {
	var corrections []store.Correction
	for i := range requests {
		corrections = append(corrections, store.Correction{Request: &requests[i], Refund: n})
	}
	return s.CorrectAt(context.Background(), 0, corrections)
}

// A wrong number, and anything that should not have happened, is found.
func TestAuditCanFail(t *testing.T) {
	server := Start(t)
	a := StartAudit(t, server)
	s := open(t, a, 30*time.Second)
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 4, Window: 60_000_000})
	other := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: 60_000_000})
	take := func(s *redisstore.Store, cost int64, limits ...store.Limit) []store.Request {
		t.Helper()
		r := []store.Request{{Zone: "z", Key: "k", Cost: cost, Limits: limits}}
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	give := func(r []store.Request) {
		t.Helper()
		if err := refund(s, r, 1); err != nil {
			t.Fatal(err)
		}
	}
	take(s, 1, limit)
	give(take(s, 1, limit))
	take(s, 2, limit, other)
	give(take(s, 2, other))
	take(s, 1, limit, other)
	take(s, 1, limit, other) // which is refused
	if r := a.Replay(limit, other); r.Different > 0 || r.Granted != 5 || r.Refused != 1 || r.Refunds != 2 {
		t.Fatalf("what happened:\n%v%s", r, strings.Join(r.Differences, "\n"))
	}
	recorded := a.calls
	find := func(name string, limits ...store.Limit) {
		t.Helper()
		if r := a.Replay(limits...); r.Different == 0 {
			t.Errorf("not found: %s", name)
		}
		a.calls = recorded
	}
	first, last := true, len(recorded)-1 // nothing speaks of what the last one charged
	for i, c := range recorded {
		if bytes.HasPrefix(c.answer, []byte("-NOSCRIPT")) {
			continue
		}
		p, err := (&replay{scripts: scripts()}).read(c)
		if err != nil {
			t.Fatal(err)
		}
		for n, number := range p.reply {
			if p.script == "refund" && n == 0 {
				continue // what it gives back is the same a moment later
			}
			changed := *c
			changed.answer = fmt.Appendf(nil, "*%d\r\n", len(p.reply))
			for j, other := range p.reply {
				if j == n {
					other = number.(int64) + 1
				}
				changed.answer = fmt.Appendf(changed.answer, ":%d\r\n", other)
			}
			a.calls = slices.Clone(recorded)
			a.calls[i] = &changed
			if p.script == "refund" { // it says that it has failed
				changed.answer = bytes.Replace(c.answer, []byte(":1\r\n"), []byte("$3\r\nno!\r\n"), 1)
			}
			find(fmt.Sprintf("number %d of %.200q changed", n, c.answer), limit, other)
		}
		a.calls = slices.Delete(slices.Clone(recorded), i, i+1)
		if i < last {
			find(fmt.Sprintf("%.200q left out", c.command), limit, other)
		}
		a.calls = slices.Insert(slices.Clone(recorded), i, c)
		if p.script == "take" && i < last {
			find(fmt.Sprintf("%.200q twice", c.command), limit, other)
		}
		unanswered := *c
		unanswered.answer = nil
		a.calls = slices.Clone(recorded)
		a.calls[i] = &unanswered
		if first { // it was on its way when Redis was killed, and may have charged
			first, a.life = false, 1
			if r := a.Replay(limit, other); r.Different > 0 || r.Doubtful == 0 || r.Unanswered != 1 {
				t.Errorf("%.200q unanswered:\n%v", c.command, r)
			}
			a.life = 0
		}
		find("a call that was never answered", limit, other)
	}
	find("a limit nobody has", limit)

	for name, misbehave := range map[string]func(*Audit, *redisstore.Store, *redis.Client){
		"a budget removed": func(*Audit, *redisstore.Store, *redis.Client) {
			server.Client.Del(t.Context(), "caddy_rl:{k}:"+limit.ID)
		},
		"a command of its own": func(_ *Audit, _ *redisstore.Store, through *redis.Client) {
			through.Set(t.Context(), "caddy_rl:{k}:"+limit.ID, "x", 0)
		},
		"another script": func(_ *Audit, _ *redisstore.Store, through *redis.Client) {
			mutant := strings.Replace(algorithms.Set(0).With(limit.Algorithm()).TakeScript(), "math.floor", "math.ceil", 1)
			through.Eval(t.Context(), mutant, []string{"caddy_rl:{k}:" + limit.ID}, 0, 0, 0, 0)
		},
		"an instant of its own": func(_ *Audit, s *redisstore.Store, _ *redis.Client) {
			r := []store.Request{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}}}
			_, _ = s.TakeAt(t.Context(), time.Now().UnixMicro(), r)
		},
		"a charge given back twice": func(_ *Audit, s *redisstore.Store, _ *redis.Client) {
			r := take(s, 1, limit)
			for range 2 {
				if err := refund(s, r, 1); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a restart": func(*Audit, *redisstore.Store, *redis.Client) {
			server.Kill(t)
			server.Restart(t)
		},
	} {
		server.Client.FlushAll(t.Context())
		a := StartAudit(t, server)
		s := open(t, a, 30*time.Second)
		through := redis.NewClient(&redis.Options{Addr: a.Addr})
		take(s, 1, limit)
		misbehave(a, s, through)
		for range 3 {
			_, _ = s.Take(t.Context(), []store.Request{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}}})
		}
		_ = through.Close()
		if r := a.Replay(limit); r.Different == 0 {
			t.Errorf("not found: %s", name)
		} else {
			t.Logf("%s: %.200q", name, r.Differences[0])
		}
	}
}
