package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// openStore opens a store that connects through an audit.
func openStore(t *testing.T, a *Audit, timeout time.Duration) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{Address: a.Addr, Timeout: timeout, DialTimeout: timeout}, redisstore.Hooks{})
	errtest.None(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// testZones returns a zone of every algorithm, option and mode. Some have two limits, slots, a ban or
// overrides.
func testZones(t *testing.T, window algorithms.Micros) (zones []store.ZoneRequest) {
	t.Helper()
	quotas := storetest.Variants(5, window)
	initial := int64(2)
	quotas = append(quotas, algorithms.Quota{Algorithm: "smooth", Events: 5, Window: window, Initial: &initial})
	for i, q := range quotas {
		if q.Initial != nil { // as Replay wants it
			q.Events, q.Window, q.Burst = 3_600_000_000/window*q.Events, 3_600_000_000, 5
		}
		algorithm, err := algorithms.Lookup(q.Algorithm)
		errtest.None(t, err)
		for mode := algorithms.Binary; mode <= algorithms.Force; mode++ {
			if mode != algorithms.Binary && algorithm.BinaryOnly {
				continue
			}
			r := store.ZoneRequest{Zone: fmt.Sprint("z", i, mode), Mode: mode}
			r.Limits = append(r.Limits, storetest.Limit(t, r.Zone, q))
			if i%2 == 0 {
				r.Limits = append(r.Limits, storetest.Limit(t, r.Zone, algorithms.Quota{Algorithm: "gcra", Events: 10, Window: 2 * window}))
			}
			if l := r.Limits[0]; l.Scalable() {
				l.Limit = l.Scaled(500_000)
				zones = append(zones, store.ZoneRequest{Zone: r.Zone, Mode: mode, Limits: []store.Limit{l}})
			}
			switch i % 4 {
			case 0:
				if mode == algorithms.Binary {
					r.ReservedID = store.ReservedID(r.Zone, "")
				}
			case 1:
				r.Slots = &store.Slots{ID: store.SlotsID(r.Zone, ""), Limit: 2}
			case 2:
				r.Ban = &store.Ban{ID: store.BanID(r.Zone, ""), Ban: &algorithms.Ban{
					After: 3, Window: window, Duration: window / 4, Max: window,
				}}
			case 3:
				r.Override = new(store.Override)
			}
			zones = append(zones, r)
		}
	}
	return append(zones, store.ZoneRequest{Zone: "slots", Slots: &store.Slots{ID: store.SlotsID("slots", ""), Limit: 3}})
}

// randomRequests returns the requests of a random HTTP request to some zones.
func randomRequests(zones []store.ZoneRequest) (requests []store.ZoneRequest) {
	for len(requests) == 0 || rand.IntN(3) == 0 && len(requests) < 4 {
		r := zones[rand.IntN(len(zones))]
		if slices.ContainsFunc(requests, func(other store.ZoneRequest) bool { return other.Zone == r.Zone }) {
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

// Three instances decide requests, with refunds, clients that disconnect, and operators' changes. Meanwhile Redis
// and the connections fail. Each decision must be that of the functions in Go.
func TestAudit(t *testing.T) {
	Long(t)
	audit(t, time.Minute, nil)
}

// audit runs TestAudit with a timeout, and one fault more if it is not nil.
func audit(t *testing.T, timeout time.Duration, another func(*Server)) {
	t.Helper()
	server := Start(t)
	a := StartAudit(t, server)
	all := testZones(t, 300_000)
	for _, z := range all[:10] { // keys without a budget
		for _, l := range z.Limits {
			a.Spoil(t, "caddy_rl:{key 0}:"+l.ID)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var taken atomic.Int64
	defer func() {
		stop()
		callers.Wait()
	}()
	for range 3 {
		s := openStore(t, a, timeout)
		for range 6 {
			callers.Go(func() {
				for ctx.Err() == nil {
					takeAndCorrect(t, s, randomRequests(all))
					taken.Add(1)
				}
			})
		}
		callers.Go(func() {
			for ctx.Err() == nil {
				changeZone(s, all[rand.IntN(len(all))])
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // an operator makes random pauses
			}
		})
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
			if another != nil {
				another(server)
			}
		},
		func() {
			a.Kill(t)
			server.Restart(t)
		},
	}, rounds)
	rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	WaitFor(t, "calls before the first fault", func() bool { return taken.Load() > 1000 })
	for _, fault := range faults {
		fault()
		before := taken.Load()
		WaitFor(t, "calls while the fault lasts", func() bool { return taken.Load() > before+300 })
	}
	a.Trouble(0)
	a.Delay(0)
	faulty := taken.Load()
	WaitFor(t, "many calls after the last fault, also on a slow machine", func() bool { return taken.Load() > faulty+3000 && taken.Load() > 8000 })
	stop()
	callers.Wait()
	r := a.Replay(all...)
	t.Logf("\n%v", r)
	if r.Different > 0 {
		t.Errorf("%d differences, the first ones:\n%s", r.Different, strings.Join(r.Differences, "\n"))
	}
	for what, n := range map[string]int{
		"granted": r.Granted, "denied": r.Denied, "overridden": r.Overridden, "refunds": r.Refunds, "slots": r.Slots,
		"sets": r.Sets, "changes": r.Changes, "states": r.States,
	} {
		if n < 50 {
			t.Errorf("%d %s: too few for this test", n, what)
		}
	}
	if r.Bans == 0 || r.Failed == 0 || r.NotRun == 0 || 4*r.Doubtful > r.Granted {
		t.Error("too little of something happened for this test, or too much is in doubt")
	}
	if want := 1 + 2*rounds; r.Eras != want {
		t.Errorf("%d eras, want %d", r.Eras, want)
	}
}

// changeZone makes a random change to a zone.
func changeZone(s *redisstore.Store, z store.ZoneRequest) {
	c := store.Change{Zone: z.Zone, Key: fmt.Sprint("key ", rand.IntN(3))}
	switch rand.IntN(3) {
	case 0:
		for _, l := range z.Limits {
			c.Forget = append(c.Forget, l.ID)
		}
		if z.Ban != nil {
			c.Forget = append(c.Forget, z.Ban.ID)
		}
	case 1:
		if z.Ban != nil {
			c.Ban, c.BanFor = []*store.Ban{z.Ban}, 1+rand.Int64N(300_000)
		}
	case 2:
		if z.Override != nil {
			text := []string{"", "a", "b"}[rand.IntN(3)]
			c.Override, c.OverrideFor = &text, rand.Int64N(3)*50_000
		}
	}
	_ = s.Change(context.Background(), c)
}

// takeAndCorrect takes, sometimes with little time, and makes random corrections.
func takeAndCorrect(t *testing.T, s *redisstore.Store, requests []store.ZoneRequest) {
	ctx := context.Background()
	if rand.IntN(8) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
		defer cancel()
		ctx = short
	}
	allowed, err := s.Take(ctx, requests)
	for range 3 {
		var found *store.OverriddenError
		overridden := errors.As(err, &found)
		if !overridden {
			break
		}
		for i, text := range found.Overrides {
			if requests[i].Override != nil {
				requests[i].Override = &store.Override{Text: text}
			}
		}
		allowed, err = s.Take(ctx, requests)
	}
	var failed *store.Error
	if err != nil && !errors.As(err, &failed) && !store.IsOverridden(err) && ctx.Err() == nil {
		t.Error(err)
	}
	for _, r := range requests { // allowed requests are charged their cost
		for _, d := range r.Outcome.Decisions {
			if err == nil && allowed && r.Mode == algorithms.Binary && !r.Shadow && d.Charged != r.Cost {
				t.Errorf("%d of %d charged", d.Charged, r.Cost)
			}
		}
	}
	if err != nil {
		return
	}
	time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // the request is in flight for a random time
	refund, charge := int64(0), int64(0)
	if allowed && rand.IntN(4) == 0 {
		refund = 1 + rand.Int64N(3)
	}
	if allowed && rand.IntN(4) == 0 {
		charge = 1 + rand.Int64N(3)
	}
	_ = correctAll(s, requests, refund, charge)
}

// correctAll gives back the slots of requests, and refunds and charges events of each limit.
func correctAll(s *redisstore.Store, requests []store.ZoneRequest, refund, charge int64) error {
	var corrections []store.Correction
	for i := range requests {
		corrections = append(corrections, store.Correction{Request: &requests[i], Refund: refund, Charge: charge, Leave: true, Settled: true})
	}
	return s.CorrectAt(context.Background(), 0, corrections)
}
