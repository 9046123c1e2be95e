package denials

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// fakeCounts are counts of requests by zone.
type fakeCounts map[string]Counts

func (f fakeCounts) add(zone string, more Counts) {
	c := f[zone]
	f[zone] = Counts{c.Requests + more.Requests, c.Denied + more.Denied, c.WouldDeny + more.WouldDeny}
}

func (f fakeCounts) get() map[string]Counts { return f }

// shareStep is a look at the counters after some time and some requests.
type shareStep struct {
	seconds                    int
	allowed, denied, wouldDeny int64
	want                       string // the changes
}

func (c shareChange) String() string {
	text := fmt.Sprintf("%d/%d", c.denied, c.requests)
	if c.shadow {
		text = "shadow " + text
	}
	if c.stopped {
		return fmt.Sprintf("stop %s after %v with %d", text, c.lasted, c.totalDenied)
	}
	return "begin " + text
}

func TestShareWatch(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]shareStep{
		"a flood":           {{10, 90, 9, 0, ""}, {10, 0, 1, 0, "begin 10/100"}, {40, 0, 30, 0, ""}, {10, 800, 0, 0, ""}, {10, 0, 0, 0, "stop 30/830 after 1m0s with 40"}},
		"too few":           {{10, 0, 9, 0, ""}, {55, 0, 9, 0, ""}},
		"a small share":     {{10, 91, 10, 0, ""}},
		"shadow":            {{10, 0, 0, 10, "begin shadow 10/10"}, {70, 0, 0, 0, "stop shadow 0/0 after 1m10s with 10"}},
		"both":              {{10, 0, 10, 10, "begin 10/20, begin shadow 10/20"}},
		"not yet calm":      {{10, 0, 10, 0, "begin 10/10"}, {60, 95, 5, 0, ""}, {60, 96, 4, 0, "stop 4/100 after 2m0s with 19"}},
		"again":             {{10, 0, 10, 0, "begin 10/10"}, {60, 0, 0, 0, "stop 0/0 after 1m0s with 10"}, {10, 0, 20, 0, "begin 20/20"}},
		"a look soon after": {{10, 0, 10, 0, "begin 10/10"}, {4, 0, 10, 0, ""}, {56, 1000, 0, 0, "stop 10/1010 after 1m0s with 20"}},
	} {
		t.Run(name, func(t *testing.T) {
			counts, now := make(fakeCounts), time.Now()
			counts.add("api", Counts{Requests: 1000, Denied: 1000}) // before the zone is watched
			w := newShareWatch()
			w.join([]string{"api"}, counts.get, now)
			for i, step := range steps {
				now = now.Add(time.Duration(step.seconds) * time.Second)
				counts.add("api", Counts{step.allowed + step.denied + step.wouldDeny, step.denied, step.wouldDeny})
				var got []string
				for _, c := range w.observe(counts.get, now) {
					got = append(got, c.String())
				}
				slices.Sort(got)
				if got := strings.Join(got, ", "); got != step.want {
					t.Errorf("step %d: %q, want %q", i+1, got, step.want)
				}
			}
		})
	}
}

// A reload keeps what is known about a zone. A zone that no configuration has is forgotten.
func TestShareWatchForgets(t *testing.T) {
	t.Parallel()
	counts, now := make(fakeCounts), time.Now()
	w := newShareWatch()
	before := w.join([]string{"kept", "gone"}, counts.get, now)
	counts.add("kept", Counts{Requests: 10, Denied: 10})
	counts.add("gone", Counts{Requests: 10, Denied: 10})
	if n := len(w.observe(counts.get, now.Add(shareInterval))); n != 2 {
		t.Fatalf("%d zones begin, want 2", n)
	}
	after := w.join([]string{"kept"}, counts.get, now.Add(shareInterval))
	w.leave(before)
	counts.add("kept", Counts{Requests: 10, Denied: 10})
	counts.add("gone", Counts{Requests: 10, Denied: 10})
	if changes := w.observe(counts.get, now.Add(2*shareInterval)); len(changes) > 0 {
		t.Errorf("after a reload: %v", changes)
	}
	if changes := w.observe(counts.get, now.Add(3*shareWindow)); len(changes) != 1 || changes[0].zone != "kept" || changes[0].totalDenied != 20 {
		t.Errorf("after a reload: %v, want one zone that stops", changes)
	}
	last := w.join([]string{"gone"}, counts.get, now.Add(3*shareWindow))
	w.leave(after)
	if changes := w.observe(counts.get, now.Add(4*shareWindow)); len(changes) > 0 {
		t.Errorf("a zone comes back, with the denials of before: %v", changes)
	}
	w.leave(last)
	if len(w.shares) > 0 || len(w.zones) > 0 {
		t.Errorf("no configuration is left, but %v and %v are", w.shares, w.zones)
	}
}

// The messages of a zone alternate. There are at most two in a minute, the samples have a bound, and a
// zone only begins or stops with a share of its last minute that says so.
func TestShareWatchProperties(t *testing.T) {
	t.Parallel()
	for seed := range seedtest.Cases(t, uint64(100)) {
		random := rand.New(rand.NewPCG(seed, 0))
		counts, now := make(fakeCounts), time.Now()
		w := newShareWatch()
		w.join([]string{"a", "b"}, counts.get, now)
		type past struct {
			at     time.Time
			counts map[shareID]shareSample
		}
		history := []past{{now, map[shareID]shareSample{}}}
		messages := make(map[shareID][]shareChange)
		times := make(map[shareID][]time.Time)
		busy := 0
		for range 500 {
			now = now.Add(time.Duration(random.Int64N(int64(2 * shareInterval))))
			if random.IntN(20) == 0 {
				busy = random.IntN(100) // the percentage of denials
			}
			for _, zone := range []string{"a", "b"} {
				n := random.Int64N(100)
				denied := n * int64(busy) / 100
				if random.IntN(3) == 0 {
					counts.add(zone, Counts{Requests: n, WouldDeny: denied})
				} else {
					counts.add(zone, Counts{Requests: n, Denied: denied})
				}
			}
			changes := w.observe(counts.get, now)
			if w.observed != now {
				continue // soon after the last one
			}
			current := past{now, make(map[shareID]shareSample)}
			for id, s := range w.shares {
				current.counts[id] = newShareSample(now, id, counts[id.zone])
				if len(s.samples) > 2*int(shareWindow/shareInterval)+2 {
					t.Fatalf("seed %d: %d samples", seed, len(s.samples))
				}
			}
			history = append(history, current)
			base := history[0]
			for _, p := range history {
				if now.Sub(p.at) >= shareWindow-shareInterval/2 {
					base = p
				}
			}
			for _, c := range changes {
				id := c.shareID
				before := messages[id]
				if c.stopped != (len(before)%2 == 1) {
					t.Fatalf("seed %d: %v is message %d of %v", seed, c, len(before)+1, id)
				}
				if n := len(before); n >= 2 && now.Sub(times[id][n-2]) < shareWindow {
					t.Fatalf("seed %d: three messages of %v in %v", seed, id, now.Sub(times[id][n-2]))
				}
				denied := current.counts[id].denied - base.counts[id].denied
				requests := current.counts[id].requests - base.counts[id].requests
				if c.denied != denied || c.requests != requests {
					t.Fatalf("seed %d: %v, but the last minute had %d/%d", seed, c, denied, requests)
				}
				if share := float64(denied) / float64(max(requests, 1)); c.stopped && share >= 0.05 || !c.stopped && (share < 0.1 || denied < 10) {
					t.Fatalf("seed %d: %v", seed, c)
				}
				messages[id], times[id] = append(before, c), append(times[id], now)
			}
		}
		if len(messages) < 2 {
			t.Errorf("seed %d: only %d zones have messages", seed, len(messages))
		}
	}
}

// An operator without metrics learns from the log that a zone denies a share of its requests. A reload
// in between changes nothing.
func TestWatchShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		var mu sync.Mutex
		current, w := make(fakeCounts), newShareWatch()
		counts := func() map[string]Counts {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(current)
		}
		deny := func(zone string, c Counts) {
			mu.Lock()
			defer mu.Unlock()
			current.add(zone, c)
		}
		ctx, end := context.WithCancel(t.Context())
		w.watch(ctx, []string{"api", "tried"}, counts, zap.New(core))
		synctest.Wait() // it has looked for the first time
		deny("api", Counts{Requests: 40, Denied: 10})
		deny("tried", Counts{Requests: 10, WouldDeny: 10})
		time.Sleep(shareInterval)
		synctest.Wait()
		next, endNext := context.WithCancel(t.Context())
		w.watch(next, []string{"api", "tried"}, counts, zap.New(core))
		end()
		deny("api", Counts{Requests: 10, Denied: 5})
		time.Sleep(3 * shareWindow)
		endNext()
		synctest.Wait()
		var got []string
		for _, m := range logs.TakeAll() {
			fields := m.ContextMap()
			got = append(got, fmt.Sprint(m.Message, ": ", fields["zone"], " ", fields["denied"], "/", fields["requests"], " ", fields["share"],
				" ", fields["lasted"], " ", fields["total_denied"]))
		}
		want := []string{
			"a zone denies a share of its requests: caddy rate-limit top names the keys: api 10/40 0.25 <nil> <nil>",
			"a zone in shadow mode would deny a share of its requests: tried 10/10 1 <nil> <nil>",
			"a zone no longer denies a share of its requests: api 0/0 0 1m10s 15",
			"a zone in shadow mode would no longer deny a share of its requests: tried 0/0 0 1m0s 10",
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the log has %q, want %q", got, want)
		}
		if len(w.zones) > 0 || len(w.shares) > 0 {
			t.Errorf("no configuration is left, but %v and %v are", w.zones, w.shares)
		}
	})
}
