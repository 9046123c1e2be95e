package redisstore_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The script reads each count of a message at its largest value. A request with a larger count fails alone:
// Redis isn't asked, and doesn't count as failing.
func TestLargestCounts(t *testing.T) {
	const largest = 1<<16 - 1
	server, ctx := redistest.Shared(t), t.Context()
	s := open(t, redisstore.Options{Address: server.Addr, Timeout: time.Hour}) // however long Redis needs for them
	limit := func(zone, algorithm string) store.Limit {
		return storetest.Limit(t, zone, algorithms.Quota{Algorithm: algorithm, Events: 1, Window: 3_600_000_000})
	}
	// The last limit is behind all others. If it decides, the script has read all counts.
	last := limit("last", "gcra")
	zones := func(n int) []store.ZoneRequest {
		return append(make([]store.ZoneRequest, n-1), store.ZoneRequest{Key: "k", Cost: 1, Limits: []store.Limit{last}})
	}
	overrides := func(n int) []store.ZoneRequest {
		requests := zones(n)
		for i := range requests {
			requests[i].Override = new(store.Override)
		}
		return requests
	}
	limits := func(n int) []store.ZoneRequest {
		r := store.ZoneRequest{Key: "k", Cost: 1}
		for i := range n {
			r.Limits = append(r.Limits, limit(fmt.Sprint("z", i), "gcra"))
		}
		return []store.ZoneRequest{r}
	}
	refund := func(algorithm string) func(n int) error {
		return func(n int) error {
			r := store.ZoneRequest{Key: "k", Cost: 1, Limits: []store.Limit{limit("last", algorithm)}}
			charged := []store.ZoneRequest{r}
			if allowed, err := s.Take(ctx, charged); !allowed || err != nil {
				t.Errorf("allowed %v, %v", allowed, err)
			}
			r.Limits = append(slices.Repeat([]store.Limit{limit("z", algorithm)}, n-1), r.Limits...)
			r.Outcome.Decisions = append(slices.Repeat([]algorithms.Decision{{Charged: 1}}, n-1), charged[0].Outcome.Decisions...)
			err := s.CorrectAt(ctx, 0, []store.Correction{{Request: &r, Refund: 1}})
			if again, _ := s.Take(ctx, charged); again != (err == nil) {
				t.Errorf("a refund of %d limits gave the last event back: %v, with error %v", n, again, err)
			}
			return err
		}
	}
	take := func(make func(n int) []store.ZoneRequest) func(n int) error {
		return func(n int) error {
			first, err := s.Take(ctx, make(n))
			r := make(n)
			if second, _ := s.Take(ctx, r); first != (err == nil) || second {
				t.Errorf("allowed %v, then %v, with error %v", first, second, err)
			}
			if d := r[len(r)-1].Outcome.Decisions; slices.ContainsFunc(d, func(d algorithms.Decision) bool { return d.Allowed }) {
				t.Errorf("one of %d budgets was not read", len(d))
			}
			return err
		}
	}
	for _, test := range []struct {
		name    string
		largest int
		send    func(n int) error
	}{
		{"zones", largest, take(zones)},
		{"keys", largest - 1, take(overrides)}, // the limit has a key, too
		{"budgets of a refund", largest, refund("gcra")},
		{"logs", largest, refund("sliding_log")},
	} {
		server.Client.FlushDB(ctx)
		errtest.Report(t, test.send(test.largest), test.largest, test.name)
	}
	// The time for the reply grows with the square of the number of limits. The script reads 1000 budgets at a time.
	server.Client.FlushDB(ctx)
	errtest.Report(t, take(limits)(1100), "1100 limits")

	breaker := store.NewBreaker(s, nil)
	t.Cleanup(breaker.Close)
	before, _ := stats(server.Client)
	for name, requests := range map[string][]store.ZoneRequest{
		"zones": zones(largest + 1), "keys": overrides(largest), "limits": limits(largest + 1),
	} {
		for range 2 { // a breaker opens after 5 failures
			failed := new(store.Error)
			if _, err := breaker.Take(ctx, requests); !errors.As(err, &failed) || failed.Reason != store.ReasonKey {
				t.Errorf("more %s than a message can have: %v", name, err)
			}
		}
	}
	if after, _ := stats(server.Client); breaker.Open() || after["evalsha"] != before["evalsha"] {
		t.Errorf("the breaker is open: %v, script calls: %d", breaker.Open(), after["evalsha"]-before["evalsha"])
	}
}
