package docs_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// startExample starts a Caddy with an example's Caddyfile, whose site is :8080; the
// options are global ones.
func startExample(t *testing.T, name, options string) *caddytest.Caddy {
	t.Helper()
	config := strings.Replace(caddytest.ReadFile(t, "examples/"+name+"/Caddyfile"), "\n:8080 {", "\n{\n\tadmin {$ADMIN}\n"+options+"}\n{$SITE} {", 1)
	return caddytest.Start(t, config)
}

// Each zone of the example with every algorithm and mode answers as its comments say.
func TestExampleWithEveryAlgorithm(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	caddytest.EachStore(t, func(t *testing.T, use string) {
		if use != "" {
			use = "rate_limit {\n" + use + "}\n"
		}
		c := startExample(t, "every-algorithm", use)
		// ask sends requests one after the other and returns statuses, and what remains
		// after each.
		ask := func(t *testing.T, path string, requests int) (statuses, remaining string) {
			t.Helper()
			for range requests {
				r := c.Get(t, path)
				_, rest, _ := strings.Cut(r.Field("RateLimit"), ";r=")
				left, _, _ := strings.Cut(rest, ";")
				statuses += fmt.Sprint(r.StatusCode, " ")
				remaining += left + " "
			}
			return statuses, remaining
		}
		check := func(path, wantStatuses, wantRemaining string) {
			t.Helper()
			statuses, remaining := ask(t, path, strings.Count(wantStatuses, " "))
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

		passed, denied := caddytest.Timed(t, c, 20, "/delay")
		for i, at := range passed {
			if soonest := time.Duration(i) * time.Second; at < soonest {
				t.Errorf("request %d passed after %v", i+1, at)
			}
		}
		if len(passed) < 4 || denied == 0 {
			t.Errorf("/delay: %d passed and %d were denied", len(passed), denied)
		}
		passed, denied = caddytest.Timed(t, c, 20, "/stages")
		if len(passed) < 5 || denied == 0 || passed[3] < 500*time.Millisecond || passed[4] < time.Second {
			t.Errorf("/stages: requests passed after %v, and %d were denied", passed, denied)
		}
	})
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
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(caddytest.ReadFile(t, dir+"compose.yaml"), "${REDIS_PASSWORD:-change-me}", "SECRET")), &c); err != nil {
		t.Fatal(err)
	}
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
		if _, err := os.Stat(dir + service.Build + "/Dockerfile"); err != nil {
			t.Error(err)
		}
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

// shareExample starts the three Caddys of an example and asks them in turn, 120 times. 100 requests pass
// in a minute, less a few that the test sent to find out whether the Caddys serve.
func shareExample(t *testing.T, name, redis string) {
	t.Helper()
	config := strings.Replace(caddytest.ReadFile(t, "examples/"+name+"/Caddyfile"), "\n{\n", "\n{\n\tadmin {$ADMIN}\n", 1)
	config = strings.Replace(config, "\n:8080 {", "\n{$SITE} {", 1)
	config = strings.Replace(config, "cluster\n", "cluster\n\t\t\ttimeout 5s\n", 1) // for a machine that is busy with other tests
	began := time.Now()
	var caddys []*caddytest.Caddy
	for range 3 {
		caddys = append(caddys, caddytest.StartProcess(t, config, "REDIS_PASSWORD=SECRET", "REDIS="+redis))
	}
	passed := 0
	for i := range 120 {
		switch r := caddys[i%3].Get(t, "/"); r.StatusCode {
		case 200:
			passed++
		case 429:
		default:
			t.Fatalf("status %d", r.StatusCode)
		}
	}
	if most := 100 * (1 + int(time.Since(began).Minutes())); passed < 90 || passed > most {
		t.Errorf("%d requests passed, want 90 to %d", passed, most)
	}
}

func TestExampleWithOneCaddy(t *testing.T) {
	t.Parallel()
	readCompose(t, "one-caddy", 1) // its Caddyfile is Caddyfile.example, which the README tries
}

func TestExampleWithThreeCaddys(t *testing.T) {
	t.Parallel()
	compose := readCompose(t, "three-caddys", 3)
	server := redistest.Start(t, strings.Fields(compose.Services["redis"].Command)[1:]...)
	shareExample(t, "three-caddys", server.Addr)
}

func TestExampleWithRedisCluster(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	compose := readCompose(t, "redis-cluster", 3)
	create := compose.Services["create"].Command
	addresses := regexp.MustCompile(`172\.30\.55\.1[1-6]:6379`)
	var nodes []string
	for n := range 6 {
		server := redistest.Start(t, strings.Fields(compose.Services[fmt.Sprint("redis-", n+1)].Command)[1:]...)
		nodes = append(nodes, server.Addr)
	}
	n := 0
	create = addresses.ReplaceAllStringFunc(create, func(string) string { n++; return nodes[n-1] })
	host, port, _ := net.SplitHostPort(nodes[0])
	create = strings.Replace(create, "-h 172.30.55.11", "-h "+host+" -p "+port, 1)
	deadline := time.Now().Add(caddytest.Patient)
	create = strings.TrimSuffix(strings.TrimPrefix(create, `sh -c "`), `"`)
	for created := 0; created < 2; { // the second time finds, before long, that it is done
		command := exec.Command("sh", "-c", create)
		command.Env = append(os.Environ(), "REDISCLI_AUTH=SECRET")
		output, err := command.CombinedOutput()
		if err == nil {
			created++
		} else if time.Now().After(deadline) {
			t.Fatalf("%s: %v\n%s", create, err, output)
		}
	}
	for _, node := range nodes { // each finds that in its own time
		for host, port, _ := net.SplitHostPort(node); ; time.Sleep(20 * time.Millisecond) {
			command := exec.Command("redis-cli", "-h", host, "-p", port, "cluster", "info")
			command.Env = append(os.Environ(), "REDISCLI_AUTH=SECRET")
			if output, _ := command.Output(); strings.Contains(string(output), "cluster_state:ok") {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %s", node, output)
			}
		}
	}
	shareExample(t, "redis-cluster", strings.Join(nodes[:3], " "))
}

// The picture of the README shows what the script prints: three Caddys together allow exactly the limit.
func TestThreeCaddysScript(t *testing.T) {
	caddytest.Long(t)
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	caddy := filepath.Join(t.TempDir(), "caddy")
	caddytest.WriteCaddyCommand(t, caddy)
	script := exec.Command("scripts/three-caddys.sh")
	script.Env = append(os.Environ(), "CADDY="+caddy, "REDIS_PORT="+redistest.FreePort(t), "PORT="+freePorts(t, 3))
	output, err := script.CombinedOutput()
	sum := regexp.MustCompile(`together +100 +200\b`)
	if err != nil || !sum.Match(output) {
		t.Errorf("%v\n%s", err, output)
	}
	picture, err := os.ReadFile("docs/three-caddys.svg")
	if err != nil || !sum.Match(picture) {
		t.Errorf("docs/three-caddys.svg: %v", err)
	}
}

// freePorts returns the first of several free ports in a row.
func freePorts(t *testing.T, n int) string {
	t.Helper()
	for range 100 {
		first, err := strconv.Atoi(redistest.FreePort(t))
		if err != nil {
			t.Fatal(err)
		}
		free := 1
		for ; free < n; free++ {
			listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+free))
			if err != nil {
				break
			}
			_ = listener.Close()
		}
		if free == n {
			return strconv.Itoa(first)
		}
	}
	t.Fatal("no free ports in a row")
	return ""
}
