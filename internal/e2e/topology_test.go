package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A Caddy by TLS and one by a unix socket decide as others do. Changed certificates count from the
// next configuration on. A bad file changes nothing.
func TestRedisByTLS(t *testing.T) {
	t.Parallel()
	certificates, others := redistest.NewCertificates(t), redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certificates, "--requirepass", "SECRET")
	used := t.TempDir()
	install := func(c redistest.Certificates) {
		t.Helper()
		for name, file := range map[string]string{"ca.pem": c.CA, "cert.pem": c.Cert, "key.pem": c.Key} {
			text, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(filepath.Join(used, name), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	install(certificates)
	config := caddytest.Site(fmt.Sprintf(`zone api {
		gcra 1 1h 5
	}
	redis %s {
		password {env.REDIS_PASSWORD}
		timeout 30s
		dial_timeout 30s
		tls {
			ca   %s/ca.pem
			cert %[2]s/cert.pem
			key  {env.TEST_KEY}
		}
	}
	on_store_error deny`, server.Addr, used))
	c := caddytest.StartProcess(t, config, "REDIS_PASSWORD=SECRET", "TEST_KEY="+used+"/key.pem")
	c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=4;t=3600`)

	install(others)
	c.Get(t, "/").Want(t, 200)
	c.Reload(t, config+"# with certificates of another authority\n")
	c.Get(t, "/").Want(t, 503)
	c.WaitForLog(t, "certificate")

	install(certificates)
	c.Reload(t, config+"# with the right ones again\n")
	c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=2;t=3600`) // its budget is where it was

	if err := os.Remove(filepath.Join(used, "key.pem")); err != nil {
		t.Fatal(err)
	}
	r := c.Load(t, config+"# without a key\n", "text/caddyfile")
	if r.StatusCode == 200 || !strings.Contains(r.Text, `key of tls of redis: can't use \"{env.TEST_KEY}\": no such file or directory`) {
		t.Errorf("a configuration without the key: %d %s", r.StatusCode, r.Text)
	}
	c.Get(t, "/").Want(t, 200)
	if log := c.Logged(); strings.Contains(log, "SECRET") || strings.Contains(log, "PRIVATE") {
		t.Error("a secret is in the log")
	}
	shown, err := c.Do("GET", "http://"+c.Admin+"/config/", "")
	if err != nil || strings.Contains(shown.Text, "SECRET") || strings.Contains(shown.Text, "PRIVATE") {
		t.Errorf("a secret is in what the admin API shows: %v %s", err, shown.Text)
	}
}

func TestRedisByUnixSocket(t *testing.T) {
	t.Parallel()
	server := redistest.StartUnix(t)
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 1 1h 2\n}\nredis unix://%s?db=2 {\n timeout 30s\n}\non_store_error deny", server.Addr)))
	c.Get(t, "/").Want(t, 200)
	c.Get(t, "/").Want(t, 200)
	c.Get(t, "/").Want(t, 429)
}

// Each of two Caddys goes on with the new primary when Sentinels have made one. No request waits
// for longer than the timeout.
func TestRedisBySentinel(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	const password = "SECRET"
	trio := redistest.StartTrio(t, password)
	config := caddytest.Site(fmt.Sprintf(`zone api {
		fixed_window 100000 100h
	}
	redis %s {
		master_name %s
		sentinel_password {env.SENTINEL_PASSWORD}
		timeout 2s
	}
	on_store_error deny`, strings.Join(trio.Addrs(), " "), redistest.Master))
	caddys := []*caddytest.Caddy{caddytest.StartProcess(t, config, "SENTINEL_PASSWORD="+password), caddytest.StartProcess(t, config, "SENTINEL_PASSWORD="+password)}
	remaining := func(c *caddytest.Caddy) (n int) {
		t.Helper()
		began := time.Now()
		r := c.Get(t, "/")
		if waited := time.Since(began); waited > 2*time.Second+slack {
			t.Errorf("a request waited for %v", waited)
		}
		if r.StatusCode != 200 {
			return 0
		}
		if _, err := fmt.Sscanf(r.Field("RateLimit"), `"api";r=%d;`, &n); err != nil {
			t.Fatal(err, r.Field("RateLimit"))
		}
		return n
	}
	for i, c := range append(caddys, caddys...) {
		if n := remaining(c); n != 99999-i {
			t.Errorf("request %d: %d remaining, want %d", i+1, n, 99999-i)
		}
	}
	old, next := trio.Roles(t)
	began := time.Now()
	old.Kill(t)
	left := caddytest.EventuallySees(t, "both have more than 0 remaining", func() [2]int {
		return [2]int{remaining(caddys[0]), remaining(caddys[1])}
	}, func(left [2]int) bool { return left[0] > 0 && left[1] > 0 })
	one, other := left[0], left[1]
	if other != one-1 {
		t.Errorf("%d and %d remaining: the two don't share a budget", one, other)
	}
	t.Logf("both recovered after %v", time.Since(began).Round(time.Millisecond))
	if keys := next.Client.Keys(t.Context(), "caddy_rl:*api*").Val(); len(keys) != 1 {
		t.Errorf("keys on the new primary: %q", keys)
	}
	for _, c := range caddys {
		c.WaitForLog(t, "Redis works again")
		if strings.Contains(c.Logged(), password) {
			t.Error("the password of the Sentinels is in the log")
		}
	}
}

// Several instances share one limit in a cluster, also over zones whose keys are on different
// nodes. While one node is gone, the keys of others are counted as before.
func TestRedisCluster(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	config := caddytest.Site(fmt.Sprintf(`zone client {
		key client-{header.Client}
		token_bucket 1 1h 50
	}
	zone path {
		key path-{path}
		fixed_window 60 1h
	}
	redis %s {
		cluster
		timeout 5s
	}
	on_store_error deny`, strings.Join(cluster.Addrs()[:2], " ")))
	one, other := caddytest.Start(t, config), caddytest.Start(t, config)
	if statuses := caddytest.Flood(t, 150, 16, "/a", one, other); statuses[200] != 50 || statuses[429] != 100 {
		t.Errorf("statuses %v, want 50 times 200", statuses)
	}

	dying := cluster.Nodes[0]
	name := func(prefix string, gone bool) string {
		for n := 0; ; n++ {
			if name := fmt.Sprint(prefix, n); gone == (cluster.Owner(t, cluster.Nodes[0], cluster.Slot(t, name)) == dying) {
				return name
			}
		}
	}
	client := strings.TrimPrefix(name("client-", false), "client-")
	lost, kept := strings.TrimPrefix(name("path-/", true), "path-"), strings.TrimPrefix(name("path-/", false), "path-")
	one.Get(t, lost, "Client", client).Want(t, 200, "RateLimit", `"client";r=49;t=3600, "path";r=59;t=3600`)
	dying.Kill(t)
	for range 10 {
		one.Get(t, lost, "Client", client).Want(t, 503)
	}
	one.WaitForLog(t, "Redis fails")
	caddytest.WaitForMetric(t, one, "caddy_rate_limit_store_state 1")
	one.Get(t, kept, "Client", client).Want(t, 200, "RateLimit", `"client";r=48;t=3600, "path";r=59;t=3600`)
	other.Get(t, kept, "Client", client).Want(t, 200, "RateLimit", `"client";r=47;t=3600, "path";r=58;t=3600`)
	dying.Restart(t)
	one.WaitForLog(t, "Redis works again")
	one.Get(t, lost, "Client", client).Want(t, 200)
}
