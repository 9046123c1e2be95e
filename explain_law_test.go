package ratelimit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// An explanation says what becomes of the request that comes next, and changes nothing. The configurations have up to
// three handlers, with zones of their own and with shared ones, which a request meets more than once. The zones have limits, slots,
// bans and delays, and some are in shadow mode. The stores of some configurations fail.
func TestExplainAgrees(t *testing.T) {
	seen := make(map[string]int)
	cases := seedtest.Cases(t, uint64(150))
	for seed := range cases {
		random := rand.New(rand.NewPCG(seed, 31))
		config := drawExplained(random)
		synctest.Test(t, func(t *testing.T) {
			x := loadForLaw(t, random, config)
			for n := range 25 {
				if wrong := x.tryOne(t, random, seen); wrong != "" {
					t.Fatalf("seed %d, request %d of %s: %s", seed, n, config, wrong)
				}
			}
		})
	}
	t.Log(seen)
	for _, what := range []string{
		"allowed", "denied by limit", "denied by concurrency", "denied by ban", "denied by store", "delayed by limit", "delayed by concurrency",
		"unlimited", "meets a zone 3 times", "only shadows fail", "delayed, then allowed", "delayed, then delayed",
	} {
		if cases >= 150 && seen[what] == 0 {
			t.Errorf("no request: %s", what)
		}
	}
}

// drawExplained draws a configuration. Its handlers are in one route.
func drawExplained(random *rand.Rand) string {
	shared := map[string]any{"shared": drawExplainedZone(random, "shared")}
	var handlers []any
	for h := range 1 + random.IntN(3) {
		zones := make(map[string]any)
		for n := range random.IntN(3) {
			name := fmt.Sprintf("own%d%d", h, n)
			zones[name] = drawExplainedZone(random, name)
		}
		handler := map[string]any{"handler": "rate_limit", "rate_limits": zones}
		if len(zones) == 0 || random.IntN(2) == 0 {
			handler["zones"] = []string{"shared"}
		}
		handlers = append(handlers, handler)
	}
	config, _ := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"writer": map[string]any{"output": "discard"}}}},
		"apps": map[string]any{
			"rate_limit": map[string]any{"rate_limits": shared},
			"http": map[string]any{"servers": map[string]any{"a": map[string]any{
				"listen": []string{"silent/x:80"}, "protocols": []string{"h1"}, "automatic_https": map[string]any{"disable": true},
				"routes": []any{map[string]any{"handle": handlers}},
			}}},
		},
	})
	return string(config)
}

// drawExplainedZone draws a zone. A limit that delays refills within seconds. All others don't refill, so a delay doesn't
// change what later handlers decide.
func drawExplainedZone(random *rand.Rand, name string) map[string]any {
	zone := map[string]any{"key": "{http.request.header.Key}"}
	if random.IntN(3) == 0 {
		zone["match"] = []any{map[string]any{"header": map[string]any{"In-" + name: []string{"1"}}}}
	}
	if random.IntN(4) == 0 {
		zone["shadow"] = true
	}
	// A request that meets a zone again is explained by the sum of its costs. That is exact for such limits alone.
	isShared := name == "shared"
	if !isShared && random.IntN(2) == 0 {
		zone["concurrency"] = 1 + random.IntN(2)
	}
	kind := random.IntN(6)
	if isShared {
		kind = 5
	}
	switch kind {
	case 0, 1, 2:
		zone["delay"] = map[string]any{"max": "1h"}
		if zone["concurrency"] == nil || random.IntN(2) == 0 {
			zone["limits"] = []any{map[string]any{
				"algorithm": "gcra", "events": 1, "window": fmt.Sprint(1+random.IntN(5), "s"), "burst": 1 + random.IntN(3),
			}}
		}
	case 3:
		if zone["concurrency"] != nil {
			break
		}
		fallthrough
	default:
		if modes := []string{"binary", "binary", "nary", "uniform", "force"}; !isShared {
			zone["mode"] = modes[random.IntN(len(modes))]
		}
		var limits []any
		for range 1 + random.IntN(2) {
			window := fmt.Sprint(1000+len(limits), "h")
			limits = append(limits, map[string]any{"algorithm": "fixed_window", "events": 2 + random.IntN(8), "window": window})
		}
		zone["limits"] = limits
		if random.IntN(3) == 0 {
			zone["ban"] = map[string]any{"after": 1 + random.IntN(2), "duration": "1000h"}
		}
	}
	if zone["limits"] != nil {
		zone["cost"] = "{http.request.header.Cost}"
	}
	return zone
}

// explainLaw is a configuration in force.
type explainLaw struct {
	handlers []*Handler
	release  chan struct{} // closed to end the requests that hold slots
}

// silentListener accepts no connection. In a bubble nothing waits for the network.
type silentListener struct{ closed chan struct{} }

func (l *silentListener) Accept() (net.Conn, error) { <-l.closed; return nil, net.ErrClosed }
func (l *silentListener) Close() error              { close(l.closed); return nil }
func (*silentListener) Addr() net.Addr              { return &net.TCPAddr{Port: 80} }

func init() {
	caddy.RegisterNetwork("silent", func(context.Context, string, string, string, uint, net.ListenConfig) (any, error) {
		return &silentListener{make(chan struct{})}, nil
	})
}

// loadForLaw loads a configuration. If random is not nil, it makes the store fail in some cases.
func loadForLaw(t *testing.T, random *rand.Rand, config string) *explainLaw {
	errtest.None(t, caddy.Load([]byte(config), true), config)
	x := &explainLaw{release: make(chan struct{})}
	t.Cleanup(func() {
		close(x.release)
		time.Sleep(time.Minute) // in virtual time: all reports of denials have been made
		_ = caddy.Stop()
		time.Sleep(time.Minute) // in virtual time
	})
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	errtest.None(t, err)
	fails := random != nil && random.IntN(5) == 0
	for _, h := range app.(*caddyhttp.App).Servers["a"].Routes[0].Handlers {
		h := h.(*Handler)
		if x.handlers = append(x.handlers, h); fails {
			h.limiter.Store = failingStore{h.limiter.Store}
			h.limiter.StoreErrorPolicy.Mode = []string{"allow", "deny"}[random.IntN(2)]
		}
	}
	return x
}

// failingStore is a store that can't decide.
type failingStore struct{ store.Store }

func (failingStore) Take(context.Context, []store.ZoneRequest) (bool, error) {
	return false, &store.Error{Reason: store.ReasonConnection, Err: errors.New("it fails")}
}

// servedForLaw is the outcome of a request.
type servedForLaw struct {
	status    int // 200: it has passed all handlers
	took      time.Duration
	waited    bool // for a slot
	reached   int  // handlers
	header    http.Header
	zone      string // that denied it
	reason    string
	outermost *limiter.State
}

// tryOne explains a request, and then sends it. It returns what is wrong, or "".
func (x *explainLaw) tryOne(t *testing.T, random *rand.Rand, seen map[string]int) (wrong string) {
	header := map[string][]string{"Key": {fmt.Sprint(random.IntN(2))}, "Cost": {fmt.Sprint(random.IntN(4))}}
	for _, h := range x.handlers {
		for _, z := range h.zones {
			if random.IntN(3) > 0 {
				header[http.CanonicalHeaderKey("In-"+z.Name)] = []string{"1"}
			}
		}
	}
	body, _ := json.Marshal(map[string]any{"url": "http://x/", "headers": header})
	var views [2]*adminapi.Explanation
	for i := range views {
		view, err := (&admin.OperatorRequest{Ctx: t.Context(), Body: string(body)}).Explain()
		if err != nil {
			return err.Error()
		}
		views[i] = view.(*adminapi.Explanation)
	}
	if !reflect.DeepEqual(views[0], views[1]) {
		return fmt.Sprintf("explained twice: %s, and %s", describeForLaw(views[0]), describeForLaw(views[1]))
	}
	meets := meetings(views[0])
	for _, h := range x.handlers {
		for _, z := range h.zones {
			twice := fmt.Sprintf("the request meets zone %s twice, so its cost counts twice", z.Name)
			if meets[z.Name] < 2 && slices.Contains(views[0].Notes, twice) {
				return twice
			}
		}
	}
	got := x.serve(header, random.IntN(4) == 0)
	x.count(views[0], &got, seen)
	if what := disagrees(views[0], &got, len(x.handlers)); what != "" {
		return fmt.Sprintf("%v: %s: explained as %s, but got %+v", header, what, describeForLaw(views[0]), got)
	}
	return ""
}

func describeForLaw(x *adminapi.Explanation) string {
	text, _ := json.Marshal(x)
	return string(text)
}

// serve sends a request. If it holds, it keeps its slots. If it waits for a slot, all that hold slots end.
func (x *explainLaw) serve(header http.Header, holds bool) (got servedForLaw) {
	r := httptest.NewRequest("GET", "http://x/", nil)
	r.Header = header.Clone()
	w, repl := httptest.NewRecorder(), caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, w, nil)
	began, done, release := time.Now(), make(chan struct{}), x.release
	next := caddyhttp.Handler(caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		got.status, got.took = http.StatusOK, time.Since(began)
		close(done)
		if holds {
			<-release
		}
		return nil
	}))
	for i := len(x.handlers) - 1; i >= 0; i-- {
		h, behind := x.handlers[i], next
		next = caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			got.reached = i + 1
			return h.ServeHTTP(w, r, behind)
		})
	}
	go func() {
		_ = next.ServeHTTP(w, r)
		if got.status == 0 {
			got.status, got.took = w.Code, time.Since(began)
			close(done)
		}
	}()
	for {
		synctest.Wait()
		if waiting, _ := limiter.ProcessSlotLines.Waiting(); waiting > 0 && !got.waited {
			got.waited = true
			close(x.release)
			x.release = make(chan struct{})
		}
		select {
		case <-done:
			synctest.Wait() // until it has given everything back, or holds its slots
			got.header = w.Header()
			got.zone, got.reason = repl.ReplaceAll("{http.rate_limit.exceeded.name}", ""), repl.ReplaceAll("{http.rate_limit.exceeded.reason}", "")
			v, _ := repl.Get(limiter.PlaceholderPrefix)
			got.outermost, _ = v.(*limiter.State)
			return got
		case <-time.After(time.Second): // in virtual time
		}
	}
}

// meetings returns how often the request meets each zone.
func meetings(view *adminapi.Explanation) map[string]int {
	meets := make(map[string]int)
	for _, h := range view.Handlers {
		for _, z := range h.Zones {
			if z.Applies == limiter.AppliesYes {
				meets[z.Zone]++
			}
		}
	}
	return meets
}

func (x *explainLaw) count(view *adminapi.Explanation, got *servedForLaw, seen map[string]int) {
	what := view.Verdict
	if view.Decides != nil {
		what += " by " + view.Decides.Reason
	}
	seen[what]++
	meets, shadows := meetings(view), true
	for _, h := range view.Handlers {
		for _, z := range h.Zones {
			shadows = shadows && (z.Shadow || z.Applies != limiter.AppliesYes)
		}
	}
	if meets["shared"] == 3 {
		seen["meets a zone 3 times"]++
	}
	first := x.handlers[0].limiter
	if _, fails := first.Store.(failingStore); fails && shadows && len(meets) > 0 && first.StoreErrorPolicy.Mode == "deny" {
		seen["only shadows fail"]++
	}
	if last := view.Handlers[len(view.Handlers)-1].Zones; view.Verdict == "delayed" && len(last) > 0 {
		if what := "delayed, then " + last[0].Verdict; len(view.Handlers) > 1 {
			seen[what]++
		}
	}
}

// disagrees returns in what an explanation disagrees with what has become of the request.
func disagrees(view *adminapi.Explanation, got *servedForLaw, handlers int) string {
	decides := view.Decides
	switch {
	case got.waited && view.Verdict == "delayed" && decides.Reason != store.DeniedByConcurrency:
		return "it waited for a slot"
	case got.waited: // other requests have ended since
		return ""
	case view.Verdict == "delayed" && decides.Reason == store.DeniedByConcurrency:
		return "it waited for no slot"
	case (view.Verdict == "denied") != (got.status != http.StatusOK):
		return "denied, or not"
	case view.Verdict != "delayed" && view.Verdict != "denied" && got.took > 0:
		return "it was delayed"
	case view.Verdict == "delayed" && secondsOf(got.took) != *decides.RetryAfter:
		return "the delay"
	case view.Verdict == "denied" && !chargesDenials(view): // the explanation is without the charge
		if what := deniesOtherwise(decides, got); what != "" {
			return what
		}
	}
	for i, h := range view.Handlers {
		if h.Reached != (i < got.reached) {
			return fmt.Sprintf("whether handler %d is reached", i)
		}
		if slices.ContainsFunc(h.Zones, func(z adminapi.ExplainedZone) bool { return z.Cost > 3 }) {
			return "the cost, which is at most 3 in a request"
		}
	}
	if (view.Verdict == "unlimited") != (len(meetings(view)) == 0) {
		return "whether zones limit it"
	}
	if len(view.Handlers) != handlers {
		return "the number of handlers"
	}
	return describedOtherwise(&view.Handlers[0], got)
}

// chargesDenials reports whether a zone charges denied requests.
func chargesDenials(view *adminapi.Explanation) bool {
	return slices.ContainsFunc(view.Handlers, func(h adminapi.ExplainedHandler) bool {
		return slices.ContainsFunc(h.Zones, func(z adminapi.ExplainedZone) bool { return z.Mode == "uniform" && !z.Shadow })
	})
}

func secondsOf(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

// deniesOtherwise compares the reason of a denial.
func deniesOtherwise(decides *adminapi.Decision, got *servedForLaw) string {
	if decides.Reason == "store" {
		if got.status != http.StatusServiceUnavailable || *decides.RetryAfter != 1 {
			return "the failure of the store"
		}
		return ""
	}
	retryAfter := ""
	switch {
	case decides.RetryAfter == nil:
	case decides.Reason == store.DeniedByConcurrency:
		retryAfter = "1"
	default:
		retryAfter = strconv.FormatInt(int64(*decides.RetryAfter-secondsOf(got.took)+0.999999), 10) // after the delays of handlers before
	}
	if got.status != http.StatusTooManyRequests || got.zone != decides.Zone || got.reason != decides.Reason {
		return "what denies it"
	}
	if header := got.header.Get("Retry-After"); retryAfter != "" && header != retryAfter {
		return "Retry-After is " + header
	}
	return ""
}

// describedOtherwise compares the zones of the first handler.
func describedOtherwise(h *adminapi.ExplainedHandler, got *servedForLaw) string {
	for _, v := range h.Zones {
		if v.Applies != limiter.AppliesYes || got.outermost == nil {
			continue
		}
		for i := range got.outermost.Entries {
			e := &got.outermost.Entries[i]
			if e.Zone.Name != v.Zone {
				continue
			}
			verdict := map[store.Verdict]string{store.Allowed: "allowed", store.Denied: "denied", store.Banned: "banned"}[e.Outcome.Verdict]
			if verdict == "allowed" && v.Verdict == "delayed" && (got.took > 0 || e.RequiredDelay() > 0) { // it was, or another zone denies it
				verdict = "delayed"
			}
			if v.Cost != e.Cost || v.Shadow != e.Shadow || v.Mode != e.Mode.String() || v.Verdict != verdict {
				return fmt.Sprintf("zone %s: %+v", v.Zone, e.Outcome)
			}
			for n, l := range v.Limits {
				d := e.Outcome.Decisions[n]
				after := max(d.RetryAfter, d.Wait)
				if comparable := got.took == 0 && verdict != "allowed" && v.Mode != "uniform"; !comparable || after >= algorithms.Forever {
					continue
				}
				if *l.RetryAfter != float64(after)/1e6 {
					return fmt.Sprintf("limit %d of zone %s: %+v", n, v.Zone, d)
				}
			}
		}
	}
	return ""
}
