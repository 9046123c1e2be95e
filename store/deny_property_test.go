package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If the cache denies a request, the store denies it at that instant, too, by the same limits
// or bans, and for at least as long. All other requests the store has decided, also those that are charged or begin a
// budget although they are denied.
func TestDenyCacheIsRight(t *testing.T) {
	hits := make(map[string]int)
	cases := seedtest.Cases(t, uint64(280))
	for seed := range cases {
		synctest.Test(t, func(t *testing.T) { checkDenyCache(t, seed, hits) })
		if t.Failed() {
			return
		}
	}
	names := []string{"ban", "ban looked up", "ban not looked up", "slots"}
	for _, a := range algorithms.All() {
		names = append(names, a.Name)
	}
	for _, name := range names {
		if t.Logf("%s denied from the cache %d times", name, hits[name]); uint64(hits[name]) < cases/8 { // also with few cases
			t.Errorf("%s was denied from the cache only %d times", name, hits[name])
		}
	}
}

// checkDenyCache runs a random program: requests of one or two zones through the cache,
// and others past it, as from another instance.
func checkDenyCache(t *testing.T, seed uint64, hits map[string]int) {
	rng := rand.New(rand.NewPCG(seed, 7))
	f := newFailing()
	c := store.NewDenyCache(remote{f, time.Duration(rng.IntN(3)) * time.Millisecond})
	windows := []algorithms.Micros{1_000, 50_000, 700_003, 3_000_000, 100_000_000}
	quotas := storetest.Variants(1+rng.Int64N(6), windows[rng.IntN(len(windows))])
	var limits [2][]store.Limit
	for z := range limits {
		for _, i := range rng.Perm(len(quotas))[:1+rng.IntN(2)] {
			limits[z] = append(limits[z], storetest.Limit(t, fmt.Sprint("z", z), quotas[i]))
		}
	}
	var bans [2]*store.Ban // of some zones
	var slots [2]*store.Slots
	for z := range bans {
		zone := fmt.Sprint("z", z)
		if rng.IntN(3) == 0 {
			length := 1 + rng.Int64N(3_000_000)
			bans[z] = storetest.Ban(t, zone, algorithms.Ban{After: 1 + rng.Int64N(3), Window: 5_000_000, Duration: length, Max: 4 * length})
		}
		if rng.IntN(5) == 0 {
			slots[z] = &store.Slots{ID: store.SlotsID(zone, ""), Limit: 1 + rng.Int64N(2)}
		}
	}
	random := func() (requests []store.ZoneRequest) {
		for z := range 1 + rng.IntN(2) {
			r := store.ZoneRequest{Zone: fmt.Sprint("z", z), Key: fmt.Sprint(rng.IntN(2)), Cost: rng.Int64N(5), Shadow: rng.IntN(8) == 0}
			r.Outcome = store.Outcome{ // of an earlier request
				Verdict: store.Banned, Cached: true, Local: true,
				Slots: store.SlotsOutcome{Taken: true}, Ban: store.BanOutcome{Stands: true},
			}
			factor, wait := int64(1+rng.IntN(3))*500_000, rng.Int64N(2)*rng.Int64N(200_000)
			for _, l := range limits[z] {
				if l.Scalable() && l.Initial == nil {
					l.Limit = l.Scaled(factor)
				}
				if l.CheckDelay(wait) != nil {
					wait = 0
				}
				r.Limits = append(r.Limits, l)
			}
			r.MaxWait = wait
			if rng.IntN(20) == 0 && !strings.Contains(fmt.Sprint(r.Limits), "smooth") {
				r.Mode, r.MaxWait = algorithms.Mode(rng.IntN(4)), 0
			}
			r.Ban, r.Slots = bans[z], slots[z]
			if r.Ban != nil && rng.IntN(3) == 0 { // only looks the ban up
				r.Limits, r.Slots, r.Cost, r.MaxWait, r.Mode = nil, nil, 0, 0, algorithms.Binary
			}
			requests = append(requests, r)
		}
		return requests
	}
	var held []store.ZoneRequest
	for range 200 {
		for len(held) > 0 && rng.IntN(2) == 0 { // in another instance
			last := len(held) - 1
			f.Correct([]store.Correction{{Request: &held[last], Leave: true}}, nil)
			held = held[:last]
		}
		requests := random()
		if rng.IntN(8) == 0 { // in another instance
			_, _ = f.Take(t.Context(), requests)
			held = append(held, requests...)
			continue
		}
		allowed, asked := takeAsked(t, c, f, requests)
		held = append(held, requests...)
		denies := slices.ContainsFunc(requests, func(r store.ZoneRequest) bool { return r.Outcome.Cached && !r.Shadow })
		if denies == asked || !asked && allowed {
			t.Fatalf("seed %d: asked %v, allowed %v: %+v", seed, asked, allowed, requests)
		}
		if !asked {
			checkCached(t, seed, f, requests, hits)
		}
		time.Sleep(time.Duration(rng.Int64N(2)*rng.Int64N(rng.Int64N(400_000)+1)) * time.Microsecond) // virtual time
	}
}

// checkCached checks an answer of the cache against that of the store.
func checkCached(t *testing.T, seed uint64, f *failing, requests []store.ZoneRequest, hits map[string]int) {
	const trip = 2000 // at most: decisions age from when the answer came
	check := slices.Clone(requests)
	for i := range check {
		check[i].Outcome = store.Outcome{}
	}
	if allowed, _ := f.Take(t.Context(), check); allowed {
		t.Fatalf("seed %d: the store allows a request that the cache denied: %+v\nthe store: %+v", seed, requests, check)
	}
	for i, r := range requests {
		o, actual := r.Outcome, check[i].Outcome
		if o.Cached && (o.At > actual.At || o.At < actual.At-2*trip) || !o.Cached && o.At != 0 {
			t.Fatalf("seed %d: answered at %d, the store decides at %d", seed, o.At, actual.At)
		}
		if r.Ban == nil && r.Mode != algorithms.Binary {
			t.Fatalf("seed %d: the store was not asked in mode %v", seed, r.Mode)
		}
		decided := 0
		for j, d := range o.Decisions {
			if d.NotAsked {
				if d != (algorithms.Decision{NotAsked: true, RetryAfter: d.RetryAfter}) ||
					r.Ban == nil && (d.RetryAfter != 0 || r.Limits[j].KeptAfterReset()) {
					t.Fatalf("seed %d: %+v of a limit that was not asked", seed, d)
				}
				continue
			}
			decided++
			hits[r.Limits[j].Quota.Algorithm]++
			if actual.Decisions[j].Allowed || d.Allowed || d.Charged != 0 || d.Receipt != (algorithms.Receipt{}) {
				t.Fatalf("seed %d: %v does not deny: %+v, remembered %+v", seed, r.Limits[j].Limit, actual.Decisions[j], d)
			}
			if after := d.RetryAfter; after > actual.Decisions[j].RetryAfter+trip || after > algorithms.Forever/2 && after < algorithms.Forever {
				t.Fatalf("seed %d: %v: retry after %d µs, remembered %d µs", seed, r.Limits[j].Limit, actual.Decisions[j].RetryAfter, d.RetryAfter)
			}
		}
		want := store.NotAsked
		switch {
		case len(r.Limits) == 0 && o.Verdict == store.NotAsked: // another zone denies
			hits["ban not looked up"]++
		case r.Ban != nil: // else it may count
			want = store.Banned
			hits["ban"]++
			if len(r.Limits) == 0 {
				hits["ban looked up"]++
			}
			ends := o.Ban.EndsAfter
			if o.Ban != (store.BanOutcome{Stands: true, EndsAfter: ends}) || ends < 1 || ends > actual.Ban.EndsAfter+trip ||
				r.Shadow || decided > 0 || !actual.Ban.Stands {
				t.Fatalf("seed %d: remembered %+v, the store says %+v", seed, o, actual)
			}
		case decided > 0:
			want = store.Denied
		}
		if o.Verdict != want || o.Cached != (want != store.NotAsked) || len(o.Decisions) != len(r.Limits) {
			t.Fatalf("seed %d: %+v, want verdict %d", seed, o, want)
		}
		if r.Slots != nil && decided > 0 {
			hits["slots"]++
		}
		if o.Slots != (store.SlotsOutcome{Free: true}) || o.Ban.Stands != (want == store.Banned) || o.Local {
			t.Fatalf("seed %d: an earlier outcome is left: %+v", seed, o)
		}
	}
}
