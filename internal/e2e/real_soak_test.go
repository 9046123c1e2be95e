//go:build real

package e2e

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

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

var (
	soakFor  = flag.Duration("soak", 5*time.Second, "how long TestRealSoak lets things go wrong, at least once each")
	soakSeed = flag.Uint64("soak-seed", 0, "which faults TestRealSoak draws (default: others each time)")
)

// soakLoad has the requests of the clients, and their results.
type soakLoad struct {
	client  *http.Client
	caddys  []*caddytest.Caddy
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu       sync.Mutex
	reloads  map[*caddytest.Caddy]int // odd while it is being reloaded
	statuses map[string]int           // by mode and status
	passed   map[string]int           // by zone and key, where all is in the audit
	broken   int                      // connections
	left     int                      // clients that did not wait
	slowest  time.Duration
}

func startSoakLoad(t *testing.T, caddys []*caddytest.Caddy) *soakLoad {
	l := &soakLoad{
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		caddys: caddys, reloads: make(map[*caddytest.Caddy]int), statuses: make(map[string]int), passed: make(map[string]int),
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	const workers = 16
	zones := soakZones()
	for range workers {
		l.workers.Go(func() {
			for ctx.Err() == nil {
				l.send(t, zones[rand.IntN(len(zones))])
				time.Sleep(time.Duration(rand.IntN(40_000)) * time.Microsecond) // else the load takes all processors
			}
		})
	}
	l.workers.Go(func() {
		for ctx.Err() == nil {
			l.operate(zones[rand.IntN(len(zones))])
			time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond) // else changes take all processors
		}
	})
	t.Cleanup(l.end)
	return l
}

// operate makes a change by the admin API of one of the Caddys.
func (l *soakLoad) operate(z soakZone) {
	method, body, resource := "DELETE", "", "keys"
	switch n := rand.IntN(4); {
	case z.ban != nil && n < 3:
		if resource = "ban"; n == 0 {
			method, body = "PUT", `{"duration":"150ms"}`
		}
	case z.overrides != nil && n < 3:
		if resource = "override"; n > 0 {
			which := slices.Sorted(maps.Keys(z.overrides))
			method, body = "PUT", fmt.Sprintf(`{%s,"ttl":"%dms"}`, which[rand.IntN(len(which))], 1+rand.IntN(500))
		}
	case n < 3, z.name == "log": // which is checked by counting
		return
	}
	c := l.caddys[rand.IntN(len(l.caddys))]
	path := fmt.Sprintf("zones/%s-%s/%s?key=k%d", []string{"deny", "local"}[rand.IntN(2)], z.name, resource, rand.IntN(4))
	r, err := c.Do(method, "http://"+c.Admin+"/rate_limit/"+path, body)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.statuses["operator, connection broken"]++
	} else {
		l.statuses[fmt.Sprint("operator ", r.StatusCode)]++
	}
}

// decided returns how many requests have been allowed or denied.
func (l *soakLoad) decided() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statuses["deny 200"] + l.statuses["deny 429"] + l.statuses["local 200"] + l.statuses["local 429"]
}

func (l *soakLoad) end() {
	l.stop()
	l.workers.Wait()
	l.client.CloseIdleConnections()
}

// reload notes that a reload of a Caddy begins, or has ended.
func (l *soakLoad) reload(c *caddytest.Caddy) {
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
	ctx, cancel := context.WithTimeout(context.Background(), caddytest.Patient)
	impatient := rand.IntN(30) == 0 || z.name == "delay" && rand.IntN(4) == 0
	if impatient {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(50))*time.Millisecond)
	}
	defer cancel()
	c := l.caddys[rand.IntN(len(l.caddys))]
	request, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s/%s/%s", c.Site, mode, z.name), nil)
	if err != nil {
		t.Error(err)
		return
	}
	request.Header.Set("X-Key", key)
	request.Header.Set("X-Cost", fmt.Sprint(1+rand.IntN(3)))
	request.Header.Set("X-Tokens", fmt.Sprint(rand.IntN(6)))
	missing := z.name == "settle" && rand.IntN(3) == 0
	if missing {
		request.Header.Set("X-Missing", "yes")
	}
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
		// At a reload Caddy closes a socket, and the connections that wait there to be accepted.
		reloaded := l.reloads[c] != reloads || reloads%2 == 1
		if l.broken++; c != l.caddys[soakKilled] && !reloaded {
			t.Errorf("a Caddy that nothing was done to: %v", err)
		}
		return
	}
	l.statuses[fmt.Sprint(mode, " ", r.StatusCode)]++
	switch {
	case (r.StatusCode == 200 || r.StatusCode == 404 && missing) && mode == "deny":
		if !z.uncharged {
			l.passed["deny-"+z.name+" "+key]++
		}
		l.passed["deny-all "+key]++
	case r.StatusCode == 404 && missing:
	case r.StatusCode == 200, r.StatusCode == 429, r.StatusCode == 503: // with local only if it is shed
	default:
		t.Errorf("status %d of zone %s-%s", r.StatusCode, mode, z.name)
	}
}

// footprintOf is the memory and the other resources of a process.
type footprint struct {
	goroutines int
	heap       int // bytes in use after a collection
	resident   int // bytes
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines, %.1f MB heap, %.0f MB resident", f.goroutines, float64(f.heap)/1e6, float64(f.resident)/1e6)
}

func footprintOf(t *testing.T, c *caddytest.Caddy) (f footprint) {
	t.Helper()
	read := func(path, pattern string) int {
		r, err := c.Do("GET", "http://"+c.Admin+path, "")
		errtest.None(t, err)
		found := regexp.MustCompile(pattern).FindStringSubmatch(r.Text)
		if found == nil {
			t.Fatalf("%s has no %s", path, pattern)
		}
		n, err := strconv.ParseFloat(found[1], 64)
		errtest.None(t, err)
		return int(n)
	}
	for range 2 { // what pools hold goes with the second collection
		f.heap = read("/debug/pprof/heap?gc=1&debug=1", `# HeapAlloc = (\d+)`)
	}
	f.goroutines = read("/metrics", `(?m)^go_goroutines (\S+)$`)
	f.resident = read("/metrics", `(?m)^process_resident_memory_bytes (\S+)$`)
	return f
}

// Three Caddys on one Redis have zones with all options. Over-admission is zero, nothing leaks and
// nothing panics, with any fault of Redis, of the way to it, and of the Caddys. make soak lets it
// continue for minutes.
//
// Simulated: TestFaults.
func TestRealSoak(t *testing.T) {
	soak(t, startSoakRedis(t))
}

// The same holds in a cluster. A node that is killed forgets where its audit is, so none is.
//
// Simulated: TestFaults.
func TestRealSoakCluster(t *testing.T) {
	soak(t, startSoakCluster(t))
}

func soak(t *testing.T, on *soakRedis) {
	t.Helper()
	seed := cmp.Or(*soakSeed, rand.Uint64())
	t.Logf("-soak %v -soak-seed %d", *soakFor, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	span := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}

	config, known := soakConfig(t, on.config)
	var caddys []*caddytest.Caddy
	for range 3 {
		caddys = append(caddys, caddytest.StartProcess(t, config))
	}
	const warmUp = 2 * time.Second
	load := startSoakLoad(t, caddys)
	time.Sleep(warmUp) // the load opens connections and fills pools, before anything is measured
	load.end()
	var before []footprint
	for _, c := range caddys {
		before = append(before, footprintOf(t, c))
	}
	warm := load
	load = startSoakLoad(t, caddys)

	type fault struct {
		name string
		do   func(audit *redistest.Audit, server *redistest.Server)
	}
	faults := []fault{
		{"Redis frozen", func(_ *redistest.Audit, server *redistest.Server) {
			server.Freeze(t)
			time.Sleep(span(100*time.Millisecond, 3*time.Second)) // shorter and longer than the timeout
			server.Thaw(t)
		}},
		{"connections cut", func(audit *redistest.Audit, _ *redistest.Server) { audit.Cut() }},
		{"calls in trouble", func(audit *redistest.Audit, _ *redistest.Server) {
			audit.Trouble(0.05)
			time.Sleep(span(100*time.Millisecond, time.Second)) // the fault lasts, under load
			audit.Trouble(0)
		}},
		{"Redis far away", func(audit *redistest.Audit, _ *redistest.Server) {
			audit.Delay(span(time.Millisecond, 60*time.Millisecond))
			time.Sleep(span(100*time.Millisecond, time.Second)) // the fault lasts, under load
			audit.Delay(0)
		}},
		{"SCRIPT FLUSH", func(_ *redistest.Audit, server *redistest.Server) { server.Client.ScriptFlush(t.Context()) }},
		{"FLUSHALL", func(audit *redistest.Audit, _ *redistest.Server) { audit.Flush(t) }},
		{"reload", func(*redistest.Audit, *redistest.Server) {
			c := caddys[random.IntN(soakKilled)]
			load.reload(c)
			c.Reload(t, config+"# the same\n")
			load.reload(c)
		}},
		{"Caddy killed", func(*redistest.Audit, *redistest.Server) {
			c := caddys[soakKilled]
			_ = c.Process.Process.Kill()
			<-c.Ended
			errtest.None(t, c.Run(t))
		}},
	}
	if !on.cluster {
		faults = append(faults, fault{"Redis killed", func(audit *redistest.Audit, server *redistest.Server) {
			audit.Kill(t)
			time.Sleep(span(0, time.Second)) // the outage lasts, under load
			server.Restart(t)
		}})
	}
	counts := make(map[string]int)
	began := time.Now()
	const enough = 4000 // requests for a few bans to begin
	done := func() bool { return time.Since(began) >= *soakFor && load.decided() >= enough }
	for round := 0; round == 0 || !done(); round++ {
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			// The Caddys work for a while between two faults.
			if time.Sleep(span(0, min(*soakFor/6, 3*time.Second))); round > 0 && done() {
				break
			}
			n := random.IntN(len(on.audits))
			f.do(on.audits[n], on.servers[n])
			counts[f.name]++
		}
	}
	for _, c := range caddys { // all of them come back
		caddytest.WaitForMetric(t, c, "caddy_rate_limit_store_state 0")
	}
	took := time.Since(began)
	load.end()

	report := on.replay(known)
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
	if report.Slots == 0 || report.Sets == 0 || report.Bans == 0 || report.Overridden == 0 || report.Refunds == 0 || report.Changes == 0 {
		t.Error("too little of something happened to learn from")
	}
	shed := func(c *caddytest.Caddy) bool { return strings.Contains(c.Logged(), "requests were shed") }
	if n := warm.statuses["local 503"] + load.statuses["local 503"]; n > 0 && !slices.ContainsFunc(caddys, shed) {
		t.Errorf("%d requests with on_store_error local got 503, and no Caddy sheds requests", n)
	}
	if report.Failed > 0 {
		t.Errorf("%d requests failed in the script", report.Failed)
	}
	if want := len(on.audits) + counts["Redis killed"] + counts["FLUSHALL"]; report.Eras != want {
		t.Errorf("%d eras, want %d", report.Eras, want)
	}
	if most := caddytest.Patient / 2; load.slowest > most {
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
func checkFootprints(t *testing.T, caddys []*caddytest.Caddy, before []footprint) {
	t.Helper()
	const (
		goroutines = 10      // more
		heap       = 8 << 20 // bytes more
	)
	for i, c := range caddys {
		after := footprintOf(t, c)
		for deadline := time.Now().Add(caddytest.Patient); after.goroutines > before[i].goroutines+goroutines && time.Now().Before(deadline); after = footprintOf(t, c) {
			time.Sleep(100 * time.Millisecond) // a poll; its bound ends in a failure that shows both footprints
		}
		t.Logf("Caddy %d before: %v; after: %v", i+1, before[i], after)
		if after.goroutines > before[i].goroutines+goroutines || after.heap > before[i].heap+heap {
			t.Errorf("Caddy %d takes more than before", i+1)
		}
	}
}
