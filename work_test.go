package ratelimit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// However many limits a request meets, one script call decides them in time, or the
// configuration is denied, and what its error says to write is legal.
func TestBoundWork(t *testing.T) {
	log := func(events int) string {
		return fmt.Sprintf(`{"algorithm":"sliding_log","events":%d,"window":"1h"}`, events)
	}
	const buckets = `{"algorithm":"sliding_log","events":1000000,"window":"1h","buckets":2000}`
	const anyCost = `"cost":"{http.request.header.Cost}"`
	zone := func(name string, limits ...string) string {
		return fmt.Sprintf(`%q:{"limits":[%s],%s}`, name, strings.Join(limits, ","), anyCost)
	}
	var small []string // at the usual cost, with all of them in one handler
	for i := range 80 {
		small = append(small, fmt.Sprintf(`"z%d":{"max_events":60,"window":"1m"}`, i))
	}
	var counters []string
	for i := range 900 {
		counters = append(counters, fmt.Sprintf(`{"algorithm":"gcra","events":%d,"window":"1h"}`, i+1))
	}
	const instead = "take too long to decide in one call: write sliding_log "
	for _, test := range []struct {
		zones []string
		want  string
	}{
		{[]string{zone("a", log(50000)), zone("b", counters[:80]...)}, ""},
		{[]string{zone("a", log(28500), log(28499))}, ""},
		{[]string{zone("a", buckets), zone("b", log(7000))}, ""},
		{[]string{zone("a", counters[:600]...)}, ""},
		{small, ""},
		{append(small[:40:40], `"a":{"limits":[`+log(50000)+`,`+log(49999)+`]}`), ""},
		{append(small[:40:40], `"a":{"limits":[`+log(50000)+`],"settle":{"cost":"{http.response.header.Cost}"}}`), instead},
		{[]string{zone("a", log(50000), log(40000))}, instead + "17081 1h, or less, instead of sliding_log 50000 1h"},
		{[]string{zone("a", log(17081), log(40000))}, ""},
		{[]string{zone("a", buckets), zone("b", log(30000))}, instead + "1000000 1h in 1090 buckets, or less"},
		{[]string{zone("a", `{"algorithm":"sliding_log","events":1000000,"window":"1h","buckets":1090}`), zone("b", log(30000))}, ""},
		{[]string{zone("a", counters[:601]...)}, "write fewer limits"},
		{[]string{zone("a", counters[:500]...), zone("b", counters[:500]...)}, "write fewer limits"},
		{[]string{`"a":{"concurrency":50000}`, `"b":{"concurrency":50000}`, zone("c", log(30000))}, ""},
		{[]string{zone("a", log(1)), `"b":{"concurrency":50000,"limits":[` + log(50000) + `],` + anyCost + `}`, `"c":{"concurrency":50000,"limits":[` + log(20000) + `],` + anyCost + `}`}, instead},
		{[]string{zone("a", log(50000)), `"b":{"limits":[` + log(1) + `],` + anyCost + `,"override":{"x":{"limits":[` + log(40000) + `]}}}`}, instead},
		{[]string{zone("a", log(50000)), `"b":{` + anyCost + `,"plan":{"by":"{http.auth.user.plan}","values":{"x":{"limits":[` + log(40000) + `]}},"default":{"unlimited":true}}}`}, instead},
		{[]string{`"a":{` + anyCost + `,"plan":{"by":"{http.auth.user.plan}","values":{"x":{"limits":[` + log(40000) + `]},"y":{"limits":[` + log(40001) + `]}},"default":{"unlimited":true}}}`}, ""},
	} {
		err := validate(handlerConfig(`{"handler":"rate_limit","rate_limits":{` + strings.Join(test.zones, ",") + `}}`))
		if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.200v: %v, want %q", test.zones, err, test.want)
		}
	}
}

// An override set at run time has what the zones of the handler leave.
func TestBoundWorkOfOverrides(t *testing.T) {
	c := startCaddy(t, site("zone api {\n key {query.key}\n cost {header.Cost}\n sliding_log 10000 1h\n runtime_overrides\n}\nzone all {\n cost {header.Cost}\n sliding_log 30000 1h\n}\n"))
	put := func(status int, limits, says string) {
		t.Helper()
		if r := c.operate(t, status, "PUT", keyPath("k")+"/override", `{"limits":[`+limits+`]}`); !strings.Contains(r.body, says) {
			t.Errorf("%s, want %q", r.body, says)
		}
	}
	put(204, `{"algorithm":"sliding_log","events":25000,"window":"1h"}`, "")
	put(204, `{"algorithm":"gcra","events":45000,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":50000,"window":"1h"}`, "write sliding_log 27161 1h, or less, instead of sliding_log 50000 1h")
	put(204, `{"algorithm":"sliding_log","events":27161,"window":"1h"}`, "")
	put(400, `{"algorithm":"sliding_log","events":60000,"window":"1h"}`, "events must be at most 50000")
}

// longestRenewal is a store that notes how many slots are renewed in one call.
type longestRenewal struct {
	store.Store
	mu   sync.Mutex
	most int
}

func (s *longestRenewal) Renew(ctx context.Context, requests []store.Request) error {
	s.mu.Lock()
	s.most = max(s.most, len(requests))
	s.mu.Unlock()
	return s.Store.Renew(ctx, requests)
}

// holdSlots holds n slots of a zone with concurrency until the test ends.
func holdSlots(t *testing.T, h *Handler, concurrency int64, n int) (held []*slot) {
	t.Helper()
	h.DisableMetrics = true
	slots, err := readySlots(concurrency, outagePolicy{num: 1, den: 1})
	if err != nil {
		t.Fatal(err)
	}
	slots.nameLimits("z", []keyTemplate{newKeyTemplate("")}, newSlots)
	for range n {
		a := &answer{handler: h, zones: []*zone{nil}, terms: []*terms{slots}}
		a.requests = []store.Request{{Zone: "z", Limits: slots.limits[0], Cost: 1, Fleeting: true}}
		if allowed, err := h.store.Take(t.Context(), a.requests); !allowed || err != nil {
			t.Fatal(allowed, err)
		}
		a.holdSlots()
		held = append(held, a.slots...)
		t.Cleanup(func() { a.leaveSlots(context.WithoutCancel(t.Context())) })
	}
	return held
}

// The more slots a key has, the fewer are renewed in one call.
func TestRenewalsAreShort(t *testing.T) {
	for _, test := range []struct {
		concurrency int64
		most        int
	}{{200, 66}, {10_000, 17}, {mostConcurrency, 5}} {
		s := &longestRenewal{Store: store.NewMemory().Bound(10_000, func() int { return 1 }, nil)}
		h := &Handler{store: s}
		held := holdSlots(t, h, test.concurrency, 200)
		h.renew(held)
		if s.most != test.most || int64(test.most)*held[0].work > algorithms.MostWork {
			t.Errorf("of %d slots %d were renewed in one call, want %d", test.concurrency, s.most, test.most)
		}
	}
}

// distantRenewal is a store that answers a call only once several are under way.
type distantRenewal struct {
	store.Store
	calls, answer chan struct{}
}

func (s *distantRenewal) Renew(ctx context.Context, requests []store.Request) error {
	select {
	case s.calls <- struct{}{}:
		<-s.answer
	case <-s.answer:
	}
	return s.Store.Renew(ctx, requests)
}

// Calls that renew many slots don't wait for one another, or where Redis is far away slots
// would expire before their turn comes.
func TestRenewalsOverlap(t *testing.T) {
	s := &distantRenewal{store.NewMemory().Bound(10_000, func() int { return 1 }, nil), make(chan struct{}), make(chan struct{})}
	h := &Handler{store: s}
	held := holdSlots(t, h, mostConcurrency, 100)
	done := make(chan struct{})
	go func() {
		h.renew(held)
		close(done)
	}()
	for i := range renewalsAtATime {
		select {
		case <-s.calls:
		case <-time.After(10 * time.Second):
			close(s.answer)
			t.Fatalf("%d calls are under way at the same time, want %d", i, renewalsAtATime)
		}
	}
	close(s.answer)
	<-done
}

// The more limits a zone has, the fewer charges of clients that left are given back in one call.
func TestGivingBackIsShort(t *testing.T) {
	for _, test := range []struct{ limits, most int }{{1, givenBackAtOnce}, {20, 30}, {400, 1}} {
		r := store.Request{Zone: "z"}
		for n := range test.limits {
			l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: int64(n + 1), Window: 3_600_000_000})
			if err != nil {
				t.Fatal(err)
			}
			r.Limits = append(r.Limits, store.NewLimit("z", "", l))
		}
		q, h := new(queue), new(Handler)
		for range 2*givenBackAtOnce + 1 {
			q.turns = append(q.turns, &turn{handler: h, request: r, left: true})
		}
		given := 0
		for len(q.turns) > 0 {
			_, charged := q.takeLeft()
			if len(charged) == 0 || len(charged) > test.most {
				t.Fatalf("of %d limits %d charges are given back in one call, want 1 to %d", test.limits, len(charged), test.most)
			}
			given += len(charged)
		}
		if given != 2*givenBackAtOnce+1 {
			t.Errorf("%d charges were given back", given)
		}
	}
}
