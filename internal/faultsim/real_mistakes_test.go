//go:build real

package faultsim

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

var (
	planted    = flag.Int("mistakes", 3, "how many mistakes TestRealFindsMistakes plants, drawn from those that are easy to find; below 0: all")
	recordThem = flag.Bool("record", false, "write which seed finds each mistake to testdata/mistakes.json")
)

const (
	mistakesFile = "testdata/mistakes.json" // the seed that has found each mistake
	easy         = 100                      // seeds within which those are found that an ordinary run plants
	soon         = 300                      // seeds within which most are found
	latest       = 4000                     // seeds within which all are
)

// TestFaults finds each planted mistake. That takes long, so an ordinary run plants a few.
// Simulated: TestMistakesApply.
func TestRealFindsMistakes(t *testing.T) {
	text, err := os.ReadFile(mistakesFile)
	found := make(map[string]int)
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil && !*recordThem {
		t.Fatal(err)
	}
	tried := slices.Clone(mistakes)
	from := func(mistake) int { return 0 }
	if *planted >= 0 {
		tried = slices.DeleteFunc(tried, func(m mistake) bool { seed, known := found[m.name]; return !known || seed >= easy })
		rand.Shuffle(len(tried), func(i, j int) { tried[i], tried[j] = tried[j], tried[i] })
		tried = tried[:min(*planted, len(tried))]
		from = func(m mistake) int { return found[m.name] } // it usually finds it again
	}
	var mu sync.Mutex
	late := 0
	t.Run("planted", func(t *testing.T) {
		for _, m := range tried {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				seed := m.plant(t, from(m))
				t.Logf("found by seed %d", seed)
				mu.Lock()
				defer mu.Unlock()
				if found[m.name] = seed; seed >= soon {
					late++
				}
				if *recordThem {
					recordSeeds(t, found)
				}
			})
		}
	})
	if *planted < 0 && late > len(tried)/4 {
		t.Errorf("%d of %d mistakes are found only after %d seeds", late, len(tried), soon)
	}
}

// recordSeeds writes which seed has found each mistake.
func recordSeeds(t *testing.T, found map[string]int) {
	text, err := json.MarshalIndent(found, "", "\t")
	if err == nil {
		err = os.WriteFile(mistakesFile, append(text, '\n'), 0o600)
	}
	errtest.Report(t, err)
}

var failedSeed = regexp.MustCompile(`seed (\d+)`)

// plant compiles the simulation with the mistake, and returns the first seed that finds it, beginning with a seed.
func (m mistake) plant(t *testing.T, from int) (seed int) {
	t.Helper()
	dir := t.TempDir()
	original, err := filepath.Abs(filepath.Join("..", "..", filepath.FromSlash(m.file)))
	errtest.None(t, err)
	text, err := os.ReadFile(original)
	errtest.None(t, err)
	write := func(name string, text []byte) string {
		name = filepath.Join(dir, name)
		errtest.None(t, os.WriteFile(name, text, 0o600))
		return name
	}
	changed := write("changed.go", []byte(strings.Replace(string(text), m.old, m.new, 1)))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	errtest.None(t, err)
	program := filepath.Join(dir, "faultsim.test")
	build := exec.Command("go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-vet", "off", "-overlay", write("overlay.json", overlay), "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("it does not compile: %v\n%s", err, out)
	}
	run := exec.Command(program, "-test.run", "^TestFaults$", "-test.timeout", "20m", "-from", strconv.Itoa(from), "-seeds", strconv.Itoa(latest))
	run.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := run.CombinedOutput()
	if err == nil {
		t.Fatalf("%d seeds do not find it", latest)
	}
	match := failedSeed.FindSubmatch(out)
	if match == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seed, _ = strconv.Atoi(string(match[1]))
	return seed
}
