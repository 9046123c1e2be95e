//go:build real

package docs_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// queries returns the queries of all panels, with the values that Grafana gives its variables.
func (d *dashboard) queries() (all []string) {
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			all = append(all, strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$zone", ".*").Replace(target.Expr))
		}
	}
	return all
}

// prometheusServer is a running Prometheus.
type prometheusServer struct{ url string }

// startPrometheus starts a Prometheus with the example's files. It asks the target, instead of the one
// in the file, five times a second, and alerts wait for less time.
func startPrometheus(t *testing.T, target string) prometheusServer {
	t.Helper()
	dir, address := t.TempDir(), "127.0.0.1:"+redistest.FreePort(t)
	config := strings.NewReplacer("caddy:8081", target, "interval: 15s", "interval: 200ms").Replace(caddytest.ReadFile(t, observability+"prometheus.yml"))
	if strings.Count(config, "200ms") != 2 || !strings.Contains(config, target) {
		t.Fatalf("unexpected configuration:\n%s", config)
	}
	caddytest.WriteFile(t, filepath.Join(dir, "prometheus.yml"), config, 0o644)
	alerts := regexp.MustCompile(`for: \d+m`).ReplaceAllString(caddytest.ReadFile(t, observability+"alerts.yml"), "for: 400ms")
	caddytest.WriteFile(t, filepath.Join(dir, "alerts.yml"), alerts, 0o644)
	var log caddytest.Output
	process := caddytest.StartBackground(t, exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn"), &log)
	t.Cleanup(func() {
		process.Stop()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", log.String())
		}
	})
	p := prometheusServer{"http://" + address}
	caddytest.Eventually(t, "Prometheus is ready", func() bool {
		r, err := caddytest.Client.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == 200
	})
	return p
}

// get reads the data of an answer. An error of Prometheus ends the test.
func (p prometheusServer) get(t *testing.T, path string, data any) {
	t.Helper()
	r, err := caddytest.Client.Get(p.url + path)
	errtest.None(t, err)
	defer r.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", path, err, answer.Error)
	}
}

// query returns how many results a query has.
func (p prometheusServer) query(t *testing.T, query string) int {
	t.Helper()
	var data struct{ Result []any }
	p.get(t, "/api/v1/query?query="+url.QueryEscape(query), &data)
	return len(data.Result)
}

// A real Prometheus reads the metrics. Every query of the dashboard has results, every alert can be
// evaluated, and the alert about Redis fires while Redis is down.
//
// Simulated: TestObservabilityFiles, TestMetricsReference.
func TestRealObservability(t *testing.T) {
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: scripts/install.sh prometheus installs it", err)
		}
	}
	if output, err := exec.Command("promtool", "check", "config", observability+"prometheus.yml").CombinedOutput(); err != nil { // with the rules
		t.Errorf("promtool: %v\n%s", err, output)
	}
	server := redistest.Start(t)
	config := asTestSite(caddytest.ReadFile(t, observability+"Caddyfile"), "\n:8081 {", "\n{$OTHER} {", "{$REDIS:localhost:6379}", server.Addr)
	c := caddytest.Start(t, config)
	p := startPrometheus(t, c.OtherSite())

	for range 200 { // 100 pass, and a few more if time passes. After 50 denials a ban begins
		c.Get(t, "/", "X-Api-Key", "key-4f1c")
	}
	if r, err := c.Do("PUT", "http://"+c.Admin+"/rate_limit/zones/api/override?key=customer-2", `{"unlimited":true}`); err != nil || r.StatusCode != 204 {
		t.Fatal(err, r.StatusCode, r.Text)
	}
	caddytest.Flood(t, 13, 13, "/reports/2026", c) // three wait
	for _, name := range []string{
		`requests_total{outcome="banned",zone="api"}`, `requests_total{outcome="delayed",zone="reports"}`,
		`bans_total{zone="api"}`, "redis_seconds_count",
	} {
		caddytest.WaitForMetricAbove(t, c, "caddy_rate_limit_"+name)
	}
	const down = `ALERTS{alertname="RateLimitStoreDown",alertstate="firing"}`
	caddytest.Eventually(t, "Prometheus has the metrics", func() bool { return p.query(t, "caddy_rate_limit_store_state") == 1 })
	if n := p.query(t, down); n != 0 {
		t.Error("the alert about Redis fires while Redis works")
	}
	server.Kill(t)
	caddytest.Eventually(t, "the alert about Redis fires", func() bool {
		c.Get(t, "/")
		return p.query(t, down) == 1
	})
	server.Restart(t)
	caddytest.Eventually(t, "the alert about Redis ends", func() bool { return p.query(t, down) == 0 })

	d := readDashboard(t)
	queries := d.queries()
	if len(queries) < 20 {
		t.Errorf("only %d queries found", len(queries))
	}
	for _, variable := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(variable.Definition); m != nil {
			queries = append(queries, fmt.Sprintf(`group by (%s) (%s{%[1]s!=""})`, m[2], m[1]))
		} else if variable.Type != "datasource" {
			t.Errorf("the variable %s asks %q", variable.Name, variable.Definition)
		}
	}
	for _, query := range queries {
		caddytest.Eventually(t, query+" has results", func() bool { return p.query(t, query) > 0 })
	}
	for name, expr := range alertRules(t) {
		p.query(t, expr) // without an error
		caddytest.Eventually(t, name+" is evaluated", func() bool {
			var data struct {
				Groups []struct {
					Rules []struct{ Name, Health, LastError string }
				}
			}
			p.get(t, "/api/v1/rules", &data)
			for _, rule := range data.Groups[0].Rules {
				if rule.Name == name && rule.Health == "ok" && rule.LastError == "" {
					return true
				}
			}
			return false
		})
	}
}
