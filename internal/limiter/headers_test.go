package limiter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dunglas/httpsfv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The families are set when the header is sent, whichever way that happens, and
// not before.
func TestFamilyWriter(t *testing.T) {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 5, Window: 1_000_000})
	state := newTestState(nil, &Zone{Name: "z"}, nil, store.ZoneRequest{
		Limits: []store.Limit{limit}, Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true, Remaining: 3}}},
	})
	for name, send := range map[string]func(w http.ResponseWriter){
		"WriteHeader": func(w http.ResponseWriter) { w.WriteHeader(204) },
		"Write":       func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) },
		"ReadFrom":    func(w http.ResponseWriter) { _, _ = w.(*responseWriter).ReadFrom(strings.NewReader("x")) },
		"Flush":       func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"upgrade":     func(w http.ResponseWriter) { w.WriteHeader(101) },
	} {
		recorder := httptest.NewRecorder()
		w := &responseWriter{
			ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: recorder},
			state:                 state, families: NewHeaderForms([]string{"x_ratelimit"}).families,
		}
		w.WriteHeader(103) // early hints
		if got := recorder.Header().Get("X-RateLimit-Remaining"); got != "" {
			t.Errorf("%s: early hints carry %q", name, got)
		}
		send(w)
		if got := recorder.Header().Get("X-RateLimit-Remaining"); got != "3" {
			t.Errorf("%s: X-RateLimit-Remaining %q, want 3", name, got)
		}
	}
}

// FuzzFields checks that the fields are well-formed, and mean the same to an independent parser. It
// draws names of zones, decisions, and fields of others with the same names.
func FuzzFields(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, "api v1; =,*")
	}
	f.Add(uint64(7), "!")
	f.Fuzz(func(t *testing.T, seed uint64, name string) {
		if len(name) == 0 || len(name) > 64 || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune(`{}"\/`, c) }) {
			return
		}
		r := rand.New(rand.NewPCG(seed, 1))
		number := func() int64 { return r.Int64N(1<<r.IntN(53) + 1) }
		up := func(m algorithms.Micros) int64 { return int64(math.Ceil(float64(m) / 1e6)) } // exact enough below 2^53
		state := &State{Allowed: r.IntN(2) == 0}
		var policies, items []string // as they are to be understood
		known := false               // what the limit nearest to exhaustion has left
		decision := func() algorithms.Decision {
			d := algorithms.Decision{
				Allowed: state.Allowed || r.IntN(2) == 0, Remaining: number(), MoreAfter: number(), ResetAfter: number(), RetryAfter: []int64{0, number(), algorithms.Forever}[r.IntN(3)],
			}
			if d.Allowed {
				d.RetryAfter = 0
			}
			return d
		}
		item := func(label string, d algorithms.Decision, quota int64) {
			known = true
			item := fmt.Sprintf("%q r=%d", label, min(d.Remaining, quota, httpfields.MaxInteger))
			more := d.MoreAfter
			if !d.Allowed {
				more = min(more, d.RetryAfter)
			}
			if more > 0 && (state.Allowed || !d.Allowed) {
				item += fmt.Sprintf(" t=%d", up(more))
			}
			items = append(items, item)
		}
		for i := range 1 + r.IntN(3) {
			z := &Zone{Name: fmt.Sprint(name, i)}
			given := &LimitSet{}
			for range r.IntN(4) {
				bits := r.IntN(47) // not the largest integers there are, which the parser takes for too large
				quota := algorithms.Quota{Algorithm: "fixed_window", Events: 1 + r.Int64N(1<<bits), Window: 1 + r.Int64N(1<<(50-bits))}
				if bits < 30 && r.IntN(2) == 0 {
					quota.Window = 1_000_000 * (1 + r.Int64N(1<<(29-bits)))
				}
				if r.IntN(3) > 0 { // it refills in one to three windows
					quota.Algorithm, quota.Burst = "gcra", quota.Events*(1+r.Int64N(3))
				}
				given.Limits = append(given.Limits, storetest.Limit(t, z.Name, quota).Limit)
			}
			n := len(given.Limits)
			if n == 0 || r.IntN(3) == 0 {
				given.Slots = &store.Slots{Limit: 1 + number()%10_000_000}
			}
			if n > 0 && r.IntN(3) == 0 {
				given.Ban = &algorithms.Ban{After: 1, Window: 1_000_000, Duration: 1_000_000, Max: 1_000_000}
			}
			given.NameBudgets(z.Name, make([]keys.Template, 1))
			labels := limitLabels(z.Name, n+1) // the last is that of the slots, if there are any
			b := given.Budgets[0]
			q := store.ZoneRequest{Shadow: r.IntN(4) == 0, Limits: b.Limits, Slots: b.Slots, Ban: b.Ban}
			stands := given.Ban != nil && !state.Allowed && r.IntN(2) == 0
			for i, l := range q.Limits {
				d := decision()
				if stands {
					d = algorithms.Decision{NotAsked: true}
				}
				q.Outcome.Decisions = append(q.Outcome.Decisions, d)
				if q.Shadow {
					continue
				}
				policy := fmt.Sprintf("%q q=%d", labels[i], min(l.Burst, httpfields.MaxInteger))
				if refill := l.Burst / l.Events * l.Window; !l.Scalable() || refill%1_000_000 == 0 {
					policy += fmt.Sprintf(" w=%d", up(refill))
				}
				policies = append(policies, policy)
				if !stands {
					item(labels[i], d, l.Burst)
				}
			}
			if s := q.Slots; s != nil {
				o := &q.Outcome.Slots
				o.InFlight = s.Limit
				d := algorithms.Decision{MoreAfter: store.SlotRetryAfter, RetryAfter: store.SlotRetryAfter}
				if o.Taken, o.Free = state.Allowed, state.Allowed || r.IntN(2) == 0; o.Free {
					o.InFlight = min(number(), s.Limit)
					d = algorithms.Decision{Allowed: true, Remaining: s.Limit - o.InFlight}
				}
				if !q.Shadow {
					policies = append(policies, fmt.Sprintf("%q q=%d qu=concurrent-requests", labels[n], s.Limit))
					if !stands {
						item(labels[n], d, s.Limit)
					}
				}
			}
			if q.Outcome.SetVerdict(); stands {
				q.Outcome.Ban = store.BanOutcome{Stands: true, EndsAfter: number()}
				q.Outcome.Verdict, q.Outcome.Cached = store.Banned, true
			}
			state.Requests = append(state.Requests, q)
			state.Entries = append(state.Entries, Entry{Zone: z, LimitSet: given})
		}
		for i := range state.Entries {
			state.Entries[i].ZoneRequest = &state.Requests[i]
		}
		if !state.HasEnforcedZone() {
			return
		}
		// Others' items stand before ours, as those of an outer handler do, and behind, as
		// those of an upstream.
		h := make(http.Header)
		others := func(name string) {
			one := fmt.Sprintf("other%d", r.IntN(10))
			appendField(h, httpfields.RateLimitPolicy, []string{fmt.Sprintf("%q;q=5;w=60", one)})
			appendField(h, httpfields.RateLimit, []string{fmt.Sprintf("%q;r=1;t=2", one)})
			if name == "before" {
				policies, items = slices.Insert(policies, 0, fmt.Sprintf("%q q=5 w=60", one)), slices.Insert(items, 0, fmt.Sprintf("%q r=1 t=2", one))
			} else {
				policies, items = append(policies, fmt.Sprintf("%q q=5 w=60", one)), append(items, fmt.Sprintf("%q r=1 t=2", one))
			}
		}
		if r.IntN(2) == 0 {
			others("before")
		}
		state.setDraftFields(h)
		if r.IntN(2) == 0 {
			others("behind")
		}
		caddytest.WantItems(t, h, "RateLimit-Policy", policies)
		caddytest.WantItems(t, h, "RateLimit", items)
		if r.IntN(2) == 0 {
			h["X-Ratelimit-Remaining"] = []string{fmt.Sprint(number())}
			h["X-Ratelimit-Clear"] = []string{"1.000"}
		}
		state.setFamilies(h, NewHeaderForms([]string{"draft_06", "sharkey"}).families)
		if known {
			wantFamilies(t, h)
		}
	})
}

// The w of a policy is the time in which its q refills, or the window.
func TestPolicyWindow(t *testing.T) {
	const second = 1_000_000
	for _, test := range []struct {
		algorithm             string
		events, window, burst int64
		factor                float64
		want                  string
	}{
		{"token_bucket", 10, second, 20, 1, "q=20;w=2"},
		{"token_bucket", 10, second, 25, 1, "q=25"}, // 2.5 s
		{"token_bucket", 100, 60 * second, 5, 1, "q=5;w=3"},
		{"token_bucket", 10, second, 20, 3, "q=7"},
		{"token_bucket", 10, second, 20, 0.5, "q=40;w=4"},
		{"token_bucket", 10, second / 10, 200, 1, "q=200;w=2"},
		{"smooth", 10, second, 20, 1, "q=20;w=2"},
		{"leaky_bucket", 10, second, 25, 1, "q=25;w=3"}, // the rest leaks out with the third drip
		{"leaky_bucket", 10, second, 25, 5, "q=5;w=1"},
		{"fixed_window", 10, 60 * second, 0, 1, "q=10;w=60"},
		{"sliding_window", 10, 3 * second / 2, 0, 1, "q=10;w=2"},
		{"sliding_log", 10, 60 * second, 0, 1, "q=10;w=60"},
	} {
		q := algorithms.Quota{Algorithm: test.algorithm, Events: test.events, Window: test.window, Burst: test.burst}
		limit := storetest.Limit(t, "z", q).Limit
		set := &LimitSet{Limits: []*algorithms.Limit{limit}}
		set.NameBudgets("z", make([]keys.Template, 1))
		limits := scaleLimits(set.Budgets[0].Limits, int64(test.factor*UnitFactor))
		if got := set.formatPolicyItems(limits, 0); got != `"z";`+test.want {
			t.Errorf("%v with factor %v: %s, want %s", limit, test.factor, got, test.want)
		}
	}
}

// wantFamilies checks that the fields with one value are well-formed.
func wantFamilies(t *testing.T, h http.Header) {
	t.Helper()
	for _, field := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Clear"} {
		if item, err := httpsfv.UnmarshalItem(h.Values(field)); err != nil || len(h.Values(field)) != 1 {
			t.Errorf("%s: %q %v %v", field, h.Values(field), item.Value, err)
		}
	}
}

// The tightest limit denies, or has the least remaining. Of two that have the same, it is the one with the longer reset.
func TestTightestLimit(t *testing.T) {
	loosestFirst := []algorithms.Decision{
		{NotAsked: true},
		{Allowed: true, Remaining: 2, ResetAfter: 9},
		{Allowed: true, Remaining: 1, ResetAfter: 1},
		{Allowed: true, Remaining: 1, ResetAfter: 2},
		{Remaining: 5, ResetAfter: 1},
		{Remaining: 5, ResetAfter: 3},
	}
	for i, d := range loosestFirst {
		for j, other := range loosestFirst {
			if got := isTighter(d, other); got != (i > j) {
				t.Errorf("%+v is tighter than %+v: %t, want %t", d, other, got, i > j)
			}
		}
	}
}

// Slots are the last limit of a zone: of a denial they are named and shown as such. But they charge no events.
func TestSlotsAsLimit(t *testing.T) {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 9, Window: 1_000_000})
	stateOf := func(o store.Outcome) *State {
		return newTestState(nil, &Zone{Name: "z"}, &LimitSet{labels: limitLabels("z", 2)}, store.ZoneRequest{
			Limits: []store.Limit{limit}, Slots: &store.Slots{Limit: 2}, Outcome: o,
		})
	}
	denied := stateOf(store.Outcome{
		Verdict: store.Denied, Decisions: []algorithms.Decision{{Allowed: true, Remaining: 8}}, Slots: store.SlotsOutcome{InFlight: 2},
	})
	denied.Entries = append(denied.Entries, stateOf(store.Outcome{Verdict: store.Banned, Slots: store.SlotsOutcome{Free: true}}).Entries...)
	if got := denied.violatedPolicies(); !slices.Equal(got, []string{"z/2", "z"}) {
		t.Errorf("the limits that deny are %q, want z/2 and, by its ban, z", got)
	}
	e := &denied.Entries[0]
	if quota, remaining := e.exceededLimit("limit"), e.exceededLimit("remaining"); quota != "2" || remaining != "0" {
		t.Errorf("the slots are %s, of which %s remain; want 2 and 0", quota, remaining)
	}
	allowed := stateOf(store.Outcome{
		Verdict: store.Allowed, Decisions: []algorithms.Decision{{Allowed: true, Remaining: 4, Charged: 5}},
		Slots: store.SlotsOutcome{Free: true, Taken: true, InFlight: 2},
	})
	if events, ok := allowed.Entries[0].reserved(); events != 5 || !ok {
		t.Errorf("%d events are reserved (%v), want 5", events, ok)
	}
}

// The push-back never ends before the wait, and has 32 bits.
func TestGRPCPushbackValues(t *testing.T) {
	for wait, want := range map[algorithms.Micros]string{
		1: "1", 1000: "1", 1001: "2", 3_600_000_000: "3600000",
		2147483647000: "2147483647", 2147483647001: "-1", algorithms.Forever - 1: "-1", algorithms.Forever: "-1",
	} {
		if got := formatPushback(wait); got != want {
			t.Errorf("after %d µs: %s, want %s", wait, got, want)
		}
	}
}
