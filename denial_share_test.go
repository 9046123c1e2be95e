package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shareIntervalVariable names the variable of the environment in which a test writes how often Caddy
// looks at the counters. The window is shorter, too.
const shareIntervalVariable = "RATE_LIMIT_TEST_SHARE_INTERVAL"

// fakeCounts are counts of requests by zone and outcome.
type fakeCounts map[string]map[string]int64

func (f fakeCounts) add(zone, outcome string, n int64) {
	if f[zone] == nil {
		f[zone] = make(map[string]int64)
	}
	f[zone][outcome] += n
}

// shareStep is a look at the counters after some time and some requests.
type shareStep struct {
	seconds                            int
	allowed, denied, banned, wouldDeny int64
	want                               string // the changes
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
		"a flood":           {{10, 90, 9, 0, 0, ""}, {10, 0, 1, 0, 0, "begin 10/100"}, {40, 0, 30, 0, 0, ""}, {10, 800, 0, 0, 0, ""}, {10, 0, 0, 0, 0, "stop 30/830 after 1m0s with 40"}},
		"bans count":        {{10, 90, 0, 10, 0, "begin 10/100"}},
		"too few":           {{10, 0, 9, 0, 0, ""}, {55, 0, 9, 0, 0, ""}},
		"a small share":     {{10, 91, 10, 0, 0, ""}},
		"shadow":            {{10, 0, 0, 0, 10, "begin shadow 10/10"}, {70, 0, 0, 0, 0, "stop shadow 0/0 after 1m10s with 10"}},
		"both":              {{10, 0, 10, 0, 10, "begin 10/20, begin shadow 10/20"}},
		"not yet calm":      {{10, 0, 10, 0, 0, "begin 10/10"}, {60, 95, 5, 0, 0, ""}, {60, 96, 4, 0, 0, "stop 4/100 after 2m0s with 19"}},
		"again":             {{10, 0, 10, 0, 0, "begin 10/10"}, {60, 0, 0, 0, 0, "stop 0/0 after 1m0s with 10"}, {10, 0, 20, 0, 0, "begin 20/20"}},
		"a look soon after": {{10, 0, 10, 0, 0, "begin 10/10"}, {4, 0, 10, 0, 0, ""}, {56, 1000, 0, 0, 0, "stop 10/1010 after 1m0s with 20"}},
	} {
		t.Run(name, func(t *testing.T) {
			counts, now := make(fakeCounts), time.Now()
			counts.add("api", "denied", 1000) // before the zone is watched
			w := newShareWatch(shareInterval, shareWindow, func() map[string]map[string]int64 { return counts })
			w.join(nil, []string{"api"}, now)
			for i, step := range steps {
				now = now.Add(time.Duration(step.seconds) * time.Second)
				for outcome, n := range map[string]int64{"allowed": step.allowed, "denied": step.denied, "banned": step.banned, "shadow_denied": step.wouldDeny} {
					counts.add("api", outcome, n)
				}
				var got []string
				for _, c := range w.observe(now) {
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
	w := newShareWatch(shareInterval, shareWindow, func() map[string]map[string]int64 { return counts })
	before, after, last := new(App), new(App), new(App)
	w.join(before, []string{"kept", "gone"}, now)
	counts.add("kept", "denied", 10)
	counts.add("gone", "denied", 10)
	if n := len(w.observe(now.Add(shareInterval))); n != 2 {
		t.Fatalf("%d zones begin, want 2", n)
	}
	w.join(after, []string{"kept"}, now.Add(shareInterval))
	w.leave(before)
	counts.add("kept", "denied", 10)
	counts.add("gone", "denied", 10)
	if changes := w.observe(now.Add(2 * shareInterval)); len(changes) > 0 {
		t.Errorf("after a reload: %v", changes)
	}
	if changes := w.observe(now.Add(3 * shareWindow)); len(changes) != 1 || changes[0].zone != "kept" || changes[0].totalDenied != 20 {
		t.Errorf("after a reload: %v, want one zone that stops", changes)
	}
	w.join(last, []string{"gone"}, now.Add(3*shareWindow))
	w.leave(after)
	if changes := w.observe(now.Add(4 * shareWindow)); len(changes) > 0 {
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
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		counts, now := make(fakeCounts), time.Now()
		w := newShareWatch(shareInterval, shareWindow, func() map[string]map[string]int64 { return counts })
		w.join(nil, []string{"a", "b"}, now)
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
				counts.add(zone, []string{"denied", "banned", "shadow_denied"}[random.IntN(3)], denied)
				counts.add(zone, "allowed", n-denied)
			}
			changes := w.observe(now)
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
// It runs alone, because other tests close the connections that a flood needs.
func TestShareMessages(t *testing.T) {
	config := site("zone api {\n fixed_window 1 1000h\n match not path /shadow\n}\nzone tried {\n fixed_window 1 1000h\n match path /shadow\n shadow\n}\n")
	c := startCaddy(t, config, shareIntervalVariable+"=50ms")
	denied := 0
	eventually(t, "the zone denies a share", func() bool {
		denied += flood(t, 20, 4, "/", c)[429]
		return strings.Contains(c.logged(), "a zone denies a share of its requests")
	})
	c.reload(t, config+"# changed\n")
	denied += flood(t, 20, 4, "/", c)[429]
	var messages []string
	eventually(t, "the zone denies no share any more", func() bool {
		messages = regexp.MustCompile(`.*"msg":"a zone (denies|no longer denies) a share of its requests.*`).FindAllString(c.logged(), -1)
		return strings.Contains(messages[len(messages)-1], "no longer")
	})
	counted := 0
	for i, message := range messages { // usually two; more if the machine halts for a moment
		if i%2 == 0 {
			if !regexp.MustCompile(`"a zone denies .*","zone":"api","denied":\d\d+,"requests":\d+,"share":[\d.]+}$`).MatchString(message) {
				t.Errorf("message %d is %s", i+1, message)
			}
			continue
		}
		total := regexp.MustCompile(`"a zone no longer .*","zone":"api","denied":0,"requests":0,"share":0,"lasted":[\d.]+,"total_denied":(\d+)}$`).FindStringSubmatch(message)
		if total == nil {
			t.Fatalf("message %d is %s", i+1, message)
		}
		n, _ := strconv.Atoi(total[1])
		counted += n
	}
	if counted < 10 || counted > denied {
		t.Errorf("the messages count %d denials, of %d", counted, denied)
	}
	eventually(t, "the zone in shadow mode would deny a share", func() bool {
		flood(t, 20, 4, "/shadow", c)
		return strings.Contains(c.logged(), "a zone in shadow mode would deny a share of its requests")
	})
	c.waitForLog(t, "a zone in shadow mode would no longer deny a share of its requests")
}
