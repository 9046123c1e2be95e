package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Keys share places, and one that has none gets any that is free.
func TestPlacesAreShared(t *testing.T) {
	for _, test := range []struct {
		most   int64
		oneKey bool
		takes  []string // a key takes as many as it gets
		want   []int64
	}{
		{1, false, []string{"a", "b"}, []int64{1, 0}},
		{2, false, []string{"a", "b"}, []int64{1, 1}},
		{3, false, []string{"a", "b"}, []int64{2, 1}},
		{9, false, []string{"a", "b", "c", "d"}, []int64{5, 2, 1, 1}},
		{1000, false, []string{"a", "b", "c"}, []int64{500, 250, 125}},
		{1000, true, []string{"a"}, []int64{1000}},
		{1, true, []string{"a", "a"}, []int64{1, 0}},
	} {
		p := &delayPolicy{zone: fmt.Sprint(t.Name(), test), maxHeld: test.most, singleKey: test.oneKey}
		for i, key := range test.takes {
			got := int64(0)
			for p.reservePlace(key) {
				got++
			}
			if got != test.want[i] {
				t.Errorf("%+v: %s got %d places, want %d", test, key, got, test.want[i])
			}
		}
	}
	// In turn, two keys have a third each.
	p := &delayPolicy{zone: t.Name(), maxHeld: 999}
	got := make(map[string]int)
	for range 999 {
		for _, key := range []string{"a", "b"} {
			if p.reservePlace(key) {
				got[key]++
			}
		}
	}
	if got["a"] != 333 || got["b"] != 333 {
		t.Errorf("of 999 places two keys got %v", got)
	}
	for key, n := range got {
		for range n {
			p.queue().releasePlace(key)
		}
	}
	p.queue().wantEmpty(t)
	if n := testing.AllocsPerRun(1000, func() { p.reservePlace("a"); p.queue().releasePlace("a") }); n > 0 {
		t.Errorf("a place costs %v allocations", n)
	}
}

// A key that has half of the places leaves the others to other keys.
func TestPlacesOfKeys(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, site("zone api {\n key {query.key}\n gcra 1 1h 1\n delay 10h 4\n}"))
	clients, leave := context.WithCancel(t.Context())
	var ended []<-chan int
	held := 0
	hold := func(key string) {
		t.Helper()
		held++
		ended = append(ended, c.hold(clients, "/?key="+key))
		waitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone="api"} %d`, held))
	}
	c.get(t, "/?key=a").want(t, 200)
	hold("a")
	hold("a")
	c.get(t, "/?key=a").want(t, 429)
	c.get(t, "/?key=b").want(t, 200)
	hold("b")
	c.get(t, "/?key=b").want(t, 429)
	c.get(t, "/?key=c").want(t, 200)
	hold("c")
	leave()
	for _, status := range ended {
		if status := <-status; status != 0 {
			t.Errorf("a request that was to be held got %d", status)
		}
	}
}

// A key that sends any number of requests keeps no other key from waiting: the last free place goes to
// a key that has none. So it takes more than the logarithm of the places in keys to fill them. As
// requests leave, the keys get equal shares.
func TestPlacesUnderFlood(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 16))
		places := int64(1) << (1 + random.IntN(9))
		p := &delayPolicy{zone: fmt.Sprint(t.Name(), seed), maxHeld: places}
		q, keys := p.queue(), []string{"flood", "b", "c"}[:1+random.IntN(3)]
		has := func(key string) int64 { return q.takenByKey[key] }
		for step := range 20 * places {
			key := keys[0]
			if random.IntN(10) == 0 {
				key = keys[random.IntN(len(keys))]
			}
			for p.reservePlace(key) { // as many as it gets
			}
			if free, want := places-q.taken, places>>len(keys); step > 0 && free < want {
				t.Fatalf("seed %d: %d of %d places are free while %d keys want more, want at least %d", seed, free, places, len(keys), want)
			}
			if !p.reservePlace("newcomer") && places>>len(keys) > 0 {
				t.Fatalf("seed %d: a newcomer finds none of %d places beside %v", seed, places, q.takenByKey)
			}
			for has("newcomer") > 0 {
				q.releasePlace("newcomer")
			}
			if key := keys[random.IntN(len(keys))]; has(key) > 0 {
				q.releasePlace(key)
			}
			if sum := has("flood") + has("b") + has("c"); sum != q.taken || sum > places {
				t.Fatalf("seed %d: %d of %d places are taken, by %v", seed, q.taken, places, q.takenByKey)
			}
		}
		for _, key := range keys {
			for has(key) > 0 {
				q.releasePlace(key)
			}
		}
		q.wantEmpty(t)
	}
}

// check checks what holds for a queue at any time.
func (q *delayQueue) check(t *testing.T, most int64) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	sum := int64(0)
	for key, n := range q.takenByKey {
		sum += n
		if n <= 0 || n < int64(len(q.heldByKey[key]))+q.slotless[key] {
			t.Errorf("key %s has %d places, %d requests in line, and %d wait for slots", key, n, len(q.heldByKey[key]), q.slotless[key])
		}
	}
	for key, line := range q.heldByKey {
		if len(line) == 0 || q.takenByKey[key] == 0 || !slices.IsSortedFunc(line, func(a, b *heldRequest) int {
			if a.isChargedAfter(b) {
				return 1
			}
			return -1
		}) {
			t.Errorf("the line of key %s has %d requests, %d places, or a wrong order", key, len(line), q.takenByKey[key])
		}
	}
	if sum != q.taken || sum > most {
		t.Errorf("%d places are taken, keys have %d, want at most %d", q.taken, sum, most)
	}
}

// Clients of several keys come, wait for slots and for limits, and leave at random. Of each key the
// requests pass in the order of their charges. No place is lost, and all are free in the end. A key
// whose clients all stay and fit is never denied by a flood of another key.
func TestQueueOfManyKeys(t *testing.T) {
	const second = int64(time.Second / time.Microsecond)
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 17))
		synctest.Test(t, func(t *testing.T) {
			most := 20 + random.Int64N(30)
			q := newQueueTest(t, inMemory(), fmt.Sprint(seed), fmt.Sprint("gcra 5 ", second, " 1"), most)
			q.zone.delay.singleKey = false
			var slots *store.Slots
			if random.IntN(2) == 0 {
				slots = &store.Slots{ID: store.SlotsID("api", ""), Limit: 1 + random.Int64N(3)}
			}
			var mu sync.Mutex
			charged := make(map[string]int64) // the last charge of a key that passed
			passed := 0
			send := func(ctx context.Context, key string) bool {
				r := q.request(1)
				r.Key, r.Slots = key, slots
				state := newTestState(q.handler, q.zone, &limitSet{}, r)
				defer state.finish()
				if err := q.handler.decide(ctx, state); err != nil || !state.allowed {
					return false
				}
				mu.Lock()
				defer mu.Unlock()
				passed++
				receipt := state.requests[0].Outcome.Decisions[0].Receipt.At
				if receipt < charged[key] {
					t.Errorf("seed %d: a request of key %s passed after one that was charged later", seed, key)
				}
				charged[key] = receipt
				return true
			}
			var clients sync.WaitGroup
			for range 200 {
				ctx, stop := t.Context(), func() {}
				if random.IntN(3) == 0 {
					ctx, stop = context.WithTimeout(ctx, time.Duration(random.Int64N(int64(5*time.Second))))
				}
				key := []string{"flood", "flood", "flood", "flood", "b"}[random.IntN(5)]
				clients.Go(func() {
					defer stop()
					send(ctx, key)
				})
				if calm := fmt.Sprint("calm", random.Uint64()); random.IntN(10) == 0 {
					clients.Go(func() { // one at a time, so it has one place at most
						for range 2 {
							if !send(t.Context(), calm) {
								t.Errorf("seed %d: a calm key was denied", seed)
							}
						}
					})
				}
				synctest.Wait()
				q.zone.delay.queue().check(t, most)
				time.Sleep(time.Duration(random.Int64N(second/10)) * time.Microsecond)
			}
			clients.Wait()
			if passed == 0 {
				t.Error("no request passed")
			}
			q.zone.delay.queue().wantEmpty(t)
		})
		if t.Failed() {
			return
		}
	}
}

func (q *delayQueue) wantEmpty(t *testing.T) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken != 0 || len(q.takenByKey) != 0 || len(q.heldByKey) != 0 || len(q.slotless) != 0 {
		t.Errorf("%d places are taken, by %v, in %d queues, and %v wait for slots; want none", q.taken, q.takenByKey, len(q.heldByKey), q.slotless)
	}
}

// queueTest is a zone with delay in this process, and its budgets in memory.
type queueTest struct {
	handler *Handler
	zone    *zone
	limit   store.Limit
}

func newQueueTest(t *testing.T, budgets store.Store, room, limit string, most int64) *queueTest {
	t.Helper()
	var q algorithms.Quota
	if _, err := fmt.Sscan(limit, &q.Algorithm, &q.Events, &q.Window, &q.Burst); err != nil {
		t.Fatal(err)
	}
	l, err := algorithms.NewLimit(q)
	if err != nil {
		t.Fatal(err)
	}
	return &queueTest{
		handler: &Handler{store: budgets, slotLines: processSlotLines},
		zone: &zone{
			name: "api", metrics: zoneMetrics{disabled: true},
			delay: &delayPolicy{zone: t.Name() + room, maxWait: 1 << 50, maxHeld: most, singleKey: true},
		},
		limit: store.NewLimit("api", "", l),
	}
}

func (q *queueTest) request(cost int64) store.Request {
	return store.Request{Zone: "api", Limits: []store.Limit{q.limit}, Cost: cost}
}

// ask has a request decided, and held if need be.
func (q *queueTest) ask(ctx context.Context, cost int64) (passed bool) {
	state := newTestState(q.handler, q.zone, &limitSet{}, q.request(cost))
	defer state.finish()
	err := q.handler.decide(ctx, state)
	return state.allowed && err == nil
}

// hold charges a request as decide does, and doesn't let it join the queue yet.
func (q *queueTest) hold(t *testing.T) store.Request {
	t.Helper()
	requests := []store.Request{q.request(1)}
	requests[0].MaxWait = q.zone.delay.maxWait
	if !q.zone.delay.reservePlace("") {
		t.Fatal("there is no place")
	}
	if allowed, err := q.handler.store.Take(t.Context(), requests); !allowed || err != nil {
		t.Fatal(allowed, err)
	}
	return requests[0]
}

// reset is how long until the budget is untouched.
func (q *queueTest) reset(t *testing.T) time.Duration {
	t.Helper()
	look := []store.Request{q.request(0)}
	if _, err := q.handler.store.Take(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	return time.Duration(look[0].Outcome.Decisions[0].ResetAfter) * time.Microsecond
}

func inMemory() store.Store {
	return store.NewMemory(1000)
}

// Requests can join in any order, and stand in the order of their charges. Nothing is given back
// while a request may be charged behind.
func TestQueueOrder(t *testing.T) {
	for _, limit := range []string{
		"gcra 3 3600000000 1", "token_bucket 3 3600000000 1", "leaky_bucket 1 3600000000 1", "smooth 7 3600000000 1",
		"fixed_window 1 3600000000 0",
	} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueueTest(t, inMemory(), limit, limit, 100)
			room := q.zone.delay.queue()
			q.ask(t.Context(), 1)
			untouched := q.reset(t)
			var charged []store.Request
			for range 20 {
				charged = append(charged, q.hold(t))
				time.Sleep(time.Millisecond)
			}
			deep := q.reset(t)
			var heldRequests []*heldRequest
			for _, i := range rand.Perm(20) {
				heldRequests = append(heldRequests, room.hold(q.handler, charged[i]))
			}
			if !q.zone.delay.reservePlace("") { // which is being decided from now on
				t.Fatal("there is no place")
			}
			for _, i := range rand.Perm(20) {
				heldRequests[i].abandon()
			}
			if now := q.reset(t); now != deep {
				t.Errorf("%s: given back while a request is being decided: from %v to %v", limit, deep, now)
			}
			room.releasePlace("")
			if now := q.reset(t); now > untouched || now < untouched-time.Second {
				t.Errorf("%s: reset after %v, want %v less the time passed", limit, now, untouched)
			}
			room.wantEmpty(t)
		})
	}
}

// Two instances have random clients that come and leave. In every span the passed requests are
// within the bound of the limit. When all delayed clients leave at once, the next request waits
// only for requests that have passed.
func TestQueueLaws(t *testing.T) {
	const second = int64(time.Second / time.Microsecond)
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 10))
		synctest.Test(t, func(t *testing.T) {
			events, burst := 1+random.Int64N(20), 1+random.Int64N(5)
			limit := fmt.Sprint([]string{"gcra", "token_bucket"}[random.IntN(2)], " ", events, " ", second, " ", burst)
			budgets := inMemory()
			instances := []*queueTest{newQueueTest(t, budgets, fmt.Sprint(seed, "a"), limit, 1+random.Int64N(40))}
			if random.IntN(2) == 0 {
				instances = append(instances, newQueueTest(t, budgets, fmt.Sprint(seed, "b"), limit, 1+random.Int64N(40)))
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
				q.zone.delay.queue().wantEmpty(t)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// Fifty held clients that leave at once, in any order, leave the budgets as if they had
// never come. Where some stay behind others, nothing is given to anybody else.
func TestWholeQueueLeaves(t *testing.T) {
	long(t)
	t.Parallel()
	limits := []string{"token_bucket 3 10h 1", "gcra 3 10h 1", "leaky_bucket 1 1h 1", "smooth 7 10h 1", "fixed_window 1 1h"}
	eachStore(t, func(t *testing.T, use string) {
		asked, held, reset := "", "", ""
		for _, limit := range limits {
			name, _, _ := strings.Cut(limit, " ")
			zone := fmt.Sprintf("zone %s {\n match path */%[1]s\n %s\n", name, limit)
			asked += zone + "cost 0\n}\n"
			held += zone + "delay 1000h 60\n}\n"
			reset += "{http.rate_limit." + name + ".reset}" // of other zones it is empty
		}
		c := startCaddy(t, "{\n admin {$ADMIN}\n}\n{$SITE}\nhandle /ready {\n respond ok\n}\n"+
			fmt.Sprintf("handle /reset/* {\n rate_limit {\n%s%s\n}\nrespond \"%s\"\n}\n", asked, use, reset)+
			fmt.Sprintf("handle {\n rate_limit {\n%s%s\n}\nrespond ok\n}\n", held, use))
		for _, limit := range limits {
			name, _, _ := strings.Cut(limit, " ")
			t.Run(name, func(t *testing.T) { testWholeQueueLeaves(t, c, name) })
		}
	})
}

func testWholeQueueLeaves(t *testing.T, c *caddyProcess, name string) {
	reset := func() (seconds int) {
		t.Helper()
		_, _ = fmt.Sscan(c.get(t, "/reset/"+name).body, &seconds)
		return seconds
	}
	c.get(t, "/"+name).want(t, 200)
	if name == "smooth" { // where one more passes, on account of the next
		c.get(t, "/"+name).want(t, 200)
	}
	began, untouched := time.Now(), reset()
	since := func() int { return int(time.Since(began)/time.Second) + 2 }
	var clients sync.WaitGroup
	var leave []func()
	for range 50 {
		ctx, stop := context.WithCancel(t.Context())
		leave = append(leave, stop)
		before := reset()
		clients.Go(func() {
			request, _ := http.NewRequestWithContext(ctx, "GET", "http://"+c.site+"/"+name, nil)
			if r, err := client.Do(request); err == nil {
				_ = r.Body.Close()
				t.Errorf("a request that was to be held got %d", r.StatusCode)
			}
		})
		eventually(t, "the next request is held", func() bool { return reset() > before+1000 })
	}
	delayed := fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone=%q} 50`, name)
	waitForMetric(t, c, delayed)
	deep := reset()
	for _, i := range rand.Perm(25) { // from the middle
		leave[10+i]()
	}
	for range 20 {
		if now := reset(); now > deep || now < deep-since() {
			t.Errorf("the budget is untouched after %d s, want %d: 15 are held behind those who left", now, deep)
		}
		time.Sleep(time.Millisecond)
	}
	for _, i := range rand.Perm(50) {
		leave[i]()
	}
	clients.Wait()
	eventually(t, "everything is given back", func() bool { return reset() <= untouched })
	if now := reset(); now < untouched-since() {
		t.Errorf("the budget is untouched after %d s, want %d", now, untouched)
	}
}
