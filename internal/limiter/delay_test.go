package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// wantNoPlaces checks that no request has a place in the zone.
func wantNoPlaces(t *testing.T, z *Zone) {
	t.Helper()
	if places, keys := z.Delay.Places.Taken(); places != 0 || keys != 0 {
		t.Errorf("%d places are taken, by %d keys, want none", places, keys)
	}
}

// queueTest is a zone with delay in this process, and its budgets in memory.
type queueTest struct {
	handler *Limiter
	zone    *Zone
	limit   store.Limit
}

func newQueueTest(t *testing.T, budgets store.Store, limit string, maxPlaces int64) *queueTest {
	t.Helper()
	var q algorithms.Quota
	errtest.None(t, errtest.Of(fmt.Sscan(limit, &q.Algorithm, &q.Events, &q.Window, &q.Burst)))
	return &queueTest{
		handler: &Limiter{Store: budgets, SlotLines: ProcessSlotLines},
		zone: &Zone{
			Name: "api", Metrics: telemetry.ZoneMetrics{Disabled: true},
			Delay: &lines.DelayPolicy{MaxDelay: 1 << 50, MaxPlaces: maxPlaces, SingleKey: true, Places: NewDelayPlaces()},
		},
		limit: storetest.Limit(t, "api", q),
	}
}

func (q *queueTest) request(cost int64) store.ZoneRequest {
	return store.ZoneRequest{Zone: "api", Limits: []store.Limit{q.limit}, Cost: cost}
}

// ask has a request decided, and held if need be.
func (q *queueTest) ask(ctx context.Context, cost int64) (passed bool) {
	state := newTestState(q.handler, q.zone, &LimitSet{}, q.request(cost))
	defer state.sendCorrections()
	err := q.handler.decide(ctx, state)
	return state.Allowed && err == nil
}

// reset is how long until the budget is untouched.
func (q *queueTest) reset(t *testing.T) time.Duration {
	t.Helper()
	look := []store.ZoneRequest{q.request(0)}
	errtest.None(t, errtest.Of(q.handler.Store.Take(t.Context(), look)))
	return time.Duration(look[0].Outcome.Decisions[0].ResetAfter) * time.Microsecond
}

// Two instances have random clients that come and leave. In every span the passed requests are
// within the bound of the limit. When all delayed clients leave at once, the next request waits
// only for requests that have passed.
func TestQueueLaws(t *testing.T) {
	const second = int64(time.Second / time.Microsecond)
	for seed := range seedtest.Cases(t, uint64(150)) {
		random := rand.New(rand.NewPCG(seed, 10))
		synctest.Test(t, func(t *testing.T) {
			events, burst := 1+random.Int64N(20), 1+random.Int64N(5)
			limit := fmt.Sprint([]string{"gcra", "token_bucket"}[random.IntN(2)], " ", events, " ", second, " ", burst)
			budgets := inMemory()
			instances := []*queueTest{newQueueTest(t, budgets, limit, 1+random.Int64N(40))}
			if random.IntN(2) == 0 {
				instances = append(instances, newQueueTest(t, budgets, limit, 1+random.Int64N(40)))
			}
			var mu sync.Mutex
			var passed []int64 // when, in µs
			var clients sync.WaitGroup
			crowd, leave := context.WithCancel(t.Context())
			began := time.Now()
			for range 150 {
				ctx, stop := crowd, func() {}
				if random.IntN(3) > 0 {
					ctx, stop = context.WithTimeout(crowd, time.Duration(random.Int64N(int64(3*time.Second))))
				}
				q, cost := instances[random.IntN(len(instances))], 1+random.Int64N(burst)
				clients.Go(func() {
					defer stop()
					if q.ask(ctx, cost) {
						mu.Lock()
						defer mu.Unlock()
						for range cost {
							passed = append(passed, time.Since(began).Microseconds())
						}
					}
				})
				if random.IntN(4) > 0 {
					time.Sleep(time.Duration(random.Int64N(3*second/events)) * time.Microsecond)
				}
			}
			synctest.Wait()
			leave()
			clients.Wait()
			for i, first := range passed {
				for n, at := range passed[i:] {
					if most := burst + (at-first+1)*events/second; int64(n+1) > most {
						t.Fatalf("seed %d, %s: %d passed within %d µs, the bound is %d", seed, limit, n+1, at-first, most)
					}
				}
			}
			last := time.Duration(passed[len(passed)-1])*time.Microsecond - time.Since(began)
			most := max(last+time.Duration(burst*second/events+2)*time.Microsecond, 0)
			if left := instances[0].reset(t); len(instances) == 1 && left > most {
				t.Errorf("seed %d, %s: all have left, and the budget is untouched after %v, want at most %v", seed, limit, left, most)
			}
			for _, q := range instances {
				wantNoPlaces(t, q.zone)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// Fifty held clients that leave in any order leave the budget as if they had never come. While some stay behind others,
// nothing is given to anybody else.
func TestWholeQueueLeaves(t *testing.T) {
	const hour = 3_600_000_000
	for _, name := range []string{
		fmt.Sprint("token_bucket 3 ", 10*hour, " 1"), fmt.Sprint("gcra 3 ", 10*hour, " 1"), fmt.Sprint("leaky_bucket 1 ", hour, " 1"),
		fmt.Sprint("smooth 7 ", 10*hour, " 1"), fmt.Sprint("fixed_window 1 ", hour, " 0"),
	} {
		for seed := range seedtest.Cases(t, uint64(20)) {
			synctest.Test(t, func(t *testing.T) { wholeQueueLeaves(t, name, rand.New(rand.NewPCG(seed, 45))) })
		}
	}
}

func wholeQueueLeaves(t *testing.T, limit string, random *rand.Rand) {
	q := newQueueTest(t, inMemory(), limit, 60)
	passing := 1
	if strings.HasPrefix(limit, "smooth") { // where one more passes, on account of the next
		passing = 2
	}
	for range passing {
		if !q.ask(t.Context(), 1) {
			t.Fatalf("%s: a request is denied", limit)
		}
	}
	began, untouched := time.Now(), q.reset(t)
	pass := func() { time.Sleep(time.Duration(random.IntN(1_000_000)) * time.Microsecond) } // virtual time
	var clients sync.WaitGroup
	var leave []func()
	for range 50 {
		ctx, stop := context.WithCancel(t.Context())
		leave = append(leave, stop)
		clients.Go(func() {
			if q.ask(ctx, 1) {
				t.Errorf("%s: a request that was to be held has passed", limit)
			}
		})
		synctest.Wait()
		pass()
	}
	deep, at := q.reset(t), time.Now()
	for _, i := range random.Perm(25) { // from the middle
		leave[10+i]()
		synctest.Wait()
		if now, want := q.reset(t), deep-time.Since(at); now != want {
			t.Fatalf("%s: the budget is untouched after %v, want %v: 15 are held behind those who left", limit, now, want)
		}
		pass()
	}
	for _, i := range random.Perm(50) {
		leave[i]()
		synctest.Wait()
		pass()
	}
	clients.Wait()
	if now, want := q.reset(t), untouched-time.Since(began); now != want {
		t.Fatalf("%s: all have left, and the budget is untouched after %v, want %v", limit, now, want)
	}
	wantNoPlaces(t, q.zone)
}
