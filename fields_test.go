package ratelimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// wantSpan checks that a field is a number of seconds with three decimals, the
// wanted one or up to five less.
func (r response) wantSpan(t *testing.T, field string, want float64) {
	t.Helper()
	got, err := strconv.ParseFloat(r.field(field), 64)
	if err != nil || got > want || got < want-5 || !regexp.MustCompile(`^\d+\.\d{3}$`).MatchString(r.field(field)) {
		t.Errorf("%s: %q, want %.3f", field, r.field(field), want)
	}
}

func TestSharkeyFields(t *testing.T) {
	t.Parallel()
	const zone = "zone %s {\n leaky_bucket 1 1h 3\n}\nheaders sharkey draft_06\n"
	c := startCaddy(t, site(fmt.Sprintf(zone, "a")))
	for i, left := range []string{"2", "1", "0"} {
		r := c.get(t, "/")
		r.want(t, 200, "X-RateLimit-Remaining", left, "X-RateLimit-Reset", "", "X-RateLimit-Limit", "", "Retry-After", "",
			"RateLimit-Limit", "3", "RateLimit-Remaining", left)
		r.wantSpan(t, "X-RateLimit-Clear", 3600*float64(i+1))
	}
	r := c.get(t, "/")
	r.want(t, 429, "X-RateLimit-Remaining", "0", "Retry-After", "3600", "RateLimit-Remaining", "0")
	r.wantSpan(t, "X-RateLimit-Clear", 3*3600)
	r.wantSpan(t, "X-RateLimit-Reset", 3600)

	// With a wait of less than a second.
	c.reload(t, site("zone quick {\n leaky_bucket 1 300ms 1\n}\nheaders sharkey"))
	for deadline := time.Now().Add(patient); ; {
		r := c.get(t, "/")
		if r.StatusCode == 429 {
			r.wantSpan(t, "X-RateLimit-Reset", 0.3)
			r.wantSpan(t, "X-RateLimit-Clear", 0.3)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never denied")
		}
	}
	c.reload(t, site("zone never {\n leaky_bucket 1 1h 3\n cost 4\n}\nheaders sharkey"))
	c.get(t, "/").want(t, 429, "X-RateLimit-Remaining", "3", "X-RateLimit-Clear", "0.000", "X-RateLimit-Reset", "", "Retry-After", "")
}

// wantFields checks, with a parser that isn't ours, that a response carries the
// fields of all forms, each of them well-formed, for these zones.
func (r response) wantFields(t *testing.T, zones ...string) {
	t.Helper()
	for field, parameters := range map[string][]string{"RateLimit-Policy": {"q", "w"}, "RateLimit": {"r"}} {
		list, err := httpsfv.UnmarshalList(r.Header.Values(field))
		if err != nil || len(list) != len(zones) {
			t.Errorf("status %d: %s: %q, %v; want zones %q", r.StatusCode, field, r.Header.Values(field), err, zones)
			continue
		}
		for i, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok || item.Value != zones[i] {
				t.Errorf("%s: %+v, want zone %q", field, member, zones[i])
				continue
			}
			for _, name := range parameters {
				if n, there := item.Params.Get(name); !there || fmt.Sprintf("%T", n) != "int64" {
					t.Errorf("%s: %q: %s is %v", field, zones[i], name, n)
				}
			}
		}
	}
	r.wantFamilies(t)
}

// wantFamilies checks that the fields with one value are well-formed.
func (r response) wantFamilies(t *testing.T) {
	t.Helper()
	for _, field := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Clear"} {
		if item, err := httpsfv.UnmarshalItem(r.Header.Values(field)); err != nil || len(r.Header.Values(field)) != 1 {
			t.Errorf("status %d: %s: %q %v %v", r.StatusCode, field, r.Header.Values(field), item.Value, err)
		}
	}
}

// Every response has the fields.
func TestFieldsOnEveryResponse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file.txt"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{
	admin {$ADMIN}
}
{$SITE}
route {
	respond /ready ok
	rate_limit {
		zone all {
			fixed_window 1000 1h
		}
		zone few {
			match path /denied
			fixed_window 1 1h
		}
		headers draft draft_06 sharkey
	}
	respond /empty 204
	respond /moved 301
	respond /answered "sorry" 500
	error /error 418
	reverse_proxy /down localhost:%s
	root %s
	file_server /file.txt
	respond /closed "" 200 {
		close
	}
	respond /denied ok
}
`, redistest.FreePort(t), dir)
	c := startCaddy(t, config)
	check := func(t *testing.T) {
		file := c.get(t, "/file.txt")
		for _, one := range []struct {
			method, path string
			status       int
			header       []string
		}{
			{"GET", "/file.txt", 200, nil},
			{"HEAD", "/file.txt", 200, nil},
			{"GET", "/file.txt", 206, []string{"Range", "bytes=0-2"}},
			{"GET", "/file.txt", 416, []string{"Range", "bytes=99-"}},
			{"GET", "/file.txt", 304, []string{"If-None-Match", file.Header.Get("Etag")}},
			{"POST", "/file.txt", 405, nil},
			{"GET", "/empty", 204, nil},
			{"GET", "/moved", 301, nil},
			{"GET", "/answered", 500, nil},
			{"GET", "/error", 418, nil},
			{"GET", "/down", 502, nil},
			{"GET", "/closed", 200, nil},
			{"GET", "/nobody", 200, nil},
			{"GET", "/denied", 200, nil},
			{"GET", "/denied", 429, nil},
			{"HEAD", "/denied", 429, nil},
		} {
			r, err := c.do(one.method, "http://"+c.site+one.path, "", one.header...)
			if err != nil || r.StatusCode != one.status {
				t.Errorf("%s %s: %v %v, want %d", one.method, one.path, r.Response, err, one.status)
				continue
			}
			zones := []string{"all"}
			if one.path == "/denied" {
				zones = append(zones, "few")
			}
			r.wantFields(t, zones...)
		}
	}
	t.Run("without error routes", check)
	c.reload(t, strings.Replace(config, "fixed_window 1 1h", "fixed_window 1 2h", 1)+"handle_errors {\n respond \"rendered {err.status_code}\"\n}\n")
	if r := c.get(t, "/error"); r.body != "rendered 418" {
		t.Errorf("the error routes answer %q", r.body)
	}
	t.Run("with error routes", check)
}

// FuzzFields checks that the fields are well-formed, and mean the same to an independent parser. It
// draws names of zones, decisions, and fields of others with the same names.
func FuzzFields(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, "api v1; =,*")
	}
	f.Add(uint64(7), "!")
	f.Fuzz(func(t *testing.T, seed uint64, name string) {
		if checkZoneName(name) != nil {
			return
		}
		r := rand.New(rand.NewPCG(seed, 1))
		number := func() int64 { return r.Int64N(1<<r.IntN(53) + 1) }
		up := func(m algorithms.Micros) int64 { return int64(math.Ceil(float64(m) / 1e6)) } // exact enough below 2^53
		state := &requestState{allowed: r.IntN(2) == 0}
		var policies, items []string // as they are to be understood
		known := false               // what the limit nearest to exhaustion has left
		decision := func() algorithms.Decision {
			d := algorithms.Decision{
				Allowed: state.allowed || r.IntN(2) == 0, Remaining: number(), MoreAfter: number(), ResetAfter: number(), RetryAfter: []int64{0, number(), algorithms.Forever}[r.IntN(3)],
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
			if more > 0 && (state.allowed || !d.Allowed) {
				item += fmt.Sprintf(" t=%d", up(more))
			}
			items = append(items, item)
		}
		for i := range 1 + r.IntN(3) {
			z := &zone{name: fmt.Sprint(name, i)}
			given := &limitSet{}
			for range r.IntN(4) {
				bits := r.IntN(47) // not the largest integers there are, which the parser takes for too large
				limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 1 + r.Int64N(1<<bits), Window: 1 + r.Int64N(1<<(50-bits))})
				if err != nil {
					t.Fatal(err)
				}
				given.limits = append(given.limits, limit)
			}
			n := len(given.limits)
			if n == 0 || r.IntN(3) == 0 {
				given.slots = &store.Slots{Limit: 1 + number()%maxConcurrency}
			}
			if n > 0 && r.IntN(3) == 0 {
				given.ban = &algorithms.Ban{After: 1, Window: 1_000_000, Duration: 1_000_000, Max: 1_000_000}
			}
			given.nameBudgets(z.name, make([]keyTemplate, 1))
			labels := limitLabels(z.name, n+1) // the last is that of the slots, if there are any
			b := given.budgets[0]
			q := store.Request{Shadow: r.IntN(4) == 0, Limits: b.limits, Slots: b.slots, Ban: b.ban}
			stands := given.ban != nil && !state.allowed && r.IntN(2) == 0
			for i, l := range q.Limits {
				d := decision()
				if stands {
					d = algorithms.Decision{NotAsked: true}
				}
				q.Outcome.Decisions = append(q.Outcome.Decisions, d)
				if q.Shadow {
					continue
				}
				policies = append(policies, fmt.Sprintf("%q q=%d w=%d", labels[i], min(l.Burst, httpfields.MaxInteger), up(l.Window)))
				if !stands {
					item(labels[i], d, l.Burst)
				}
			}
			if s := q.Slots; s != nil {
				o := &q.Outcome.Slots
				o.InFlight = s.Limit
				d := algorithms.Decision{MoreAfter: slotRetryAfter, RetryAfter: slotRetryAfter}
				if o.Taken, o.Free = state.allowed, state.allowed || r.IntN(2) == 0; o.Free {
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
			state.requests = append(state.requests, q)
			state.entries = append(state.entries, zoneEntry{zone: z, limitSet: given})
		}
		for i := range state.entries {
			state.entries[i].Request = &state.requests[i]
		}
		if !state.hasEnforcedZone() {
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
		said := response{Response: &http.Response{Header: h}}
		said.wantItems(t, "RateLimit-Policy", policies)
		said.wantItems(t, "RateLimit", items)
		if r.IntN(2) == 0 {
			h["X-Ratelimit-Remaining"] = []string{fmt.Sprint(number())}
			h["X-Ratelimit-Clear"] = []string{"1.000"}
		}
		state.setFamilies(h, newHeaderForms([]string{"draft_06", "sharkey"}).families)
		if known {
			said.wantFamilies(t)
		}
	})
}

// No number is sent that is too large for a structured field.
func TestLargestInteger(t *testing.T) {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 1 << 51, Window: 1})
	if err != nil {
		t.Fatal(err)
	}
	given := &limitSet{limits: []*algorithms.Limit{limit}}
	given.nameBudgets("z", make([]keyTemplate, 1))
	state := newTestState(nil, &zone{name: "z"}, given, store.Request{
		Limits: given.budgets[0].limits, Outcome: store.Outcome{Decisions: []algorithms.Decision{{Allowed: true, Remaining: 1<<51 - 1}}},
	})
	state.allowed = true
	h := make(http.Header)
	state.setDraftFields(h)
	state.setFamilies(h, newHeaderForms([]string{"draft_06"}).families)
	for field, want := range map[string]string{
		"RateLimit-Policy": `"z";q=999999999999999;w=1`, "RateLimit": `"z";r=999999999999999`,
		"RateLimit-Limit": "999999999999999", "RateLimit-Remaining": "999999999999999",
	} {
		wantText(t, field, h.Get(field), want)
	}
}

// wantItems checks that a field is a list of these items, with these parameters in this
// order, all of which are integers or tokens.
func (r response) wantItems(t *testing.T, field string, want []string) {
	t.Helper()
	list, err := httpsfv.UnmarshalList(r.Header.Values(field))
	var got []string
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			t.Errorf("%s: %+v is no item", field, member)
			continue
		}
		text := fmt.Sprintf("%q", item.Value)
		for _, name := range item.Params.Names() {
			v, _ := item.Params.Get(name)
			text += fmt.Sprintf(" %s=%v", name, v)
		}
		got = append(got, text)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %q is %q, %v; want %q", field, r.Header.Values(field), got, err, want)
	}
}
