package faultsim

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("seeds", 40, "how many seeds TestFaults tries; 0: until it is stopped")
	from  = flag.Uint64("from", 0, "the first seed that TestFaults tries")
	seed  = flag.Int64("seed", -1, "the only seed that TestFaults tries, with its history")
	times = flag.Int("times", 1, "how often TestFaults tries the only seed")
)

// figures count the cases of a run.
type figures struct {
	seeds                            int
	virtual                          time.Duration
	passed, denied, failed, doubtful int
	faults, operated                 map[string]int
}

func (f *figures) add(v *verdict) {
	f.seeds++
	f.virtual += v.virtual
	f.passed += v.passed
	f.denied += v.denied
	f.failed += v.failed
	f.doubtful += v.doubtful
	for _, one := range v.tried.faults {
		f.faults[one.kind]++
	}
	for _, one := range v.tried.operated {
		f.operated[one.kind]++
	}
}

func (f *figures) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, %.1f simulated hours\n", f.seeds, f.virtual.Hours())
	fmt.Fprintf(&b, "%d requests: %d passed and %d were denied while nothing was wrong, %d met a fault, %d of them failed\n",
		f.passed+f.denied+f.doubtful, f.passed, f.denied, f.doubtful, f.failed)
	for _, counts := range []map[string]int{f.faults, f.operated} {
		kinds := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
		for _, kind := range kinds {
			fmt.Fprintf(&b, "%8d  %s\n", counts[kind], kind)
		}
	}
	return b.String()
}

// inBubble does something in simulated time.
func inBubble(t *testing.T, seed uint64, do func(*testing.T)) {
	t.Helper()
	// A seed takes a fraction of a second, but make faults also runs with the lowest priority beside other work.
	watchdog := time.AfterFunc(10*time.Minute, func() { panic(fmt.Sprintf("seed %d hangs", seed)) })
	defer watchdog.Stop()
	synctest.Test(t, do)
	// Timers of one bubble must not be used in another one. The client of Redis keeps some in a sync.Pool, which two
	// collections empty.
	runtime.GC()
	runtime.GC()
}

// runSeed runs the scenario of a seed.
func runSeed(t *testing.T, seed uint64) (v *verdict) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil { // such as goroutines that are left running
			t.Fatalf("seed %d: %v\n%v", seed, p, draw(seed))
		}
	}()
	inBubble(t, seed, func(*testing.T) { v = draw(seed).run() })
	return v
}

// The promises of docs/guarantees.md hold, with any faults at any instant. A seed that fails usually fails
// again. The order of what happens at the same instant is not the seed's, so it may need several times.
func TestFaults(t *testing.T) {
	if *seed >= 0 {
		for range *times {
			v := runSeed(t, uint64(*seed))
			t.Logf("%v%s", v.tried, strings.Join(v.history, "\n"))
			v.check(t)
		}
		return
	}
	sum := &figures{faults: make(map[string]int), operated: make(map[string]int)}
	told := time.Now()
	for n := 0; n < *seeds || *seeds == 0; n++ {
		v := runSeed(t, *from+uint64(n))
		sum.add(v)
		v.check(t)
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(os.Stderr, "%d seeds, %.1f simulated hours\n", sum.seeds, sum.virtual.Hours())
		}
	}
	t.Log(sum)
}

// check ends the test if a promise was broken. It shows the end of the history, and how to see it again.
func (v *verdict) check(t *testing.T) {
	t.Helper()
	if len(v.broken) == 0 {
		return
	}
	const most = 50 // events
	t.Fatalf("seed %d: %v\nThe last events:\n  %s\nBroken promises:\n  %s\nTo see it again: go test ./internal/faultsim -run TestFaults -seed %[1]d -times 20",
		v.tried.seed, v.tried, strings.Join(v.history[max(len(v.history)-most, 0):], "\n  "), strings.Join(v.broken[:min(len(v.broken), 10)], "\n  "))
}
