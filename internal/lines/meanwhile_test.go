package lines

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A slot that is given back while the first request asks isn't forgotten, although that request takes the last slot that
// the store knew of. It doesn't matter either if the request is denied, or leaves.
func TestSlotGivenBackMeanwhile(t *testing.T) {
	for _, end := range []string{"takes the last slot", "is denied", "leaves"} {
		s, now := NewSlots(second, 4*second), hour
		first, next := newWaiting(now, "z"), newWaiting(now+1, "z")
		s.Join(first, 0, now)
		s.Join(next, 0, now)
		if step, _ := s.Look(first, now); step != Ask {
			t.Fatalf("step %d", step)
		}
		s.Wake(first.gaveBack())
		first.Requests[0].Outcome.Slots.InFlight = 1 // of 1
		switch end {
		case "takes the last slot":
			s.Answered(first, true, now)
		case "is denied":
			first.Requests[0].Outcome.Verdict = store.Denied
			first.Requests[0].Outcome.Decisions = []algorithms.Decision{{}} // by a limit, too
			s.Answered(first, false, now)
		default:
			s.Leave(first, now)
		}
		if step, wait := s.Look(next, now); step != Ask {
			t.Errorf("the first %s: the next waits for %d", end, wait)
		}
	}
}

// The charge of a request that has left is given back at once if all other requests of its key wait for slots, because
// these aren't charged.
func TestRefundBesideWaiting(t *testing.T) {
	for waiting := range 3 {
		refunds := 0
		places := NewPlaces(func(any, []store.Correction) { refunds++ })
		policy := &Policy{MaxDelay: hour, MaxPlaces: 100, Places: places}
		request := func() *Request {
			limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 1000})
			if err != nil {
				t.Fatal(err)
			}
			r := &Request{Wake: func(Micros) {}, Zones: []Zone{{Policy: policy}}}
			r.Requests = []store.Request{{
				Zone: "z", Key: "k", Slots: &store.Slots{ID: "s", Limit: 1}, Limits: []store.Limit{store.NewLimit("z", "", limit)},
				Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true, Charged: 1}}},
			}}
			if !r.Reserve(always) {
				t.Fatal("no place is free")
			}
			return r
		}
		s := NewSlots(second, 4*second)
		leaves := request()
		leaves.Hold(nil)
		for range waiting {
			s.Join(request(), 0, hour)
		}
		if leaves.Abandon(); refunds != 1 {
			t.Errorf("beside %d requests that wait: %d refunds, want 1", waiting, refunds)
		}
	}
}
