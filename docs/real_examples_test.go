//go:build real

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

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The compose file's command makes a cluster, in which three Caddys share a limit. Its nodes fail over after two seconds.
//
// Simulated: TestExampleWithThreeCaddys.
func TestRealExampleWithRedisCluster(t *testing.T) {
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
//
// Simulated: TestExampleWithThreeCaddys.
func TestRealThreeCaddysScript(t *testing.T) {
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
	if err != nil || !togetherExact.Match(output) {
		t.Errorf("%v\n%s", err, output)
	}
}

// freePorts returns the first of several free ports in a row.
func freePorts(t *testing.T, n int) string {
	t.Helper()
	for range 100 {
		first, err := strconv.Atoi(redistest.FreePort(t))
		errtest.None(t, err)
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
