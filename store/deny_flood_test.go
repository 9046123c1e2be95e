
// A request that only looks a ban up is denied by the remembered ban, and the other way round. A
// request with limits asks once if it would not know their waits, and they are known as long as the ban.
func TestDenyCacheBanLookup(t *testing.T) {
	const hour = 3_600_000_000
	withDenyCache(t, time.Millisecond, func(t *testing.T, c *store.DenyCache, r remote) {
		limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1, Window: 2 * hour})
		ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour})
		take := func(whole, allowed, asked bool) {
			t.Helper()
			requests := []store.Request{{Zone: "z", Key: "k", Ban: ban}}
			if whole {
				requests = request(1, limit)
				requests[0].Ban = ban
			}
			gotAllowed, gotAsked := takeAsked(t, c, r.failing, requests)
			if gotAllowed != allowed || gotAsked != asked {
				t.Errorf("allowed %v, asked %v, want %v, %v", gotAllowed, gotAsked, allowed, asked)
			}
			if o := requests[0].Outcome; whole && !allowed && o.Decisions[0].RetryAfter < hour {
				t.Errorf("the wait of the limit is lost: %+v", o)
			}
		}
		take(false, true, true)
		take(true, true, true)
		begins := request(1, limit)
		begins[0].Ban = ban
		if _, err := r.failing.Take(t.Context(), begins); err != nil { // by another instance
			t.Fatal(err)
		}
		take(false, false, true)
		take(false, false, false)
		take(true, false, true)
		take(true, false, false)
		take(false, false, false)
		time.Sleep(750 * time.Millisecond)
		take(false, false, true)
		take(true, false, false)
	})
}
