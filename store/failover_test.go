package store_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
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
	errtest.None(t, err)
	limit.Share = share
	slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 10, Share: 3}
	takeOne := func() []store.ZoneRequest {
		r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}, Slots: slots, Override: &store.Override{}}}
		errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
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

// manyFailures is a store that fails to make corrections, each by itself, as a cluster of which each key is on another node.
type manyFailures struct{ store.Store }

func (manyFailures) Correct(corrections []store.Correction, failed func(error)) {
	for range corrections {
		failed(errors.New("it fails"))
	}
}

// The local store is charged once what the main store may have lost, however many corrections of a request fail.
func TestFailoverChargesOnce(t *testing.T) {
	local := store.NewMemory(1000)
	limit := fixedWindow(t, 10, time.Hour)
	take := func(s store.Store, key string, cost int64) store.ZoneRequest {
		r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: cost, Limits: []store.Limit{limit}}}
		errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
		return r[0]
	}
	f := store.NewFailover(manyFailures{store.NewMemory(1000)}, local, func(error) {})
	var corrections []store.Correction
	failures := 0
	for _, key := range []string{"a", "b", "c"} {
		r := take(f, key, 1)
		corrections = append(corrections, store.Correction{Request: &r, Charge: 2})
	}
	f.Correct(corrections, func(error) { failures++ })
	for _, key := range []string{"a", "b", "c"} {
		if r := take(local, key, 0); r.Outcome.Decisions[0].Remaining != 8 || failures != 3 {
			t.Errorf("%s: %d remain after %d failures, want 8 after 3", key, r.Outcome.Decisions[0].Remaining, failures)
		}
	}
}

// A ban doesn't apply while the store fails, once the denial is no longer remembered. It applies again afterwards, and ends
// when it would have ended without the outage.
func TestFailoverForgetsBan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		b := store.NewBreaker(f, nil)
		defer b.Close()
		local := store.NewSharedMemory().Bounded(1000, zoneCount(1), nil)
		s := store.NewDenyCache(store.NewFailover(b, local, func(error) {}))
		const hour = 3_600_000_000
		limit := fixedWindow(t, 2, time.Hour)
		ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour})
		began := time.Now()
		take := func(when string, want store.Verdict, local bool) {
			t.Helper()
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{limit}, Ban: ban}}
			errtest.None(t, errtest.Of(s.Take(t.Context(), r)))
			o := r[0].Outcome
			if o.Verdict != want || o.Local != local {
				t.Errorf("%s, after %v: %v, local %v, want %v, local %v", when, time.Since(began), o.Verdict, o.Local, want, local)
			}
			if ends := hour - time.Since(began).Microseconds(); want == store.Banned && !local && o.Ban.EndsAfter != ends {
				t.Errorf("%s: the ban ends after %d µs, want %d", when, o.Ban.EndsAfter, ends)
			}
		}
		take("before", store.Allowed, false)
		take("before", store.Allowed, false)
		take("before", store.Denied, false)
		f.fail(errGone)
		time.Sleep(2 * time.Second) // longer than a denial is remembered
		take("in the outage", store.Allowed, true)
		take("in the outage", store.Allowed, true)
		take("in the outage", store.Denied, true)
		f.fail(nil)
		time.Sleep(10 * time.Second) // the breaker checks the store in this time
		take("afterwards", store.Banned, false)
		time.Sleep(30 * time.Minute)
		take("much later", store.Banned, false)
		time.Sleep(30 * time.Minute)
		take("after the ban", store.Allowed, false)
	})
}

// A hold stands in the local store, too, if its response came here or it has denied a request here. So it stays when an outage
// begins, and begins when the store fails already.
func TestFailoverHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailing()
		s := store.NewFailover(f, store.NewSharedMemory().Bounded(1000, zoneCount(1), nil), func(error) {})
		const minute = 60_000_000
		hold := storetest.Ban(t, "z", algorithms.Ban{Window: 1, Duration: minute, Max: minute})
		take := func(when, key string, ends algorithms.Micros) {
			t.Helper()
			r := []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{fixedWindow(t, 2, time.Hour)}, Ban: hold}}
			if allowed, err := s.Take(t.Context(), r); allowed != (ends == 0) || err != nil || r[0].Outcome.Ban.EndsAfter != ends {
				t.Errorf("%s, key %s: allowed %v, %v, %+v", when, key, allowed, err, r[0].Outcome.Ban)
			}
		}
		change := func(s store.Store, key string) error {
			return s.Change(t.Context(), store.Change{Zone: "z", Key: key, Ban: []*store.Ban{hold}, BanFor: minute, Holds: true})
		}
		errtest.None(t, change(s, "here"))
		errtest.None(t, change(f, "met"))
		errtest.None(t, change(f, "elsewhere"))
		time.Sleep(time.Second)
		take("before", "met", minute-1_000_000)
		f.fail(errGone)
		errtest.Says(t, change(s, "in the outage"), errGone.Error())
		take("in the outage", "here", minute-1_000_000)
		take("in the outage", "met", minute-1_000_000)
		take("in the outage", "elsewhere", 0)
		take("in the outage", "in the outage", minute)
	})
}
