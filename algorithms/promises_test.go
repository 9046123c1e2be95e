package algorithms

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// The promises about delayed requests, about several limits at once, and about clocks that differ.

// Waits are exact, too. A delayed request passes at the first instant at which it would pass
// without a delay. A denied request can be delayed from its retry after on, but not 1 µs sooner.
func TestWaitIsExact(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.mode != Binary || h.limit.CheckDelay(5*h.limit.Window) != nil {
			return
		}
		cost := 1 + r.Int64N(h.limit.Burst)
		if r.IntN(10) == 0 {
			cost = h.limit.Burst + 1
		}
		unheld := h.copy()
		h.maxWait = r.Int64N(5*h.limit.Window) + 1
		for range r.IntN(8) { // those ahead in the queue
			h.take(h.now, 1)
			unheld = h.copy()
			unheld.maxWait = 0
		}
		d := h.take(h.now, cost)
		switch {
		case d.Allowed && d.Wait > h.maxWait, d.Allowed && d.RetryAfter != 0, !d.Allowed && d.Wait != 0, !d.Allowed && d.Charged != 0:
			t.Fatalf("cost %d, max wait %d: %+v", cost, h.maxWait, d)
		case d.Allowed && d.Wait > 0:
			if first := unheld.ask(h.now, cost).RetryAfter; first != d.Wait {
				t.Errorf("held for %d µs, and there is room after %d", d.Wait, first)
			}
			if unheld.ask(h.now+d.Wait-1, cost).Allowed || !unheld.ask(h.now+d.Wait, cost).Allowed {
				t.Errorf("held for %d µs, which is not when there is room", d.Wait)
			}
		case !d.Allowed && d.RetryAfter == Forever:
			if cost <= h.limit.Burst || h.ask(h.now+100*h.limit.Window*(cost+1), cost).Allowed {
				t.Errorf("cost %d passes, and was told never", cost)
			}
		case !d.Allowed:
			if e := h.ask(h.now+d.RetryAfter-1, cost); e.Allowed {
				t.Errorf("held 1 µs before the retry after of %d: %+v", d.RetryAfter, e)
			}
			if e := h.ask(h.now+d.RetryAfter, cost); !e.Allowed || e.Wait > h.maxWait {
				t.Errorf("denied at the retry after of %d: %+v", d.RetryAfter, e)
			}
		}
	})
}

// several are the zones of one request, as at some instant.
type several []ZoneRequest

func (s several) copy() several {
	c := make(several, len(s))
	for i, r := range s {
		c[i] = r
		c[i].Checks = nil
		for _, check := range r.Checks {
			h := (&history{state: check.State}).copy()
			c[i].Checks = append(c[i].Checks, Check{Limit: check.Limit, State: h.state})
		}
	}
	return c
}

// retryAfter is the longest wait of all limits, as clients see it.
func (s several) retryAfter() (wait Micros) {
	for _, r := range s {
		for _, c := range r.Checks {
			wait = max(wait, c.Decision.RetryAfter)
		}
	}
	return wait
}

func (s several) String() (text string) {
	for i, r := range s {
		for _, c := range r.Checks {
			text += fmt.Sprintf("\n  zone %d: %v, max wait %d, cost %d of %v: %+v", i, r.Mode, r.MaxWait, r.Cost, c.Limit, c.Decision)
		}
	}
	return text
}

func randomSeveral(t *testing.T, r *rand.Rand) (requests several) {
	for range 1 + r.IntN(3) {
		request := ZoneRequest{Mode: Mode(r.IntN(4)), MaxWait: r.Int64N(minute)}
		for range 1 + r.IntN(3) {
			a := All()[r.IntN(len(All()))]
			l := mustLimit(t, randomQuota(r, a))
			if request.Checks = append(request.Checks, Check{Limit: l, State: new(State)}); a.BinaryOnly {
				request.Mode = Binary
			}
			if l.CheckDelay(request.MaxWait) != nil {
				request.MaxWait = 0
			}
		}
		if request.Mode != Binary || r.IntN(2) == 0 {
			request.MaxWait = 0
		}
		requests = append(requests, request)
	}
	return requests
}

// A request of several zones and limits that is denied passes, if nothing else is
// charged, at the longest retry-after of them, and not 1 µs before.
func TestRetryAfterOfSeveralIsExact(t *testing.T) {
	denied, seeds := uint64(0), seedtest.Cases(t, uint64(6000))
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		requests, now := randomSeveral(t, r), start+r.Int64N(minute)
		for range 1 + r.IntN(30) {
			for i := range requests {
				requests[i].Cost = r.Int64N(3)
			}
			Take(requests, now)
			now += []Micros{0, 1, r.Int64N(100), r.Int64N(10_000), r.Int64N(minute)}[r.IntN(5)]
		}
		for i := range requests {
			requests[i].Cost = 1 + r.Int64N(4)
		}
		before := requests.copy()
		if Take(requests, now) {
			continue
		}
		wait := requests.retryAfter()
		switch early, later := requests.copy(), requests.copy(); {
		case wait <= 0:
			t.Errorf("denied without a retry-after")
		case wait == Forever:
			if Take(later, now+1000*minute) {
				t.Errorf("allowed, and was told never")
			}
		case Take(early, now+wait-1):
			t.Errorf("allowed 1 µs before the retry-after of %d", wait)
		case !Take(later, now+wait):
			t.Errorf("denied at the retry-after of %d%v", wait, later)
		default:
			denied++
		}
		for i, request := range requests {
			for j, c := range request.Checks {
				if request.Mode != Uniform && !c.Limit.algorithm.Calendar && (c.Decision.Charged != 0 || (&history{state: c.State}).text() != (&history{state: before[i].Checks[j].State}).text()) && c.Limit.withheld == 0 {
					t.Errorf("zone %d was charged for a denied request", i)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d:%v", seed, requests)
		}
	}
	if denied < seeds/6 {
		t.Errorf("only %d of %d were denied", denied, seeds)
	}
}

// A client sends its next request as soon as the last one has passed. It gets exactly the rate at
// any length of time, because nothing is rounded away or piles up.
func TestSequentialClientIsHeldToTheRate(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		l := h.limit
		if h.keepsLarger() || h.mode != Binary || l.CheckDelay(minute) != nil || l.WarmUp > 0 || l.algorithm.Name == "leaky_bucket" && l.Events > l.Burst {
			return
		}
		h.maxWait = maxSpan / 4
		cost := int64(1)
		whole := l.algorithm.Name != "fixed_window" && l.algorithm.Name != "leaky_bucket"
		if whole {
			cost = 1 + r.Int64N(l.Burst)
		}
		if whole && cost*l.Window < l.Events {
			return // more than one per µs
		}
		var first Micros
		held := false
		for k := int64(0); k < 100; {
			spent := l.algorithm.Name != "smooth" || h.state.A == l.Burst*l.window
			d := h.take(h.now, cost)
			if !d.Allowed {
				t.Fatalf("denied: %+v", d)
			}
			h.now += d.Wait
			if !held { // the one that finds nothing left counts as the first
				held = spent && d.Wait > 0
				first = h.now
				continue
			}
			k++
			least := ceilDiv(k*cost*l.Window, l.Events)
			most := least
			switch {
			case !whole: // events of them at once, of which the first may be any
				least, most = k/l.Events*l.Window, ceilDiv(k, l.Events)*l.Window
			case l.algorithm.Name == "smooth": // which rounds each wait up
				most += k
			default: // the first was rounded up
				least--
			}
			if passed := h.now - first; passed < least || passed > most {
				t.Fatalf("request %d of cost %d passes %d µs after the first, want %d to %d", k, cost, passed, least, most)
			}
		}
	})
}

// Two nodes with clocks that differ by up to a second get no more, in any span of true
// time, than is promised for that span and the difference.
func TestSkewedClocksAddNothing(t *testing.T) {
	eachHistory(t, func(t *testing.T, r *rand.Rand, h *history) {
		if h.chargesInFull() {
			return
		}
		skew := 1 + r.Int64N(min(2*h.limit.Window, second))
		h.charges = h.charges[:0]
		for range 40 {
			shown := h.now + skew*r.Int64N(2)
			if d := h.take(shown, 1+r.Int64N(2)); d.Allowed && d.Charged > 0 {
				h.charges = append(h.charges, charged{at: h.now, events: d.Charged})
			}
			h.now += []Micros{0, 1, r.Int64N(skew), r.Int64N(h.limit.Window)}[r.IntN(4)]
		}
		interval := h.limit.MinInterval
		relaxed := *h.limit
		relaxed.MinInterval = max(interval-skew, 0)
		h.limit = &relaxed
		h.withinBound(t, func(l *Limit, span Micros) int64 { return facts[l.algorithm.Name].bound(l, span+skew) })
	})
}
