package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
)

// reportConfiguration has what statistics ask a configuration for.
type reportConfiguration struct {
	zones   []Zone
	maxKeys int64
	notes   []string
}

func (c *reportConfiguration) Zones() []Zone   { return c.zones }
func (c *reportConfiguration) Notes() []string { return c.notes }
func (c *reportConfiguration) MaxKeys() int64  { return c.maxKeys }
func (c *reportConfiguration) ShownKey(zone int, key string) string {
	return fmt.Sprintf("<%s of %s>", key, c.zones[zone].Name)
}

func (c *reportConfiguration) Visit(*accesslog.Request) (*Visit, error) {
	panic("the visits of these tests are made up")
}

func limitOf(t testing.TB, text string) *algorithms.Limit {
	t.Helper()
	words := strings.Fields(text)
	events, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	window, err := time.ParseDuration(words[2])
	if err != nil {
		t.Fatal(err)
	}
	l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: words[0], Events: events, Window: window.Microseconds()})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func limitsOf(t testing.TB, texts ...string) (limits []*algorithms.Limit) {
	t.Helper()
	for _, text := range texts {
		limits = append(limits, limitOf(t, text))
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
			Visit: &Visit{
				Start: came, Status: []int{200, 200, 200, 301, 404, 429, 500, 0}[random.IntN(8)],
				Path: []string{"", "/", "/a", "/a/b", "/b/", "*", fmt.Sprintf("/%d/x", random.IntN(30))}[random.IntN(7)],
			},
			Came: came,
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

// modelReport computes a report slowly, from all requests at once.
func modelReport(c *reportConfiguration, all []*Decided) ConfigurationReport {
	r := ConfigurationReport{Notes: append([]string{}, c.notes...), Timeline: []Bucket{}, ByPath: []Group{}, ByStatus: []Group{}, Zones: []ZoneReport{}}
	var instants []algorithms.Micros
	for i, d := range all {
		if instants = append(instants, d.Came); i > 0 {
			instants[i] = max(d.Came, instants[i-1])
		}
	}
	statuses, paths := make(map[int]Group), make(map[string]Group)
	add := func(g Group, denied bool) Group {
		g.Requests++
		if denied {
			g.Denied++
		}
		return g
	}
	for _, d := range all {
		statuses[d.Status] = add(statuses[d.Status], d.Denied)
		segment := "/"
		if d.Path != "" {
			segment = d.Path[:1] + strings.Split(d.Path[1:], "/")[0]
		}
		paths[segment] = add(paths[segment], d.Denied)
		r.Requests++
		if d.Denied {
			r.Denied++
		}
		if d.Delay > 0 {
			r.Delayed++
		}
		if d.Denied || slices.ContainsFunc(d.Zones, func(z DecidedZone) bool { return !z.BanOnly }) {
			r.Limited++
		}
	}
	for status := 1; status < 1000; status++ {
		if g := statuses[status]; g.Requests > 0 {
			r.ByStatus = append(r.ByStatus, Group{fmt.Sprint(status), g.Requests, g.Denied})
		}
	}
	if g := statuses[0]; g.Requests > 0 {
		r.ByStatus = append(r.ByStatus, Group{"none", g.Requests, g.Denied})
	}
	for name, g := range paths {
		g.Name = name
		r.ByPath = append(r.ByPath, g)
	}
	slices.SortFunc(r.ByPath, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name, b.Name))
	})
	if len(r.ByPath) > 20 {
		rest := Group{Name: "other"}
		for _, g := range r.ByPath[20:] {
			rest.Requests += g.Requests
			rest.Denied += g.Denied
		}
		r.ByPath = append(r.ByPath[:20:20], rest)
	}

	begins, length, buckets := modelBuckets(instants)
	r.BucketSeconds = float64(length) / 1e6
	if len(all) > 0 {
		r.Begins = timeOf(begins)
	}
	timeline := func(counts func(*Decided) []bool) []Bucket {
		series := make([]Bucket, buckets)
		for i, d := range all {
			for _, denied := range counts(d) {
				b := &series[(instants[i]-begins)/length]
				b.Requests++
				if denied {
					b.Denied++
				}
			}
		}
		return series
	}
	r.Timeline = timeline(func(d *Decided) []bool { return []bool{d.Denied} })
	for zone := range c.zones {
		z := modelZone(c, zone, all, instants)
		z.Timeline = timeline(func(d *Decided) (outcomes []bool) {
			for _, z := range modelDecisions(d, zone) {
				outcomes = append(outcomes, z.Denied)
			}
			return outcomes
		})
		r.Zones = append(r.Zones, z)
	}
	return r
}

func modelBuckets(instants []algorithms.Micros) (begins, length algorithms.Micros, n int) {
	if len(instants) == 0 {
		return 0, 10_000, 0
	}
	for _, text := range strings.Fields("10ms 50ms 100ms 500ms 1s 5s 10s 30s 1m 5m 10m 30m 1h 3h 6h 12h 24h 168h 336h 672h 1344h 2688h 5376h 10752h 21504h 43008h") {
		d, _ := time.ParseDuration(text)
		length = d.Microseconds()
		for begins = 0; begins+length <= instants[0]; {
			begins += length * max((instants[0]-begins)/length, 1)
		}
		if n = int((instants[len(instants)-1]-begins)/length) + 1; n <= 200 {
			break
		}
	}
	return begins, length, n
}

// modelDecisions returns the decisions that count in a zone.
func modelDecisions(d *Decided, zone int) (decisions []DecidedZone) {
	for _, z := range d.Zones {
		if z.Zone == zone && z.Reached && (!z.BanOnly || z.Denied) {
			decisions = append(decisions, z)
		}
	}
	return decisions
}

func modelZone(c *reportConfiguration, zone int, all []*Decided, instants []algorithms.Micros) ZoneReport {
	z := ZoneReport{
		Zone: c.zones[zone].Name, Key: c.zones[zone].Key, Shadow: c.zones[zone].Shadow,
		Limits: []string{}, TopKeys: []KeyReport{}, Demand: []Demand{},
	}
	var windows []algorithms.Micros
	for _, set := range c.zones[zone].Sets {
		for _, l := range set.Limits {
			z.Limits = append(z.Limits, strings.TrimPrefix(set.Name+": "+l.String(), ": "))
			if !slices.Contains(windows, l.Window) {
				windows = append(windows, l.Window)
			}
		}
	}
	if c.zones[zone].Concurrency > 0 {
		z.Limits = append(z.Limits, fmt.Sprint("concurrency ", c.zones[zone].Concurrency))
	} else if len(windows) == 0 {
		windows = []algorithms.Micros{1e6, 10e6, 60e6, 3600e6, 86400e6}
	}
	slices.Sort(windows)
	type event struct {
		DecidedZone
		at algorithms.Micros
	}
	byKey, keys, firstDenied := make(map[string][]event), []string{}, make(map[string]int)
	var delays []int64
	for i, d := range all {
		for _, e := range modelDecisions(d, zone) {
			z.Requests++
			if e.Denied {
				if z.Denied++; z.FirstDenied == nil {
					z.FirstDenied = timeOf(instants[i])
				}
				z.LastDenied = timeOf(instants[i])
				z.DeniedByBan += map[Reason]int64{ByBan: 1}[e.Reason]
				z.DeniedBySlots += map[Reason]int64{ByConcurrency: 1}[e.Reason]
				z.DeniedByShadow += map[bool]int64{true: 1}[e.Shadow]
			}
			if e.Delay > 0 {
				z.Delayed++
				delays = append(delays, e.Delay)
			}
			if byKey[e.Key] == nil {
				if len(keys) == int(c.maxKeys) {
					z.RequestsWithoutRoom++
					continue
				}
				keys = append(keys, e.Key)
			}
			byKey[e.Key] = append(byKey[e.Key], event{e, instants[i]})
			if _, was := firstDenied[e.Key]; e.Denied && !was {
				firstDenied[e.Key] = len(firstDenied)
			}
		}
	}
	if z.Keys = int64(len(keys)); len(delays) > 0 {
		slices.Sort(delays)
		q := modelQuantiles(delays)
		z.Delay = &Quantiles{q.P50 / 1e6, q.P95 / 1e6, q.P99 / 1e6, q.Max / 1e6}
	}
	peaks := make(map[string][]int64)
	for _, key := range keys {
		for _, window := range windows {
			sums, peak := make(map[int64]int64), int64(0)
			for _, e := range byKey[key] {
				if !e.BanOnly {
					sums[e.at/window] += e.Cost
					peak = max(peak, sums[e.at/window])
				}
			}
			peaks[key] = append(peaks[key], peak)
		}
		report := KeyReport{Key: c.ShownKey(zone, key), Requests: int64(len(byKey[key])), Peaks: append([]int64{}, peaks[key]...)}
		for _, e := range byKey[key] {
			if e.Denied {
				if report.Denied++; report.Denied == 1 {
					report.First = *timeOf(e.at)
				}
				report.Last = *timeOf(e.at)
			}
		}
		if report.Denied > 0 {
			z.KeysDenied++
			z.TopKeys = append(z.TopKeys, report)
		}
	}
	order := func(shown string) int {
		for key, order := range firstDenied {
			if c.ShownKey(zone, key) == shown {
				return order
			}
		}
		return -1
	}
	slices.SortFunc(z.TopKeys, func(a, b KeyReport) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(order(a.Key), order(b.Key)))
	})
	z.TopKeys = z.TopKeys[:min(len(z.TopKeys), 20)]
	z.LongestRun = modelLongestRun(c, zone, all, instants, keys)
	if len(keys) == 0 {
		return z
	}
	for i, window := range windows {
		var values []int64
		for _, key := range keys {
			values = append(values, peaks[key][i])
		}
		slices.Sort(values)
		d := Demand{WindowSeconds: float64(window) / 1e6, Quantiles: modelQuantiles(values)}
		below := int64(-1)
		for _, upTo := range []int64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000} {
			step := Step{UpTo: upTo}
			for _, v := range values {
				if v > below && v <= upTo {
					step.Keys++
				}
			}
			if step.Keys > 0 || upTo > 0 && below < values[len(values)-1] {
				d.Histogram = append(d.Histogram, step)
			}
			below = upTo
		}
		z.Demand = append(z.Demand, d)
	}
	return z
}

// modelLongestRun finds the run that was the first to become that long.
func modelLongestRun(c *reportConfiguration, zone int, all []*Decided, instants []algorithms.Micros, keys []string) *Run {
	var longest *Run
	running := make(map[string]Run)
	for i, d := range all {
		for _, e := range modelDecisions(d, zone) {
			if !slices.Contains(keys, e.Key) {
				continue
			}
			if !e.Denied {
				delete(running, e.Key)
				continue
			}
			r, ok := running[e.Key]
			if !ok {
				r = Run{Key: c.ShownKey(zone, e.Key), From: *timeOf(instants[i])}
			}
			r.Requests++
			r.To = *timeOf(instants[i])
			running[e.Key] = r
			if longest == nil || r.Requests > longest.Requests {
				longest = &r
			}
		}
	}
	return longest
}

// modelQuantiles counts, for each value, how many are at most as large.
func modelQuantiles(values []int64) Quantiles {
	quantile := func(percent int) float64 {
		for _, candidate := range values {
			atMost := 0
			for _, v := range values {
				if v <= candidate {
					atMost++
				}
			}
			if 100*atMost >= percent*len(values) {
				return float64(candidate)
			}
		}
		return -1
	}
	return Quantiles{quantile(50), quantile(95), quantile(99), quantile(100)}
}

// roundDelays takes away what makes the quantiles of delays inexact.
func roundDelays(t *testing.T, got, want *ConfigurationReport) {
	t.Helper()
	for i := range got.Zones {
		g, w := got.Zones[i].Delay, want.Zones[i].Delay
		if g == nil || w == nil {
			continue
		}
		for _, pair := range [][2]float64{{g.P50, w.P50}, {g.P95, w.P95}, {g.P99, w.P99}} {
			if pair[0] < pair[1] || pair[0] > pair[1]*(1+1.0/256) || pair[1] < 0.000512 && pair[0] != pair[1] {
				t.Errorf("zone %d: a quantile of the delays is %v, and exactly %v", i, pair[0], pair[1])
			}
		}
		g.P50, g.P95, g.P99 = w.P50, w.P95, w.P99
	}
}

// firstDifference returns the first line in which two values differ as JSON.
func firstDifference(t *testing.T, got, want any) string {
	t.Helper()
	lines := func(v any) []string {
		text, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			t.Fatal(err)
		}
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

// Statistics equal the ones of a slow model that keeps all requests.
func TestStatisticsAreExact(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		c := &reportConfiguration{notes: []string{"a note"}, maxKeys: 1_000_000, zones: []Zone{
			{Name: "a", Key: []string{"{client_ip}"}, Sets: []LimitSet{{Limits: limitsOf(t, "gcra 5 1s", "fixed_window 9 7s")}, {Name: "plan p", Limits: limitsOf(t, "gcra 7 1s")}}},
			{Name: "b", Key: []string{"x", "y"}, Shadow: true, Sets: []LimitSet{{Limits: limitsOf(t, "sliding_log 3 1h")}}},
			{Name: "c", Concurrency: 5},
			{Name: "d"},
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
		roundDelays(t, &got, &want)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %s", seed, firstDifference(t, got, want))
		}
		again := s.Report()
		roundDelays(t, &again, &want)
		if !reflect.DeepEqual(again, want) {
			t.Fatalf("seed %d: the second report differs from the first", seed)
		}
	}
}

// One key of one zone, request by request: the definitions of the report.
func TestStatisticsDefinitions(t *testing.T) {
	c := &reportConfiguration{maxKeys: 10, zones: []Zone{{
		Name: "api", Concurrency: 20, MaxDelay: 120_000_000,
		Sets: []LimitSet{{Limits: limitsOf(t, "gcra 5 1m")}, {Name: "plan gold", Limits: limitsOf(t, "gcra 50 1m")}},
	}}}
	s := NewStatistics(c)
	minute := algorithms.Micros(60_000_000)
	observe := func(at algorithms.Micros, cost int64, denied, reached bool) {
		s.Observe(&Decided{Visit: &Visit{Status: 200, Path: "/api/x"}, Came: at, Denied: denied, Zones: []DecidedZone{
			{ZoneVisit: &ZoneVisit{}, Key: "k", Cost: cost, Denied: denied, Reached: reached},
		}})
	}
	observe(100*minute+59_000_000, 3, false, true)
	observe(101*minute, 3, true, true) // the next window
	observe(101*minute+1, 2, true, true)
	observe(101*minute+2, 1, false, true)
	observe(101*minute+3, 100, false, false) // an earlier handler denied the request
	observe(103*minute, 1, true, true)
	z := s.Report().Zones[0]
	if got, want := fmt.Sprint(z.Limits), "[gcra 5 1m plan gold: gcra 50 1m concurrency 20 delay 2m]"; got != want {
		t.Errorf("the limits are %s, want %s", got, want)
	}
	if z.Requests != 5 || z.Denied != 3 || z.Keys != 1 || len(z.Demand) != 1 || z.Demand[0].Max != 6 {
		t.Errorf("%+v, want 5 requests, 3 of them denied, of a key with a demand of 6", z)
	}
	if r := *z.LongestRun; r != (Run{"<k of api>", 2, *timeOf(101 * minute), *timeOf(101*minute + 1)}) {
		t.Errorf("the longest run is %+v", r)
	}
}

// The memory of paths is bounded, and what has no room is counted.
func TestPathGroupsAreBounded(t *testing.T) {
	var p pathGroups
	for i := range maxPathGroups + 1000 {
		p.group(fmt.Sprintf("/%d/x", i)).count(i%2 == 0)
	}
	for range 30 {
		p.group("/7/y").count(false)
		p.group("/new").count(true)
	}
	if len(p.numbers) != maxPathGroups || len(p.groups) != maxPathGroups {
		t.Errorf("%d groups, want %d", len(p.numbers), maxPathGroups)
	}
	if p.rest != (Group{"", 1030, 530}) {
		t.Errorf("the rest is %+v", p.rest)
	}
	groups := p.report()
	if last := groups[len(groups)-1]; len(groups) != 21 || last != (Group{"other", maxPathGroups + 1000 + 60 - 20, (maxPathGroups+1000)/2 + 30 - 20}) {
		t.Errorf("the last of %d groups is %+v", len(groups), last)
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
	d := &Decided{Visit: &Visit{Status: 200, Path: "/api/x"}, Zones: []DecidedZone{{ZoneVisit: &ZoneVisit{}, Cost: 1, Reached: true}}}
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

func TestObserveAllocatesNothing(t *testing.T) {
	c := &reportConfiguration{maxKeys: 100, zones: []Zone{{Name: "one", Sets: []LimitSet{{Limits: limitsOf(t, "gcra 5 1s")}}}}}
	s := NewStatistics(c)
	d := &Decided{Visit: &Visit{Status: 200, Path: "/api/x"}, Zones: []DecidedZone{{ZoneVisit: &ZoneVisit{}, Key: "k", Cost: 1, Reached: true}}}
	if n := testing.AllocsPerRun(1000, func() {
		d.Came += 5000
		d.Denied = !d.Denied
		d.Zones[0].Denied = d.Denied
		s.Observe(d)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkStatistics(b *testing.B) {
	const keys = 1_000_000
	c := &reportConfiguration{maxKeys: keys, zones: []Zone{{Name: "one", Sets: []LimitSet{{Limits: limitsOf(b, "gcra 5 1s")}}}}}
	s := NewStatistics(c)
	texts := make([]string, keys)
	for i := range texts {
		texts[i] = fmt.Sprintf("%d.%d.%d.%d", i>>16, i>>8&255, i&255, i%200)
	}
	random := rand.New(rand.NewPCG(1, 2))
	d := &Decided{Visit: &Visit{Status: 200, Path: "/api/x"}, Zones: []DecidedZone{{ZoneVisit: &ZoneVisit{}, Cost: 1, Reached: true}}}
	b.ReportAllocs()
	for b.Loop() {
		d.Came += 10
		d.Zones[0].Key = texts[random.IntN(keys)]
		d.Zones[0].Denied = random.IntN(10) == 0
		s.Observe(d)
	}
}
