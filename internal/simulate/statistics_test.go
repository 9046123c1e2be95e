package simulate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
)

// reportConfiguration has what statistics ask a configuration for.
type reportConfiguration struct {
	Configuration
	zones   []Zone
	maxKeys int64
	notes   []string
}

func (c *reportConfiguration) Zones() []Zone   { return c.zones }
func (c *reportConfiguration) Notes() []string { return c.notes }

func (c *reportConfiguration) LeftOut() []report.LeftOut { return nil }

func (c *reportConfiguration) MaxKeys() int64 { return c.maxKeys }
func (c *reportConfiguration) ShownKey(zone int, key string) string {
	return fmt.Sprintf("<%s of %s>", key, c.zones[zone].Name)
}

func limitsOf(t testing.TB, texts ...string) (limits []*algorithms.Limit) {
	t.Helper()
	for _, text := range texts {
		words := strings.Fields(text)
		events, _ := strconv.ParseInt(words[1], 10, 64)
		window, _ := time.ParseDuration(words[2])
		q := algorithms.Quota{Algorithm: words[0], Events: events, Window: window.Microseconds()} // no limit has 0 of these
		limits = append(limits, storetest.Limit(t, "", q).Limit)
	}
	return limits
}

// randomDecided makes up requests of a log that began at this instant. They aren't consistent with any
// limit, so they reach cases that no limit does.
func randomDecided(random *rand.Rand, zones []Zone, began, step algorithms.Micros, n, keys int) (all []*Decided) {
	came := began
	for range n {
		switch came += random.Int64N(2 * step); random.IntN(10) {
		case 0:
			came += random.Int64N(50 * step)
		case 1:
			came -= random.Int64N(10 * step)
		}
		d := &Decided{
			Visit: &Visit{Start: came},
			Came:  came,
		}
		for zone := range zones {
			if random.IntN(3) == 0 {
				continue
			}
			z := DecidedZone{
				ZoneVisit: &ZoneVisit{Zone: zone, BanOnly: random.IntN(9) == 0},
				Key:       fmt.Sprint("key ", random.IntN(1+random.IntN(keys))),
				Shadow:    random.IntN(9) == 0, Cost: random.Int64N(1 + random.Int64N(5)), Reached: random.IntN(9) > 0,
			}
			z.Denied = z.Reached && random.IntN(3) == 0
			if z.Denied {
				z.Reason = Reason(random.IntN(3))
				d.Denied = d.Denied || !z.Shadow
			} else if z.Reached && random.IntN(4) == 0 {
				z.Delay = random.Int64N(1 << random.IntN(30))
				d.Delay += z.Delay
			}
			d.Zones = append(d.Zones, z)
		}
		all = append(all, d)
	}
	return all
}

// firstDifference returns the first line in which two values differ as JSON.
func firstDifference(t *testing.T, got, want any) string {
	t.Helper()
	lines := func(v any) []string {
		text, err := json.MarshalIndent(v, "", " ")
		errtest.None(t, err)
		return strings.Split(string(text), "\n")
	}
	g, w := lines(got), lines(want)
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("got\n%s\nwant\n%s", strings.Join(g[max(i-10, 0):i+1], "\n"), w[i])
		}
	}
	return "one is longer"
}

// wantSums checks that time adds up to the totals of a report, and so do keys if all are shown.
func wantSums(t *testing.T, seed uint64, r report.Configuration) {
	t.Helper()
	r.Zones = append(r.Zones, report.Zone{Name: "all", Tally: r.Tally, Timeline: r.Timeline, RequestsWithoutRoom: 1})
	for _, z := range r.Zones {
		var time, keys report.Tally
		for _, b := range z.Timeline {
			time.Add(b)
		}
		for _, k := range z.TopKeys {
			keys.Add(k.Tally)
		}
		shown := z.RequestsWithoutRoom == 0 && int64(len(z.TopKeys)) == z.KeysDenied+z.KeysShadowDenied
		if time != z.Tally || shown && (keys.Denied != z.Denied || keys.ShadowDenied != z.ShadowDenied) {
			t.Fatalf("seed %d: %s has %+v, but time adds up to %+v, and keys to %+v", seed, z.Name, z.Tally, time, keys)
		}
	}
}

// Statistics equal the ones of a slow model that keeps all requests.
func TestStatisticsAreExact(t *testing.T) {
	for range seedtest.Cases(t, 150) {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		c := &reportConfiguration{notes: []string{"a note"}, maxKeys: 1_000_000, zones: []Zone{
			{Name: "a", Key: []string{"{client_ip}"}, Sets: []LimitSet{{Limits: limitsOf(t, "gcra 5 1s", "fixed_window 9 7s")}, {Name: "plan p", Limits: limitsOf(t, "gcra 7 1s")}}},
			{Name: "b", Key: []string{"x", "y"}, Shadow: true, Sets: []LimitSet{{Limits: limitsOf(t, "sliding_log 3 1h")}}},
			{Name: "c", Concurrency: 5, MaxDelay: 120_000_000},
			{Name: "d", Sets: []LimitSet{{Open: true}}},
		}}
		if random.IntN(2) == 0 { // the room of the whole configuration is that of one zone
			c.zones, c.maxKeys = c.zones[:1], 1+random.Int64N(40)
		}
		all := randomDecided(random, c.zones, random.Int64N(1<<51), 1+random.Int64N(1<<random.IntN(40)), random.IntN(600), 1+random.IntN(80))
		s := NewStatistics(c)
		for _, d := range all {
			s.Observe(d)
		}
		got, want := s.Report(), modelReport(c, all)
		wantSums(t, seed, got)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %s", seed, firstDifference(t, got, want))
		}
		if !reflect.DeepEqual(s.Report(), want) {
			t.Fatalf("seed %d: the second report differs from the first", seed)
		}
	}
}

// A million keys stay within the budget of memory, and the common request allocates nothing.
func TestStatisticsMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("counts two million requests")
	}
	const keys = 1_000_000
	c := &reportConfiguration{maxKeys: keys, zones: []Zone{
		{Name: "one", Sets: []LimitSet{{Limits: limitsOf(t, "gcra 5 1s", "gcra 100 1h")}}},
		{Name: "two", Sets: []LimitSet{{Limits: limitsOf(t, "gcra 5 1s")}}},
	}}
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	s := NewStatistics(c)
	d := &Decided{Visit: &Visit{}, Zones: []DecidedZone{{ZoneVisit: &ZoneVisit{}, Cost: 1, Reached: true}}}
	observe := func(i int) {
		d.Came += 10
		d.Denied, d.Zones[0].Denied = i%10 == 0, i%10 == 0
		d.Zones[0].Key = strconv.Itoa(i)
		s.Observe(d)
	}
	for i := range keys {
		observe(i)
	}
	if used := live() - before; used > 150<<20 {
		t.Errorf("%d bytes for %d keys", used, keys)
	} else {
		t.Logf("%d bytes for %d keys", used, keys)
	}
	for i := range keys { // without room
		observe(keys + i)
	}
	if used := live() - before; used > 150<<20 {
		t.Errorf("%d bytes after keys without room", used)
	}
	d.Zones[0].ZoneVisit = &ZoneVisit{Zone: 1}
	for i := range keys { // zone two has its share
		observe(i)
	}
	r := s.Report()
	if one, two := r.Zones[0], r.Zones[1]; one.Keys != keys || one.RequestsWithoutRoom != keys || two.Keys != keys/2 || two.RequestsWithoutRoom != keys/2 {
		t.Errorf("%d keys and %d requests without room in zone one, %d and %d in two", one.Keys, one.RequestsWithoutRoom, two.Keys, two.RequestsWithoutRoom)
	}
	runtime.KeepAlive(s)
}
