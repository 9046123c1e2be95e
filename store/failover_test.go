package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// While the store fails, a failover decides by the Share of each limit. It gives back to the store that
// charged.
func TestFailover(t *testing.T) {
	f := newFailing()
	var failures []error
	s := store.NewFailover(f, store.NewSharedMemory().Bounded(1000, zoneCount(1), nil), func(err error) { failures = append(failures, err) })
	limit := fixedWindow(t, 6, time.Hour)
	share, err := limit.Limit.Share(1, 3)
	if err != nil {
		t.Fatal(err)
	}
	limit.Share = share
	slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 10, Share: 3}
	takeOne := func() []store.ZoneRequest {
		r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}, Slots: slots, Override: &store.Override{}}}
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	remaining := func(want int64) []store.ZoneRequest {
		t.Helper()
		r := takeOne()
		if got := r[0].Outcome.Decisions[0].Remaining; got != want {
			t.Errorf("%d remaining, want %d", got, want)
		}
		return r
	}
	inFlight := func(r []store.ZoneRequest, want int64, local bool) []store.ZoneRequest {
		t.Helper()
		if o := r[0].Outcome; o.Local != local || o.Slots.InFlight != want || r[0].Slots != slots || r[0].Override == nil {
			t.Errorf("%+v, want %d in flight, local %v", o, want, local)
		}
		return r
	}
	back := func(r []store.ZoneRequest) {
		s.Correct([]store.Correction{{Request: &r[0], Refund: 1, Leave: true}}, func(err error) { t.Error(err) })
	}
	charged := inFlight(remaining(5), 1, false)
	f.fail(errGone)
	local := inFlight(remaining(1), 2, true)
	second := inFlight(remaining(0), 3, true)
	denied := func(what string) {
		t.Helper()
		if o := takeOne()[0].Outcome; o.Verdict != store.Denied || o.Decisions[0].Allowed || !o.Local {
			t.Errorf("%s: %+v", what, o)
		}
	}
	denied("past the share")
	s.Correct([]store.Correction{{Request: &local[0], Charge: 1}}, func(err error) { t.Error(err) }) // a debt of this process
	back(local)
	denied("with a debt")
	back(second)
	inFlight(remaining(0), 2, true)
	f.fail(nil)
	inFlight(remaining(4), 3, false)
	back(charged)
	inFlight(remaining(4), 3, false)
	if len(failures) != 5 {
		t.Errorf("%d failures reported, want 5", len(failures))
	}
	peek := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Peek: true, Limits: []store.Limit{limit}, Slots: slots, Override: &store.Override{}}}
	if allowed, failure, err := s.Peek(t.Context(), peek); !allowed || failure != nil || err != nil || peek[0].Outcome.Decisions[0].Remaining != 4 {
		t.Errorf("a peek: %v, %v, %v, %+v", allowed, failure, err, peek[0].Outcome)
	}
	inFlight(peek, 3, false)
	f.fail(errGone)
	if allowed, failure, err := s.Peek(t.Context(), peek); allowed || failure != errGone || err != nil || peek[0].Outcome.Decisions[0].Remaining != 0 {
		t.Errorf("a peek in an outage: %v, %v, %v, %+v", allowed, failure, err, peek[0].Outcome)
	}
	inFlight(peek, 3, true)
	if len(failures) != 5 {
		t.Errorf("%d failures reported after a peek, want 5", len(failures))
	}
	for _, err := range []error{&store.OverriddenError{}, &store.Error{Reason: store.ReasonBusy, Err: errGone}} {
		f.fail(err)
		if _, failure, got := s.Peek(t.Context(), peek); failure != nil || got != err {
			t.Errorf("a peek in spite of %v: %v, %v", err, failure, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.fail(context.Canceled)
	if _, err := s.Take(ctx, charged); !errors.Is(err, context.Canceled) || len(failures) != 5 {
		t.Errorf("a caller that has left: %v, %d failures", err, len(failures))
	}
}

// The requests of one Correct may have been decided by both stores.
func TestFailoverGivesBackWhereItCharged(t *testing.T) {
	f, local := newFailing(), store.NewSharedMemory().Bounded(1000, zoneCount(1), nil)
	limit := fixedWindow(t, 5, time.Hour)
	slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 3}
	s := store.NewFailover(f, local, func(error) {})
	var charged []store.ZoneRequest
	for _, failure := range []error{nil, errGone, nil} {
		f.fail(failure)
		one := []store.ZoneRequest{{Zone: "z", Key: "k", Limits: []store.Limit{limit}, Slots: slots, Cost: 1}}
		if allowed, err := s.Take(t.Context(), one); !allowed || err != nil {
			t.Fatal(allowed, err)
		}
		charged = append(charged, one[0])
	}
	s.Correct(append(storetest.Refunds(charged, 1), storetest.Leaves(charged)...), func(err error) { t.Error(err) })
	for name, budgets := range map[string]store.Store{"the main store": f.Store, "the local store": local} {
		peek := []store.ZoneRequest{{Zone: "z", Key: "k", Limits: []store.Limit{limit}, Slots: slots}}
		_, err := budgets.Take(t.Context(), peek)
		if o := peek[0].Outcome; err != nil || o.Slots.InFlight != 1 || o.Decisions[0].Remaining != 5 {
			t.Errorf("in %s: %+v, %v; want 5 remaining, and 1 in flight", name, o, err)
		}
	}
}
