package storetest

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// testReserved uses up limits with reserved events. A request beyond them isn't denied while it would fit without them. No
// ban counts it. It passes when one gives its events back, and it is denied when all are final.
func testReserved(t *testing.T, s Store) {
	const now = 3_000_000_000
	for _, q := range Quotas(3, 1000*minute) {
		t.Run(q.Algorithm, func(t *testing.T) {
			zone := "reserved " + q.Algorithm
			ban := &store.Ban{Ban: &algorithms.Ban{After: 1, Window: minute, Duration: minute, Max: minute}, ID: store.BanID(zone, "")}
			ask := func(cost int64) []store.ZoneRequest {
				r := newRequest(zone, "k", cost, Limit(t, zone, q))
				r[0].ReservedID, r[0].Ban = store.ReservedID(zone, ""), ban
				return r
			}
			want := func(r []store.ZoneRequest, verdict store.Verdict, reserved bool, events, added int64) {
				t.Helper()
				takeAt(t, s, now, r)
				o := r[0].Outcome
				if d := o.Decisions[0]; o.Verdict != verdict || d.Reserved != reserved || reserved && d.RetryAfter != algorithms.ReservedRetryAfter {
					t.Errorf("verdict %d, decision %+v, want %d, reserved %v", o.Verdict, d, verdict, reserved)
				}
				if o.Reserved != (store.ReservedOutcome{Events: events, Added: added}) {
					t.Errorf("%+v, want %d events, of which %d are its own", o.Reserved, events, added)
				}
			}
			settle := func(r []store.ZoneRequest, refund int64) {
				correctAt(t, s, now, store.Correction{Request: &r[0], Refund: refund, Settled: true})
			}
			var taken [][]store.ZoneRequest
			for n := range int64(3) {
				r := ask(1)
				want(r, store.Allowed, false, n+1, 1)
				taken = append(taken, r)
			}
			if q.Algorithm == "smooth" { // a request pays for the one before, so another order of refunds gives nothing back
				return
			}
			want(ask(0), store.Allowed, false, 3, 0)
			want(ask(1), store.Denied, true, 3, 0)
			want(ask(3), store.Denied, true, 3, 0)
			look := ask(1)
			look[0].Peek = true
			want(look, store.Denied, true, 3, 0)
			settle(taken[2], 1)
			last := ask(1)
			want(last, store.Allowed, false, 3, 1)
			for _, r := range [][]store.ZoneRequest{taken[0], taken[1], last} {
				settle(r, 0)
			}
			want(ask(0), store.Allowed, false, 0, 0)
			denied := ask(4)
			want(denied, store.Denied, false, 0, 0)
			if !denied[0].Outcome.Ban.Began || denied[0].Outcome.Decisions[0].RetryAfter != algorithms.Forever {
				t.Errorf("%+v, want a ban that begins with the first denial", denied[0].Outcome)
			}
		})
	}
}
