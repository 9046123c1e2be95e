package redisstore

import (
	"cmp"
	"context"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// In Redis the slots of a key are a sliding log. So that none is lost for long with an
// instance that is killed, a slot expires unless its instance renews it, as long as the
// request is in flight.

// DefaultSlotExpiry is how long a slot is held that is neither given back nor renewed.
const DefaultSlotExpiry = 30 * time.Second

// slot is one that a request holds.
type slot struct {
	mu sync.Mutex // held while the slot is renewed or given back
	credit
	ended bool
	// invented reports whether the slot was taken at an instant of the caller's choice. Then it
	// isn't renewed.
	invented bool
}

// slotName says whose slots these are. Which of a name's slots a request holds makes no
// difference.
type slotName struct{ key, id string }

// slotTable holds the slots that requests of this process have taken from one store, and
// renews them in time.
type slotTable struct {
	expiry time.Duration
	renew  func([]*slot) // locked ones that have not ended

	mu    sync.Mutex
	slots map[slotName][]*slot
	timer *time.Timer // of the next turn; nil if there were no slots at the last
}

func newSlotTable(expiry time.Duration, renew func([]*slot)) *slotTable {
	return &slotTable{expiry: expiry, renew: renew, slots: make(map[slotName][]*slot)}
}

// hold notes slots that were taken.
func (t *slotTable) hold(taken []credit, invented bool) {
	if len(taken) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range taken {
		name := slotName{c.key, c.id}
		t.slots[name] = append(t.slots[name], &slot{credit: c, invented: invented})
	}
	if t.timer == nil && !invented {
		t.timer = time.AfterFunc(t.expiry/3, t.turn)
	}
}

// leave returns the credit of a slot that is no longer held.
func (t *slotTable) leave(key, id string) (c credit, ok bool) {
	name := slotName{key, id}
	t.mu.Lock()
	held := t.slots[name]
	if len(held) == 0 {
		t.mu.Unlock()
		return credit{}, false
	}
	s := held[len(held)-1]
	if held[len(held)-1] = nil; len(held) > 1 {
		t.slots[name] = held[:len(held)-1]
	} else {
		delete(t.slots, name)
	}
	t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return s.credit, true
}

// turn renews all slots. What fails is tried again at the next turn, of which there is one
// as long as there are slots.
func (t *slotTable) turn() {
	began := time.Now()
	t.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(t.slots))...)
	all = slices.DeleteFunc(all, func(s *slot) bool { return s.invented })
	if len(all) == 0 {
		t.timer = nil
	}
	t.mu.Unlock()
	if len(all) == 0 {
		return
	}
	t.renewAll(all)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(max(t.expiry/3-time.Since(began), time.Millisecond), t.turn)
}

// The bounds of renewals: a Redis that is far away is waited for, and slots may not expire
// meanwhile.
const (
	renewedAtOnce   = 128 // slots in one call at most; their work can make it fewer
	renewalsAtATime = 4   // calls under way
)

// renewAll renews slots, the oldest first: these are at the near end of a log.
func (t *slotTable) renewAll(all []*slot) {
	for _, s := range all {
		s.mu.Lock()
	}
	slices.SortFunc(all, func(a, b *slot) int { return cmp.Compare(a.receipt.A, b.receipt.A) })
	for _, s := range all {
		s.mu.Unlock()
	}
	var calls sync.WaitGroup
	room := make(chan struct{}, renewalsAtATime)
	for len(all) > 0 {
		n, work := 1, slotBackWork(all[0])
		for n < min(len(all), renewedAtOnce) && work+slotBackWork(all[n]) <= algorithms.MostWork {
			work += slotBackWork(all[n])
			n++
		}
		few := all[:n]
		all = all[n:]
		room <- struct{}{}
		calls.Go(func() {
			t.renewFew(few)
			<-room
		})
	}
	calls.Wait()
}

func (t *slotTable) renewFew(slots []*slot) {
	var held []*slot
	for _, s := range slots {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			held = append(held, s)
		}
	}
	if len(held) > 0 {
		t.renew(held)
	}
}

var slotAlgorithm, _ = algorithms.Lookup("sliding_log")

// algorithmOf returns the algorithm of a limit or of slots.
func algorithmOf(of any) *algorithms.Algorithm {
	if l, ok := of.(*algorithms.Limit); ok {
		return l.Algorithm()
	}
	return slotAlgorithm
}

// banWork is the work of a ban; see [algorithms.MostWork].
const banWork = 100

// slotWork is the work to take a slot.
func slotWork(s *store.Slots) int64 { return 100 + 50*int64(bits.Len64(uint64(s.Limit))) }

// slotBackWork is the work to renew a slot.
func slotBackWork(s *slot) int64 {
	limit := int64(s.of.(slotLimit))
	return 220 + 80*int64(bits.Len64(uint64(limit))) + limit/5
}

// refunds returns the credits that a correction gives back, and forgets the slot among them.
func (t *slotTable) refunds(c store.Correction) (credits []credit) {
	r := c.Request
	for j, d := range r.Outcome.Decisions {
		if events := min(c.Refund, d.Charged); events > 0 {
			credits = append(credits, credit{r.Key, r.Limits[j].ID, r.Limits[j].Limit, d.Receipt, events})
		}
	}
	if c.Leave && r.Outcome.Slots.Taken {
		if left, ok := t.leave(r.Key, r.Slots.ID); ok && left.events > 0 {
			credits = append(credits, left)
		}
	}
	return credits
}

// correct makes corrections in their order: refund gives back, and take charges in addition.
// It returns the first error.
func (t *slotTable) correct(corrections []store.Correction, refund func([]credit) error, take func([]store.Request) error) (err error) {
	var credits []credit
	for _, c := range corrections {
		if credits = append(credits, t.refunds(c)...); c.Charge > 0 {
			err = cmp.Or(err, refund(credits))
			credits = nil
			r := c.Request
			more := store.Request{Zone: r.Zone, Key: r.Key, Limits: r.Limits, Mode: algorithms.Force, Cost: c.Charge}
			err = cmp.Or(err, take([]store.Request{more}))
		}
	}
	return cmp.Or(err, refund(credits))
}

// Left notes slots that are no longer held, without asking Redis: they expire.
func (s *Store) Left(corrections []store.Correction) {
	for i := range corrections {
		if c := &corrections[i]; c.Leave && c.Request.Outcome.Slots.Taken {
			s.slots.leave(c.Request.Key, c.Request.Slots.ID)
		}
	}
}

// recharge renews slots in one script call, before the deadline of ctx. If it comes too late
// by the clock of Redis that was known, it is made once more, by what is known now.
func (s *Store) recharge(ctx context.Context, asking bool, slots []*slot) error {
	err := s.rechargeOnce(ctx, asking, slots)
	if err == errLate && ctx.Err() == nil {
		err = s.rechargeOnce(ctx, asking, slots)
	}
	return classify(ctx, err)
}

func (s *Store) rechargeOnce(ctx context.Context, asking bool, slots []*slot) error {
	conns := s.acquire()
	defer s.release(conns)
	deadline, _ := ctx.Deadline()
	last, err := s.lastInstant(ctx, conns, 0, deadline)
	if err != nil {
		return err
	}
	const roomy slotLimit = 1 << 31 // a request is in flight, even if others have taken its slot
	credits := make([]credit, len(slots))
	for i, slot := range slots {
		credits[i] = credit{slot.key, slot.id, roomy, slot.receipt, 1}
	}
	keys, argv := s.format().encodeRefund(credits, 0, last)
	sent := time.Now()
	reply := s.run(ctx, conns, asking, command{s.script(s.renews, algorithms.Set.RenewScript, algorithms.Set(0).With(slotAlgorithm)), keys, argv})[0]
	if reply.err != nil {
		return reply.err
	}
	r := &reader{reply: reply.values}
	at, late := r.decodeHead()
	if r.err == nil {
		s.watch(at, sent)
	}
	if late {
		return errLate
	}
	failed := r.decodeRenewal(slots)
	return cmp.Or(r.end(), failed)
}

// renewSlots is what the table of the store renews with.
func (s *Store) renewSlots(slots []*slot) {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.Timeout)
	defer cancel()
	_ = s.recharge(ctx, false, slots)
}

// renewSlots is what the table of the cluster renews with.
func (c *Cluster) renewSlots(slots []*slot) {
	byKey := make(map[string][]*slot)
	for _, s := range slots {
		byKey[s.key] = append(byKey[s.key], s)
	}
	var all sync.WaitGroup
	for key, some := range byKey {
		all.Go(func() {
			_ = c.at(context.Background(), key, func(s *Store, deadline time.Time, asking bool) error {
				waiting, cancel := context.WithDeadline(context.Background(), deadline)
				defer cancel()
				return s.recharge(waiting, asking, some)
			})
		})
	}
	all.Wait()
}
