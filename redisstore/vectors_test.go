package redisstore

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Traces recorded from other limiters (testdata/vectors), replayed through the Go functions and
// through Lua. Users of one of them find the same decisions here, with only the differences named
// below.

// vector is one trace.
type vector struct {
	File    string
	System  string `json:"system"`
	Name    string `json:"name"`
	Variant string `json:"variant"`
	Steps   []struct {
		T         float64  `json:"t_ms"`
		Cost      int64    `json:"cost"`
		Op        string   `json:"op"`
		Allowed   bool     `json:"allowed"`
		Remaining any      `json:"remaining"`
		Retry     *float64 `json:"retry_after_ms"`
		Delay     *float64 `json:"delay_ms"`
		Timeout   float64  `json:"timeout_ms"`
	} `json:"steps"`
}

// replay says by which limits a trace is replayed.
type replay struct {
	mode   algorithms.Mode
	limits []algorithms.Quota
	// start is the state of the first limit's budget at instant 0.
	start algorithms.State
	stamp int64 // µs, an event in its log, or 0
	// factor divides the bursts, in millionths; 0 is 1.
	factor int64
	// wait is the longest delay of a request in ms.
	wait float64
	// remains says why remaining is another number here than there.
	remains string
	// differs are the steps that are decided otherwise here, and why.
	differs map[int]string
}

// The deliberate differences.
const (
	// A request that can never pass has no retry after.
	neverIsNever = "never is never"
	// Remaining is never negative. A request that is charged although it is denied stays
	// denied. Debt shows only in the wait.
	debtIsDenied = "debt is denied"
	// While it is too early for another request, nothing remains, and retry after
	// says when it no longer is.
	notYet = "nothing remains while it is too early"
	// An event counts for exactly one window, not up to a bucket less.
	wholeWindow = "an event counts for a whole window"
	// If requests can be delayed, retry after ends when the request would be delayed, not when it
	// would pass at once.
	heldThen = "it would be held then"
	// Remaining counts the request that is let pass on account of the next one, and
	// nothing that is spent more slowly than at once.
	takenAtOnce = "remaining counts what can be taken now"
	// The events of a later window don't remain now. Places to wait don't remain either.
	notWaiting = "remaining counts what can be taken without a delay"
)

// rounding is how many µs a wait may differ where the other limiter computes with
// fractions.
const rounding = 7

const ms = 1000

func quota(algorithm string, events int64, windowMS float64, burst ...int64) algorithms.Quota {
	q := algorithms.Quota{Algorithm: algorithm, Events: events, Window: int64(windowMS * ms)}
	if len(burst) > 0 {
		q.Burst = burst[0]
	}
	return q
}

func one(q algorithms.Quota) replay {
	return replay{limits: []algorithms.Quota{q}}
}

// apart is one log with a least span between requests, in ms.
func apart(q algorithms.Quota, interval int64) replay {
	q.MinInterval = interval * ms
	return one(q)
}

func several(quotas ...algorithms.Quota) replay {
	return replay{limits: quotas}
}

// but is a replay that differs at these steps.
func (r replay) but(reason string, steps ...int) replay {
	r.differs = make(map[int]string)
	for _, step := range steps {
		r.differs[step] = reason
	}
	return r
}

// holding is a leaky bucket of that size with so much in it.
func holding(level, size, events int64, rate float64) replay {
	r := one(quota("leaky_bucket", events, rate, size))
	r.start = algorithms.State{A: min(level, size), B: origin, C: max(level-size, 0), D: 4 * events}
	return r
}

// guava is a smooth limit that begins with nothing saved up, as Guava's do.
func guava(perSecond int64) replay {
	return beginning(0, quota("smooth", perSecond, 1000))
}

// telling is a replay that tells of other numbers remaining, for that reason.
func telling(reason string, r replay) replay {
	r.remains = reason
	return r
}

// warming is a smooth limit that warms up; cold is how many thousandths an event
// costs at first.
func warming(perSecond int64, warmUp, cold int64) replay {
	q := quota("smooth", perSecond, 1000)
	q.WarmUp, q.ColdFactor = warmUp*ms, cold
	return telling(takenAtOnce, one(q))
}

// held is a replay with delayed requests.
func held(wait float64, r replay) replay {
	r.wait = wait
	return telling(notWaiting, r)
}

// scaled is a replay with all bursts divided by a factor, in millionths.
func scaled(factor int64, r replay) replay {
	r.factor = factor
	return r
}

// atTheClock is a limit whose windows begin at the clock.
func atTheClock(q algorithms.Quota) replay {
	q.Align = "clock"
	return one(q)
}

// beginning is a limit that has so much to begin with.
func beginning(initial int64, q algorithms.Quota) replay {
	q.Initial = &initial
	return one(q)
}

// inBuckets is a log of so many buckets.
func inBuckets(n int64, q algorithms.Quota) replay {
	q.Buckets = n
	return one(q)
}

func in(m algorithms.Mode, r replay) replay {
	r.mode = m
	return r
}

// logOf is a log with an event at that instant in it.
func logOf(m algorithms.Mode, r replay, stamp int64) replay {
	r.mode, r.stamp = m, stamp
	return r
}

// replays is by file and the beginning of the name, which says enough.
var replays = map[string]replay{
	"bitmex_token_bucket/3 per 5000":                                                  one(quota("token_bucket", 3, 5000)),
	"bitmex_token_bucket/2 per 500":                                                   one(quota("token_bucket", 2, 500)),
	"bitmex_token_bucket/upstream: Deduction":                                         one(quota("token_bucket", 3, 5000)),
	"bitmex_token_bucket/force drains":                                                in(algorithms.Force, one(quota("token_bucket", 3, 3000))),
	"bitmex_token_bucket/60 per 60000":                                                one(quota("token_bucket", 60, 60_000)),
	"bitmex_token_bucket/clock steps back":                                            {limits: []algorithms.Quota{quota("token_bucket", 10, 1000)}, start: algorithms.State{A: 7 * 100 * ms, B: origin + 5000*ms, D: 40}},
	"bucket4j/upstream: scheduler":                                                    one(quota("token_bucket", 10, 1000)),
	"bucket4j/greedy 10 per second":                                                   one(quota("token_bucket", 10, 1000)),
	"bucket4j/two bandwidths":                                                         several(quota("token_bucket", 1000, 60_000), quota("token_bucket", 50, 1000)),
	"classdojo_rolling_rate_limiter/upstream: sep":                                    in(algorithms.Uniform, one(quota("sliding_log", 2, 5000))),
	"classdojo_rolling_rate_limiter/upstream: info, n":                                in(algorithms.Uniform, one(quota("sliding_log", 3, 10_000))),
	"classdojo_rolling_rate_limiter/lock-out":                                         in(algorithms.Uniform, one(quota("sliding_log", 2, 4000))),
	"classdojo_rolling_rate_limiter/1 per 1500":                                       in(algorithms.Uniform, one(quota("sliding_log", 1, 1500))),
	"classdojo_rolling_rate_limiter/upstream: minD":                                   in(algorithms.Uniform, apart(quota("sliding_log", 4, 10_000), 2000)).but(notYet, 0, 1, 2),
	"classdojo_rolling_rate_limiter/upstream: info, m":                                in(algorithms.Uniform, apart(quota("sliding_log", 3, 10_000), 2000)).but(notYet, 0, 1),
	"classdojo_rolling_rate_limiter/sliding log, ref":                                 apart(quota("sliding_log", 4, 10_000), 2000).but(notYet, 0, 1, 2, 3, 4, 5),
	"risingstack_rate_limiter/minDifference enf":                                      apart(quota("sliding_log", 10, 1000), 100).but(notYet, 0, 1, 2, 3, 4),
	"fixed_window/same traffic":                                                       one(quota("fixed_window", 5, 60_000)),
	"fixed_window/wyattjoh":                                                           one(quota("fixed_window", 100, 5000)),
	"nerd_token_bucket/cost larger than the bucket, wait=F":                           one(quota("token_bucket", 1, 1000, 5)).but(neverIsNever, 0),
	"nerd_token_bucket/default":                                                       one(quota("token_bucket", 1, 1000, 60)),
	"nerd_token_bucket/expensive":                                                     one(quota("token_bucket", 1, 1000, 60)),
	"nerd_token_bucket/per-user":                                                      one(quota("token_bucket", 1, 1000, 2)),
	"nerd_token_bucket/slow bucket":                                                   one(quota("token_bucket", 1, 5000, 5)),
	"nginx_limit_req/2r/s, no burst":                                                  one(quota("gcra", 2, 1000, 1)),
	"nginx_limit_req/2r/s burst=3 nodelay":                                            one(quota("gcra", 2, 1000, 4)),
	"nginx_limit_req/30r/m":                                                           one(quota("gcra", 1, 2000, 2)),
	"nginx_limit_req/7r/m":                                                            one(quota("gcra", 116, 1_000_000, 1)),
	"risingstack_rate_limiter/upstream spec: empty, max 1, mode uniform":              in(algorithms.Uniform, one(quota("sliding_log", 1, 1))),
	"risingstack_rate_limiter/upstream spec: empty, max 2, minDiff 50, mode binary":   one(quota("sliding_log", 2, 1)),
	"risingstack_rate_limiter/upstream spec: empty, max 2, minDiff 50, mode nary":     in(algorithms.Nary, one(quota("sliding_log", 2, 1))),
	"risingstack_rate_limiter/upstream spec: fresh item at 2001, max 1, mode uniform": logOf(algorithms.Uniform, one(quota("sliding_log", 1, 1)), 2001).but(debtIsDenied, 0),
	"risingstack_rate_limiter/upstream spec: fresh item at 2001, max 1, mode nary":    logOf(algorithms.Nary, one(quota("sliding_log", 1, 1)), 2001),
	"risingstack_rate_limiter/upstream spec: two limits 1000/500, second has fresh item at 2501, mode uniform": logOf(algorithms.Uniform, several(quota("sliding_log", 1, 0.5), quota("sliding_log", 1, 1)), 2501).but(debtIsDenied, 0),
	"risingstack_rate_limiter/upstream spec: two limits 1000/500, second has fresh item at 2501, mode binary":  logOf(algorithms.Binary, several(quota("sliding_log", 1, 0.5), quota("sliding_log", 1, 1)), 2501),
	"risingstack_rate_limiter/upstream spec: two limits 1000/500, second has fresh item at 2501, mode nary":    logOf(algorithms.Nary, several(quota("sliding_log", 1, 0.5), quota("sliding_log", 1, 1)), 2501),
	"risingstack_rate_limiter/upstream spec: batch of 2, max 2, fresh item at 2001, mode uniform":              logOf(algorithms.Uniform, one(quota("sliding_log", 2, 1)), 2001).but(debtIsDenied, 0),
	"risingstack_rate_limiter/upstream spec: batch of 2, max 2, fresh item at 2001, mode nary":                 logOf(algorithms.Nary, one(quota("sliding_log", 2, 1)), 2001),
	"risingstack_rate_limiter/binary 3 per 1000":                                                               one(quota("sliding_log", 3, 1000)),
	"risingstack_rate_limiter/binary batch":                                                                    one(quota("sliding_log", 5, 1000)),
	"risingstack_rate_limiter/uniform counts":                                                                  in(algorithms.Uniform, one(quota("sliding_log", 2, 1000))),
	"risingstack_rate_limiter/two limits: 2":                                                                   several(quota("sliding_log", 2, 1000), quota("sliding_log", 3, 10_000)).but(wholeWindow, 6),
	"risingstack_rate_limiter/batch larger":                                                                    one(quota("sliding_log", 3, 1000)).but(neverIsNever, 0, 2),
	"sharkey_leaky_bucket/bucket size 3":                                                                       one(quota("leaky_bucket", 1, 1000, 3)),
	"sharkey_leaky_bucket/size 2, one":                                                                         holding(1, 2, 1, 1000),
	"sharkey_leaky_bucket/size 1 full (":                                                                       holding(1, 1, 1, 1000),
	"sharkey_leaky_bucket/size 1 full, drip":                                                                   holding(1, 1, 1, 1000),
	"sharkey_leaky_bucket/size 1 full, 100":                                                                    holding(1, 1, 1, 1000),
	"sharkey_leaky_bucket/two drips":                                                                           holding(2, 1, 1, 1000),
	"sharkey_leaky_bucket/overfilled":                                                                          holding(2, 1, 1, 1000),
	"sharkey_leaky_bucket/factor 0.5":                                                                          scaled(500_000, holding(1, 1, 1, 1000)),
	"sharkey_leaky_bucket/factor 2":                                                                            scaled(2_000_000, one(quota("leaky_bucket", 1, 1000, 5))),
	"sharkey_leaky_bucket/legacy max 10 / 10000 ms (":                                                          holding(10, 10, 1, 1000),
	"sharkey_leaky_bucket/legacy max 10 / 10000 ms at":                                                         holding(10, 10, 1, 1000),
	"sharkey_leaky_bucket/legacy max 1 /":                                                                      holding(10, 1, 1, 1000),
	"sharkey_leaky_bucket/legacy minInterval":                                                                  one(quota("leaky_bucket", 1, 1000, 1)),
	"sharkey_leaky_bucket/legacy max+minInterval 10":                                                           holding(9, 10, 2, 1000),
	"sharkey_leaky_bucket/legacy max+minInterval full":                                                         holding(10, 10, 2, 1000),
	"sharkey_leaky_bucket/legacy max+minInterval over":                                                         holding(12, 10, 2, 1000),
	"sharkey_leaky_bucket/dripSize 2":                                                                          one(quota("leaky_bucket", 2, 1000, 4)),
	"sharkey_leaky_bucket/legacy max 4096 / 2000 ms (upstream: dripRate never below 1) -":                      holding(4096, 4096, 2, 1),
	"guava_smooth_bursty/testSimple":                                                                           guava(5),
	"guava_smooth_bursty/testSimpleAcquire":                                                                    telling(takenAtOnce, guava(5)),
	"guava_smooth_bursty/testOne":                                                                              telling(takenAtOnce, one(quota("smooth", 5, 1000))),
	"guava_smooth_bursty/testSimpleWeights":                                                                    guava(1),
	"guava_smooth_bursty/testTry":                                                                              guava(5),
	"guava_smooth_bursty/testTryAcquire_some":                                                                  guava(5).but(heldThen, 2),
	"guava_smooth_warming_up/testWarmUp":                                                                       warming(2, 4000, 3000),
	"guava_smooth_warming_up/testWarmUpWithColdFactor1":                                                        warming(5, 4000, 1000),
	"guava_smooth_warming_up/guava issue":                                                                      warming(10, 500, 3000),
	"nginx_limit_req/2r/s burst=3 (":                                                                           held(1500, one(quota("gcra", 2, 1000, 1))),
	"producer_consumer_token_bucket/":                                                                          beginning(0, quota("token_bucket", 1, 100, 3)),
	"resilience4j_semaphore/limit":                                                                             held(150, atTheClock(quota("fixed_window", 2, 100))),
	"risingstack_rate_limiter/equidistant":                                                                     inBuckets(10, quota("sliding_log", 20, 1000)),
	"sliding_window_counter/seed":                                                                              one(quota("sliding_window", 5, 60_000)),
}

// notReplayed says why the other traces are not.
var notReplayed = map[string]string{
	"bitmex_token_bucket/lost timestamp":                    "a state of two keys that lost one; ours is one key",
	"bitmex_token_bucket/argument checks":                   "no steps",
	"bucket4j/upstream: estimation":                         "begins empty and is filled in one step, which no limit here does",
	"bucket4j/upstream: blocking":                           "no steps",
	"classdojo_rolling_rate_limiter/option":                 "no steps",
	"fixed_window/resetExpiryOnChange":                      "allowed requests restart the window: a client below the limit would be denied for ever",
	"fixed_window/store operations":                         "no steps",
	"guava_smooth_bursty/testBurstyAndUpdate":               "the rate changes and keeps the fraction that is saved up: here what was spent stays spent",
	"guava_smooth_warming_up/testWarmUpAndUpdate":           "the rate changes and keeps the fraction that is saved up: here what was spent stays spent",
	"guava_smooth_warming_up/derived":                       "no steps",
	"nerd_token_bucket/cost larger than the bucket, wait=T": "a cost above what the bucket ever holds is served: here it never passes",
	"nerd_token_bucket/tokens_per_sec":                      "a limit that is none; leave it out",
	"resilience4j_semaphore/upstream":                       "no steps",
	"sharkey_leaky_bucket/limit translation":                "no steps: see TestLegacy",
}

// origin is instant 0 of the traces, but for those at the clock a whole minute.
const origin = 1_763_640_000_000_000

func vectors(t *testing.T) (all []vector) {
	t.Helper()
	files, err := filepath.Glob("testdata/vectors/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		errtest.None(t, err)
		var of []vector
		errtest.None(t, json.Unmarshal(text, &of), file)
		for i := range of {
			of[i].File = strings.TrimSuffix(filepath.Base(file), ".json")
			all = append(all, of[i])
		}
	}
	return all
}

// lookup finds an entry by the longest beginning of a vector's file and name.
func lookup[T any](table map[string]T, v vector) (key string, found T) {
	for k, entry := range table {
		if strings.HasPrefix(v.File+"/"+v.Name, k) && len(k) > len(key) {
			key, found = k, entry
		}
	}
	return key, found
}

func TestVectors(t *testing.T) {
	t.Parallel()
	_, client := redistest.Running(t)
	script := loader(t, client, unchanged)
	used := make(map[string]bool)
	for _, v := range vectors(t) {
		if v.Variant == "as_implemented_buggy" {
			continue // a fault that was recorded so that nobody repeats it
		}
		key, r := lookup(replays, v)
		reason, _ := lookup(notReplayed, v)
		used[key], used[reason] = true, true
		switch {
		case key == "" && reason == "":
			t.Errorf("%s/%s is neither replayed nor said why not", v.File, v.Name)
		case len(key) > len(reason):
			t.Run(v.File+"/"+v.Name, func(t *testing.T) {
				client.FlushAll(t.Context())
				p := r.play(t, v)
				if diff, err := p.difference(client, script); err != nil || diff != "" {
					t.Errorf("Lua: %s %v", diff, err)
				}
			})
		}
	}
	for key := range replays {
		if !used[key] {
			t.Errorf("no vector is %q", key)
		}
	}
	for key := range notReplayed {
		if !used[key] {
			t.Errorf("no vector is %q", key)
		}
	}
}

// play decides a trace in Go, compares, and returns it as a program for Lua.
func (r replay) play(t *testing.T, v vector) *program {
	t.Helper()
	request := store.ZoneRequest{Zone: "z", Key: "k", Mode: r.mode}
	p := &program{}
	for i, q := range r.limits {
		l := storetest.Limit(t, "z", q).Limit
		if r.factor > 0 {
			l = l.Scaled(r.factor)
		}
		request.Limits = append(request.Limits, store.NewLimit("z", fmt.Sprint(i), l))
	}
	p.requests = []store.ZoneRequest{request}
	p.states = []zoneState{{budgets: make([]algorithms.State, len(request.Limits))}}
	start := func() *algorithms.State {
		s := r.start
		if r.stamp != 0 {
			check := algorithms.Check{Limit: request.Limits[0].Limit, State: &s}
			algorithms.Take([]algorithms.ZoneRequest{{Cost: 1, Checks: []algorithms.Check{check}}}, origin+r.stamp)
		}
		return &s
	}
	p.states[0].budgets[0] = *start()
	if p.states[0].budgets[0] != (algorithms.State{}) {
		p.startFrom = start()
	}
	otherwise := false
	for i, s := range v.Steps {
		cost := s.Cost
		if s.Op == "peek" {
			cost = 0
		}
		wait := int64(r.wait * ms)
		switch s.Op {
		case "acquire":
			wait = 3_600_000 * ms
		case "try_acquire":
			wait = int64(max(s.Timeout, 0) * ms)
		}
		p.decide(step{
			now: origin + int64(math.Round(s.T*ms)), zones: []int{0},
			costs: []int64{cost}, peeks: []bool{false}, slots: []int64{0}, asked: []string{""}, wait: wait,
		})
		d := worst(p.steps[i].want[0].Decisions)
		var diffs []string
		if s.Op == "peek" {
			if (d.Remaining > 0) != s.Allowed {
				diffs = append(diffs, fmt.Sprintf("%d remaining, want allowed %v", d.Remaining, s.Allowed))
			}
		} else {
			remaining, _ := s.Remaining.(float64)
			if want := max(int64(math.Floor(remaining+1e-9)), 0); d.Remaining != want && r.remains == "" {
				diffs = append(diffs, fmt.Sprintf("%d remaining, want %d", d.Remaining, want))
			} else if d.Remaining != want {
				otherwise = true
			}
			if d.Allowed != s.Allowed {
				diffs = append(diffs, fmt.Sprintf("allowed %v, want %v", d.Allowed, s.Allowed))
			}
			if s.Retry != nil && !s.Allowed && !near(d.RetryAfter, *s.Retry) {
				diffs = append(diffs, fmt.Sprintf("retry after %d µs, want %v ms", d.RetryAfter, *s.Retry))
			}
			if s.Delay != nil && s.Allowed && !near(d.Wait, *s.Delay) {
				diffs = append(diffs, fmt.Sprintf("held for %d µs, want %v ms", d.Wait, *s.Delay))
			}
		}
		switch reason := r.differs[i]; {
		case reason == "" && len(diffs) > 0:
			t.Errorf("step %d at %v ms: %s", i, s.T, strings.Join(diffs, ", "))
		case reason == notYet && (len(diffs) != 1 || d.Remaining != 0):
			t.Errorf("step %d at %v ms: only what remains may differ, not: %s", i, s.T, strings.Join(diffs, ", "))
		case reason != "" && len(diffs) == 0:
			t.Errorf("step %d at %v ms: no difference, although it is named: %s", i, s.T, reason)
		}
	}
	if r.remains != "" && !otherwise {
		t.Errorf("no difference in what remains, although it is named: %s", r.remains)
	}
	return p
}

// near reports whether a span is so many ms, with or without rounding up to whole ms.
func near(got algorithms.Micros, want float64) bool {
	return (got+ms-1)/ms == int64(math.Ceil(want)) || math.Abs(float64(got)-want*ms) <= rounding
}

// worst is the decision of several limits as clients see it: the least remaining, the longest wait.
func worst(decisions []algorithms.Decision) algorithms.Decision {
	w := decisions[0]
	for _, d := range decisions[1:] {
		w.Allowed = w.Allowed && d.Allowed
		w.Remaining = min(w.Remaining, d.Remaining)
		w.RetryAfter = max(w.RetryAfter, d.RetryAfter)
		w.Wait = max(w.Wait, d.Wait)
	}
	return w
}
