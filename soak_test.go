package ratelimit

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var (
	soakFor  = flag.Duration("soak", 5*time.Second, "how long TestSoak lets things go wrong, at least once each")
	soakSeed = flag.Uint64("soak-seed", 0, "which faults TestSoak draws (default: others each time)")
)

// soakZone is a zone, as it is configured and as the limits are that its calls speak of.
type soakZone struct {
	name    string
	options string
	limits  map[string]algorithms.Quota // by what the Caddyfile says
	factors []string                    // of requests; none is 1
}

const (
	soakMilli  = 1000
	soakSecond = 1_000_000

	// soakKilled is which of the three Caddys is killed; those before it are reloaded.
	soakKilled = 2
)

// soakLog is what is checked by counting, too.
var soakLog = algorithms.Quota{Algorithm: "sliding_log", Events: 20, Window: 2 * soakSecond}

func soakZones() []soakZone {
	type limits = map[string]algorithms.Quota
	quota := func(algorithm string, events, window, burst int64) algorithms.Quota {
		return algorithms.Quota{Algorithm: algorithm, Events: events, Window: window, Burst: burst}
	}
	clock, buckets, apart := quota("fixed_window", 30, soakSecond, 0), quota("sliding_log", 30, soakSecond, 0), quota("sliding_log", 50, soakSecond, 0)
	clock.Align, buckets.Buckets, apart.MinInterval = "clock", 10, 10*soakMilli
	initial, cold, five := quota("token_bucket", 36_000, 3600*soakSecond, 20), quota("smooth", 50, soakSecond, 0), int64(5)
	initial.Initial, cold.WarmUp = &five, 2*soakSecond
	return []soakZone{
		{name: "token_bucket", limits: limits{"token_bucket 20 1s 40": quota("token_bucket", 20, soakSecond, 40)}},
		{name: "gcra", limits: limits{"gcra 20 1s 30": quota("gcra", 20, soakSecond, 30)}},
		{name: "leaky_bucket", limits: limits{"leaky_bucket 5 250ms 20": quota("leaky_bucket", 5, 250*soakMilli, 20)}},
		{name: "fixed_window", limits: limits{"fixed_window 30 1s": quota("fixed_window", 30, soakSecond, 0)}},
		{name: "clock", limits: limits{"fixed_window 30 1s {\n align clock\n}": clock}},
		{name: "log", limits: limits{"sliding_log 20 2s": soakLog}},
		{name: "buckets", limits: limits{"sliding_log 30 1s {\n buckets 10\n}": buckets}},
		{name: "apart", limits: limits{"sliding_log 50 1s {\n min_interval 10ms\n}": apart}},
		{name: "window", limits: limits{"sliding_window 30 1s": quota("sliding_window", 30, soakSecond, 0)}},
		{name: "smooth", limits: limits{"smooth 30 1s 10": quota("smooth", 30, soakSecond, 10)}},
		{name: "cold", limits: limits{"smooth 50 1s {\n warm_up 2s\n}": cold}},
		{name: "initial", limits: limits{"token_bucket 36000 1h 20 {\n initial 5\n}": initial}},
		{name: "two", limits: limits{"gcra 20 1s 30": quota("gcra", 20, soakSecond, 30), "sliding_log 100 10s": quota("sliding_log", 100, 10*soakSecond, 0)}},
		{name: "nary", options: "mode nary", limits: limits{"token_bucket 20 1s": quota("token_bucket", 20, soakSecond, 0)}},
		{name: "uniform", options: "mode uniform", limits: limits{"leaky_bucket 20 1s": quota("leaky_bucket", 20, soakSecond, 0)}},
		{name: "force", options: "mode force", limits: limits{"fixed_window 20 1s": quota("fixed_window", 20, soakSecond, 0)}},
		{name: "delay", options: "delay 300ms", limits: limits{"gcra 20 1s 5": quota("gcra", 20, soakSecond, 5)}},
		{
			name: "factor", options: "factor {header.X-Factor}", factors: []string{"0.5", "2", "1"},
			limits: limits{"gcra 20 1s 8": quota("gcra", 20, soakSecond, 8)},
		},
	}
}

// soakConfig is a site with all zones twice, of which requests are refused or
// decided locally where Redis fails, and one more that belongs to all requests of
// the first kind. It returns the limits, too.
func soakConfig(t *testing.T, redis string) (config string, limits []store.Limit) {
	t.Helper()
	limit := func(zone string, q algorithms.Quota) store.Limit {
		l, err := algorithms.NewLimit(q)
		if err != nil {
			t.Fatal(err)
		}
		key := newKeyTemplate("{http.request.header.X-Key}")
		return store.NewLimit(zone, key.describe(), l)
	}
	config = fmt.Sprintf("{\n admin {$ADMIN}\n log {\n  level WARN\n }\n rate_limit {\n  redis %s {\n   timeout 200ms\n  }\n }\n}\n{$SITE}\n", redis)
	for _, mode := range []string{"deny", "local"} {
		config += fmt.Sprintf("rate_limit /%s/* {\n on_store_error %s\n", mode, mode)
		for _, z := range soakZones() {
			name := mode + "-" + z.name
			config += fmt.Sprintf("zone %s {\n match path /%s/%s\n key {header.X-Key}\n cost {header.X-Cost}\n %s\n", name, mode, z.name, z.options)
			for text, q := range z.limits {
				config += text + "\n"
				l := limit(name, q)
				limits = append(limits, l)
				for _, factor := range z.factors {
					f, _ := strconv.ParseFloat(factor, 64)
					limits = append(limits, store.Limit{Limit: l.Scaled(int64(f * 1_000_000)), ID: l.ID})
				}
			}
			config += "}\n"
		}
		if mode == "deny" {
			config += "zone deny-all {\n key {header.X-Key}\n token_bucket 200 1s\n}\n"
			limits = append(limits, limit("deny-all", algorithms.Quota{Algorithm: "token_bucket", Events: 200, Window: soakSecond}))
		}
		config += "}\n"
	}
	return config + "respond ok\n", limits
}

// soakLoad is what clients send, and what they have seen.
type soakLoad struct {
	client  *http.Client
	caddys  []*caddyProcess
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu       sync.Mutex
	reloads  map[*caddyProcess]int // odd while it is being loaded anew
	statuses map[string]int        // by mode and status
	passed   map[string]int        // by zone and key, where all is in the audit
	broken   int                   // connections
	left     int                   // clients that did not wait
	slowest  time.Duration
}

func startSoakLoad(t *testing.T, caddys []*caddyProcess) *soakLoad {
	l := &soakLoad{
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		caddys: caddys, reloads: make(map[*caddyProcess]int), statuses: make(map[string]int), passed: make(map[string]int),
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	const workers = 32
	zones := soakZones()
	for range workers {
		l.workers.Go(func() {
			for ctx.Err() == nil {
				l.send(t, zones[rand.IntN(len(zones))])
				time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond)
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *soakLoad) end() {
	l.stop()
	l.workers.Wait()
	l.client.CloseIdleConnections()
}

// reload notes that a Caddy begins to be loaded anew, or has been.
func (l *soakLoad) reload(c *caddyProcess) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reloads[c]++
}

// send sends one request to one of the Caddys.
func (l *soakLoad) send(t *testing.T, z soakZone) {
	mode, key := "deny", fmt.Sprint("k", rand.IntN(4))
	if rand.IntN(3) == 0 {
		mode = "local"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	impatient := rand.IntN(30) == 0 || z.name == "delay" && rand.IntN(4) == 0
	if impatient {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(50))*time.Millisecond)
	}
	defer cancel()
	c := l.caddys[rand.IntN(len(l.caddys))]
	request, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s/%s/%s", c.site, mode, z.name), nil)
	if err != nil {
		t.Error(err)
		return
	}
	request.Header.Set("X-Key", key)
	request.Header.Set("X-Cost", fmt.Sprint(1+rand.IntN(3)))
	if len(z.factors) > 0 {
		request.Header.Set("X-Factor", z.factors[rand.IntN(len(z.factors))])
	}
	l.mu.Lock()
	reloads := l.reloads[c]
	l.mu.Unlock()
	began := time.Now()
	r, err := l.client.Do(request)
	took := time.Since(began)
	if err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.slowest = max(l.slowest, took); {
	case err != nil && impatient:
		l.left++
		return
	case err != nil:
		// Caddy closes a socket when it is loaded anew, and what waits there to be accepted.
		reloaded := l.reloads[c] != reloads || reloads%2 == 1
		if l.broken++; c != l.caddys[soakKilled] && !reloaded {
			t.Errorf("a Caddy that nothing was done to: %v", err)
		}
		return
	}
	l.statuses[fmt.Sprint(mode, " ", r.StatusCode)]++
	switch {
	case r.StatusCode == 200 && mode == "deny":
		l.passed["deny-"+z.name+" "+key]++
		l.passed["deny-all "+key]++
	case r.StatusCode == 200, r.StatusCode == 429, r.StatusCode == 503 && mode == "deny":
	default:
		t.Errorf("status %d of zone %s-%s", r.StatusCode, mode, z.name)
	}
}

// footprint is what a process takes.
type footprint struct {
	goroutines int
	heap       int // bytes in use after a collection
	resident   int // bytes
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines, %.1f MB heap, %.0f MB resident", f.goroutines, float64(f.heap)/1e6, float64(f.resident)/1e6)
}

func (c *caddyProcess) footprint(t *testing.T) (f footprint) {
	t.Helper()
	read := func(path, pattern string) int {
		r, err := c.do("GET", "http://"+c.admin+path, "")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindStringSubmatch(r.body)
		if found == nil {
			t.Fatalf("%s has no %s", path, pattern)
		}
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	for range 2 { // what pools hold goes with the second collection
		f.heap = read("/debug/pprof/heap?gc=1&debug=1", `# HeapAlloc = (\d+)`)
	}
	f.goroutines = read("/metrics", `(?m)^go_goroutines (\S+)$`)
	f.resident = read("/metrics", `(?m)^process_resident_memory_bytes (\S+)$`)
	return f
}

// Over-admission is zero, nothing leaks and nothing panics, whatever goes wrong with
// Redis, the way to it, and the Caddys: three of them, on one Redis, with all that
// zones can be. make soak lets it go on for minutes.
func TestSoak(t *testing.T) {
	seed := cmp.Or(*soakSeed, rand.Uint64())
	t.Logf("-soak %v -soak-seed %d", *soakFor, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	span := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}

	server := redistest.Start(t)
	audit := redistest.StartAudit(t, server)
	config, limits := soakConfig(t, audit.Addr)
	var caddys []*caddyProcess
	for range 3 {
		caddys = append(caddys, startCaddy(t, config))
	}
	const warmUp = 2 * time.Second
	load := startSoakLoad(t, caddys)
	time.Sleep(warmUp)
	load.end()
	var before []footprint
	for _, c := range caddys {
		before = append(before, c.footprint(t))
	}
	warm := load
	load = startSoakLoad(t, caddys)

	type fault struct {
		name string
		do   func()
	}
	faults := []fault{
		{"Redis killed", func() {
			audit.Kill(t)
			time.Sleep(span(0, time.Second))
			server.Restart(t)
		}},
		{"Redis frozen", func() {
			server.Freeze(t)
			time.Sleep(span(100*time.Millisecond, 3*time.Second))
			server.Thaw(t)
		}},
		{"connections cut", audit.Cut},
		{"calls in trouble", func() {
			audit.Trouble(0.05)
			time.Sleep(span(100*time.Millisecond, time.Second))
			audit.Trouble(0)
		}},
		{"Redis far away", func() {
			audit.Delay(span(time.Millisecond, 60*time.Millisecond))
			time.Sleep(span(100*time.Millisecond, time.Second))
			audit.Delay(0)
		}},
		{"SCRIPT FLUSH", func() { server.Client.ScriptFlush(t.Context()) }},
		{"FLUSHALL", func() { audit.Flush(t) }},
		{"reload", func() {
			c := caddys[random.IntN(soakKilled)]
			load.reload(c)
			c.reload(t, config+"# the same\n")
			load.reload(c)
		}},
		{"Caddy killed", func() {
			c := caddys[soakKilled]
			_ = c.process.Process.Kill()
			<-c.ended
			if err := c.run(t); err != nil {
				t.Fatal(err)
			}
		}},
	}
	counts := make(map[string]int)
	began := time.Now()
	for round := 0; round == 0 || time.Since(began) < *soakFor; round++ {
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			if time.Sleep(span(0, min(*soakFor/6, 3*time.Second))); round > 0 && time.Since(began) > *soakFor {
				break
			}
			f.do()
			counts[f.name]++
		}
	}
	for _, c := range caddys { // all of them come back
		waitForMetric(t, c, "caddy_rate_limit_store_state 0")
	}
	took := time.Since(began)
	load.end()

	report := audit.Replay(limits...)
	var sum strings.Builder
	fmt.Fprintf(&sum, "%v with faults\n", took.Round(time.Second))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&sum, "  %-18s %5d\n", name, counts[name])
	}
	fmt.Fprintf(&sum, "requests, by on_store_error and status\n")
	for _, status := range slices.Sorted(maps.Keys(load.statuses)) {
		fmt.Fprintf(&sum, "  %-18s %5d\n", status, load.statuses[status])
	}
	fmt.Fprintf(&sum, "  connection broken  %5d\n  client left        %5d\n", load.broken, load.left)
	fmt.Fprintf(&sum, "  slowest            %5v\n", load.slowest.Round(time.Millisecond))
	fmt.Fprintf(&sum, "audited, the time before included\n%v", report)
	t.Logf("%s", &sum)
	if report.Different > 0 {
		t.Errorf("%d differences from the functions, the first ones:\n%s", report.Different, strings.Join(report.Differences, "\n"))
	}
	if report.Failed > 0 {
		t.Errorf("%d requests failed in the script", report.Failed)
	}
	if want := 1 + counts["Redis killed"] + counts["FLUSHALL"]; report.Eras != want {
		t.Errorf("%d eras, want %d", report.Eras, want)
	}
	if most := 10 * time.Second; load.slowest > most {
		t.Errorf("a request took %v", load.slowest)
	}
	checkGrants(t, report, warm, load)
	checkFootprints(t, caddys, before)
}

// checkGrants checks that clients saw no more pass than Redis had granted, and that
// of a sliding log no window holds more than it may.
func checkGrants(t *testing.T, report *redistest.Report, loads ...*soakLoad) {
	t.Helper()
	granted, passed := make(map[string]int), make(map[string]int)
	logs, fullest := 0, int64(0)
	for budget, charges := range report.Charges {
		zone := redistest.Zone(budget)
		if of := zone + " " + redistest.Key(budget); strings.HasPrefix(zone, "deny-") {
			granted[of] = max(granted[of], len(charges)) // a zone can have two limits
		}
		if !strings.HasSuffix(zone, "-log") {
			continue
		}
		logs++
		var held, first int64
		for i, c := range charges {
			if i > 0 && charges[i-1].Era != c.Era {
				held, first = 0, int64(i)
			}
			held += c.Events
			for ; charges[first].At <= c.At-soakLog.Window; first++ {
				held -= charges[first].Events
			}
			fullest = max(fullest, held)
			if held > soakLog.Events {
				t.Errorf("%s: %d events in the window before %d, of at most %d", budget, held, c.At, soakLog.Events)
			}
		}
	}
	if logs == 0 || fullest < soakLog.Events {
		t.Errorf("%d sliding logs, the fullest with %d: nothing to learn from", logs, fullest)
	}
	all, unseen := 0, 0
	for _, l := range loads {
		for of, n := range l.passed {
			passed[of] += n
		}
	}
	for _, of := range slices.Sorted(maps.Keys(passed)) {
		if passed[of] > granted[of] {
			t.Errorf("%s: %d requests passed, and Redis granted %d", of, passed[of], granted[of])
		}
		all += passed[of]
		unseen += granted[of] - passed[of]
	}
	t.Logf("with on_store_error deny: %d grants seen by clients, %d not; the fullest log held %d of %d", all, unseen, fullest, soakLog.Events)
}

// checkFootprints checks that each process takes what it took before, when it has
// nothing to do.
func checkFootprints(t *testing.T, caddys []*caddyProcess, before []footprint) {
	t.Helper()
	const (
		goroutines = 10      // more
		heap       = 8 << 20 // bytes more
	)
	for i, c := range caddys {
		after := c.footprint(t)
		for deadline := time.Now().Add(patient); after.goroutines > before[i].goroutines+goroutines && time.Now().Before(deadline); after = c.footprint(t) {
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("Caddy %d before: %v; after: %v", i+1, before[i], after)
		if after.goroutines > before[i].goroutines+goroutines || after.heap > before[i].heap+heap {
			t.Errorf("Caddy %d takes more than before", i+1)
		}
	}
}
