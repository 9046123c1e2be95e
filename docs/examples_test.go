package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// longer replaces the windows of an example by long ones, in which nothing refills while a test runs.
var longer = strings.NewReplacer("delay 1s", "delay 1s", " 1m", " 200h", " 1s", " 200h", " 1h", " 200h",
	"min_interval 10s", "min_interval 200h", "warm_up 10s", "warm_up 2000h")

// Each zone of the example with every algorithm and mode answers as its comments say. TestParity shows that Redis decides the
// same, and TestQueueLaws when requests that wait pass.
func TestExampleWithEveryAlgorithm(t *testing.T) {
	t.Parallel()
	example := longer.Replace(caddytest.ReadFile(t, "examples/every-algorithm/Caddyfile"))
	c := caddytest.Start(t, strings.Replace(example, "\n:8080 {", "\n{\n\tadmin {$ADMIN}\n}\n{$SITE} {", 1))
	check := func(path, wantStatuses, wantRemaining string) {
		t.Helper()
		var statuses, remaining string
		for range strings.Count(wantStatuses, " ") {
			r := c.Get(t, path)
			_, rest, _ := strings.Cut(r.Field("RateLimit"), ";r=")
			left, _, _ := strings.Cut(rest, ";")
			statuses += fmt.Sprint(r.StatusCode, " ")
			remaining += left + " "
		}
		if statuses != wantStatuses || remaining != wantRemaining {
			t.Errorf("%s: statuses %s with %s remaining, want %s with %s", path, statuses, remaining, wantStatuses, wantRemaining)
		}
	}
	for _, a := range algorithms.All() {
		check("/"+a.Name+"/binary", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
		if a.BinaryOnly {
			continue
		}
		check("/"+a.Name+"/nary", "200 200 200 429 ", "3 1 0 0 ")
		check("/"+a.Name+"/uniform", "200 200 200 200 200 429 429 ", "4 3 2 1 0 0 0 ")
		check("/"+a.Name+"/force", "200 200 200 200 ", "3 1 0 0 ")
	}
	check("/min_interval", "200 429 ", "0 0 ")
	check("/buckets", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
	check("/align", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
	check("/start_day", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
	check("/initial", "429 429 ", "0 0 ")
	check("/warm_up", "200 429 ", "0 0 ")
	check("/legacy", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
	check("/limits", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
	check("/factor", "200 200 ", "9 8 ")
	check("/delay", "200 429 ", "0 0 ") // it would have to wait for longer than delay
	check("/stages", "200 200 200 429 ", "2 1 0 0 ")
}

// composeFile has the parts of a compose file that the tests read.
type composeFile struct {
	Services map[string]struct {
		Build       string
		Command     string
		Environment map[string]string
		Volumes     []string
		DependsOn   []string `yaml:"depends_on"`
	}
}

// readCompose reads the compose file of an example, in which the password of Redis, if there is one, is SECRET.
func readCompose(t *testing.T, name string, wantCaddys int) (c composeFile) {
	t.Helper()
	dir := "examples/" + name + "/"
	errtest.None(t, yaml.Unmarshal([]byte(strings.ReplaceAll(caddytest.ReadFile(t, dir+"compose.yaml"), "${REDIS_PASSWORD:-change-me}", "SECRET")), &c))
	caddys := 0
	for name, service := range c.Services {
		for _, other := range service.DependsOn {
			if _, ok := c.Services[other]; !ok {
				t.Errorf("%s depends on %s, which is no service", name, other)
			}
		}
		if service.Build == "" {
			continue
		}
		caddys++
		errtest.Report(t, errtest.Of(os.Stat(dir+service.Build+"/Dockerfile")))
		for _, volume := range service.Volumes {
			file, place, _ := strings.Cut(volume, ":")
			if !strings.HasPrefix(file, ".") {
				continue // it has a name
			}
			if _, err := os.Stat(dir + file); err != nil || place != "/etc/caddy/Caddyfile:ro" {
				t.Errorf("volume %s: %v", volume, err)
			}
		}
		if wantCaddys > 1 && service.Environment["REDIS_PASSWORD"] != "SECRET" {
			t.Errorf("%s has no password", name)
		}
	}
	if caddys != wantCaddys {
		t.Errorf("%d Caddys, want %d", caddys, wantCaddys)
	}
	return c
}

// shareExample starts the three Caddys of an example and asks them in turn, 120 times. 100 requests pass.
func shareExample(t *testing.T, name, redis string) {
	t.Helper()
	config := longer.Replace(asTestSite(caddytest.ReadFile(t, "examples/"+name+"/Caddyfile"), "{env.REDIS_PASSWORD}", "SECRET"))
	config = regexp.MustCompile(`\{\$REDIS:.*\} `).ReplaceAllLiteralString(config, redis+" ")
	caddys := []*caddytest.Caddy{caddytest.Start(t, config), caddytest.Start(t, config), caddytest.Start(t, config)}
	statuses := make(map[int]int)
	for i := range 120 {
		statuses[caddys[i%3].Get(t, "/").StatusCode]++
	}
	if statuses[200] != 100 || statuses[429] != 20 {
		t.Errorf("%v, want 100 times 200, and 20 times 429", statuses)
	}
}

// TestExample shows what the Caddyfile of one-caddy does, and TestRealExampleWithRedisCluster the one of redis-cluster.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	readCompose(t, "one-caddy", 1)
	readCompose(t, "redis-cluster", 3)
}

func TestExampleWithThreeCaddys(t *testing.T) {
	t.Parallel()
	compose := readCompose(t, "three-caddys", 3)
	server := redistest.Start(t, strings.Fields(compose.Services["redis"].Command)[1:]...)
	shareExample(t, "three-caddys", server.Addr)
	if !togetherExact.MatchString(caddytest.ReadFile(t, "docs/three-caddys.svg")) {
		t.Error("docs/three-caddys.svg doesn't show that 100 requests pass")
	}
}

// togetherExact matches what scripts/three-caddys.sh prints, and the picture of the README shows.
var togetherExact = regexp.MustCompile(`together +100 +200\b`)
