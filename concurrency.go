package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A request that is under way holds a slot of its key in every zone with concurrency. In
// the store a slot is an event of a sliding log, taken together with what the zone's
// limits charge, and given back when the response has ended. So that none is lost for
// long with an instance that is killed, it lasts no longer than slotExpiry unless it is
// renewed, which its instance does while the request is under way.

// slotExpiry is how long a slot is held that is neither given back nor renewed. Only tests
// change it.
var slotExpiry = 30 * time.Second

// mostConcurrency is the most requests in flight that a zone can allow. It bounds the search
// for a slot that is given back.
const mostConcurrency = algorithms.MostLogged

// slotRetry is what clients are told who find no slot: nobody knows when a request ends.
const slotRetry algorithms.Micros = 1_000_000

func checkConcurrency(n int64) error {
	if n < 1 || n > mostConcurrency {
		return fmt.Errorf("concurrency must be from 1 to %d, not %d: write how many requests of a key may be in flight at the same time", mostConcurrency, n)
	}
	return nil
}

// checkAlone judges a zone without limits, which has concurrency alone: what is about
// limits means nothing in it.
func (c *Zone) checkAlone() error {
	if c.RuntimeOverrides {
		return nil
	}
	for _, t := range c.Override {
		if t != nil && !t.Unlimited {
			return nil
		}
	}
	for _, option := range []struct {
		name string
		set  bool
	}{{"cost", c.Cost != ""}, {"mode", c.Mode != ""}, {"factor", c.Factor != ""}, {"delay", c.Delay != nil}, {"settle", c.Settle != nil}} {
		if option.set {
			return fmt.Errorf("%s means nothing for concurrency alone, which counts requests: leave it out, or write a limit, such as token_bucket 10 1s", option.name)
		}
	}
	return nil
}

// slotLimit is the limit that n slots are.
func slotLimit(n int64) (*algorithms.Limit, error) {
	return algorithms.NewLimit(algorithms.Quota{Algorithm: "sliding_log", Events: n, Window: slotExpiry.Microseconds()})
}

// readySlots makes the terms by which slots are taken, or nil for none.
func readySlots(n int64, outage outagePolicy) (*terms, error) {
	if n == 0 {
		return nil, nil
	}
	l, err := slotLimit(n)
	if err != nil {
		return nil, err
	}
	roomy, err := slotLimit(mostConcurrency)
	if err != nil {
		return nil, err
	}
	t := &terms{ofSlots: true, ready: []*algorithms.Limit{l}, roomy: roomy}
	if outage.num < outage.den {
		part, err := l.Part(outage.num, outage.den)
		if err != nil {
			return nil, err
		}
		t.parts = []*algorithms.Limit{part}
	}
	return t, nil
}

// slotPolicy is the item of slots in RateLimit-Policy.
func slotPolicy(label string, n int64) string {
	return strconv.Quote(label) + ";q=" + strconv.FormatInt(n, 10) + `;qu="concurrent-requests"`
}

// slot is what a request holds in one zone.
type slot struct {
	handler *Handler
	work    int64 // to renew it; see [algorithms.MostWork]

	mu      sync.Mutex // held while the slot is renewed or given back
	request store.Request
	ended   bool
}

// holdSlots notes which slots a request holds from now on, and says of those that it was
// told of what clients can make use of.
func (a *answer) holdSlots() {
	for i, t := range a.terms {
		if !t.ofSlots {
			continue
		}
		r := a.requests[i]
		d := &r.Decisions[0]
		if d.Charged > 0 {
			s := &slot{handler: a.handler, work: r.Limits[0].BackWork(), request: r}
			s.request.Decisions = slices.Clone(r.Decisions)
			// It is renewed even if others have taken what it had: the request is under way.
			s.request.Limits = []store.Limit{{Limit: t.roomy, ID: r.Limits[0].ID}}
			a.slots = append(a.slots, s)
			underWay.add(s)
		}
		if d.Unknown() {
			continue
		}
		d.MoreAfter, d.ResetAfter = 0, 0
		if d.Remaining < r.Limits[0].Burst {
			d.ResetAfter = slotRetry
		}
		if !d.Allowed {
			d.MoreAfter, d.RetryAfter = slotRetry, slotRetry
		}
	}
}

// asksSlots tells whether the request has to hold slots.
func (a *answer) asksSlots() bool {
	return slices.ContainsFunc(a.terms, func(t *terms) bool { return t.ofSlots })
}

// leaveSlots gives back the slots that the request holds.
func (a *answer) leaveSlots(ctx context.Context) {
	for _, s := range a.slots {
		underWay.remove(s)
		s.leave(context.WithoutCancel(ctx))
	}
}

// leave gives the slot back. If that fails, it expires.
func (s *slot) leave(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if err := s.handler.store.Refund(ctx, []store.Request{s.request}, 1); err != nil {
		s.handler.failed(fmt.Errorf("giving back the slot of a request that has ended: %w", err))
	}
}

// underWay holds the slots of all requests of this process. Like the requests they
// outlive configurations.
var underWay = &slotTable{slots: make(map[*slot]struct{})}

// slotTable renews slots in time.
type slotTable struct {
	mu    sync.Mutex
	slots map[*slot]struct{}
	timer *time.Timer // of the next turn; nil if there were no slots at the last
}

func (t *slotTable) add(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[s] = struct{}{}
	if t.timer == nil {
		t.timer = time.AfterFunc(slotExpiry/3, t.turn)
	}
}

func (t *slotTable) remove(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.slots, s)
}

// turn renews all slots. What fails is tried again at the next turn, of which there is one
// as long as there are slots.
func (t *slotTable) turn() {
	began := time.Now()
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.slots))
	if len(all) == 0 {
		t.timer = nil
	}
	t.mu.Unlock()
	if len(all) == 0 {
		return
	}
	slots := make(map[*Handler][]*slot)
	for _, s := range all {
		slots[s.handler] = append(slots[s.handler], s)
	}
	var handlers sync.WaitGroup // a Redis that hangs holds up nobody else's
	for h, some := range slots {
		handlers.Go(func() { h.renew(some) })
	}
	handlers.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(max(slotExpiry/3-time.Since(began), time.Millisecond), t.turn)
}

// renewedAtOnce is the most slots renewed in one call of a store. Their work can make it
// fewer.
const renewedAtOnce = 128

// renewalsAtATime is how many such calls are under way at the same time: a Redis that is far away
// is waited for, and slots may not expire meanwhile.
const renewalsAtATime = 4

// renew renews the handler's slots, the oldest first: these are at the near end of what
// the store holds.
func (h *Handler) renew(slots []*slot) {
	slices.SortFunc(slots, func(a, b *slot) int {
		return cmp.Compare(a.request.Decisions[0].Receipt.A, b.request.Decisions[0].Receipt.A)
	})
	var calls sync.WaitGroup
	room := make(chan struct{}, renewalsAtATime)
	for len(slots) > 0 {
		n, work := 1, slots[0].work
		for n < min(len(slots), renewedAtOnce) && work+slots[n].work <= algorithms.MostWork {
			work += slots[n].work
			n++
		}
		few := slots[:n]
		slots = slots[n:]
		room <- struct{}{}
		calls.Go(func() {
			h.renewFew(few)
			<-room
		})
	}
	calls.Wait()
}

func (h *Handler) renewFew(slots []*slot) {
	var requests []store.Request
	for _, s := range slots {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			requests = append(requests, s.request) // with the memory of its decision
		}
	}
	if len(requests) == 0 {
		return
	}
	if err := h.store.Renew(context.Background(), requests); err != nil {
		h.failed(fmt.Errorf("renewing the slots of requests under way: %w", err))
	}
}
