package docs_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

const observability = "examples/observability/"

// dashboard has the parts of a dashboard of Grafana that the tests read.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Type, Definition string
		}
	}
	Panels []struct {
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		FieldConfig              struct {
			Defaults struct{ Unit string }
		}
		Datasource struct{ UID string }
		Targets    []struct {
			Expr, LegendFormat string
			Datasource         struct{ UID string }
		}
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(caddytest.ReadFile(t, observability+"grafana/dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// queries returns the queries of all panels, with the values that Grafana gives its variables.
func (d *dashboard) queries() (all []string) {
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			all = append(all, strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$zone", ".*").Replace(target.Expr))
		}
	}
	return all
}

// alertRules returns the expressions of the alerts, by name.
func alertRules(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal([]byte(caddytest.ReadFile(t, observability+"alerts.yml")), &file); err != nil {
		t.Fatal(err)
	}
	rules := make(map[string]string)
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			rules[rule.Alert] = rule.Expr
		}
	}
	return rules
}

// Dashboard and alerts use only metrics that exist. Each panel has what a reader needs, and its own
// place. The page lists every alert.
func TestObservabilityFiles(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, "Metrics")) {
		names[caddytest.CodeIn(row[0])[0]] = true
	}
	shown := make(map[string]bool)
	check := func(where, query string) {
		used := regexp.MustCompile(`caddy_rate_limit_\w+`).FindAllString(query, -1)
		if len(used) == 0 {
			t.Errorf("%s: %s uses no metric", where, query)
		}
		for _, name := range used {
			name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !names[name] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
			shown[name] = true
		}
	}
	d := readDashboard(t)
	taken := make(map[[2]int]string)
	for _, panel := range d.Panels {
		at := panel.GridPos
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q covers %q, or the edge", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
		if panel.Type == "row" {
			continue
		}
		if panel.Title == "" || panel.Description == "" || panel.FieldConfig.Defaults.Unit == "" || len(panel.Targets) == 0 || panel.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q lacks a title, a description, a unit, a query, or the variable of the data source", panel.Title)
		}
		for _, target := range panel.Targets {
			check(panel.Title, target.Expr)
			if target.LegendFormat == "" || target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q: a query lacks a legend, or the variable of the data source", panel.Title)
			}
		}
	}
	for name := range names {
		if !shown[name] {
			t.Errorf("the dashboard doesn't show %s", name)
		}
	}
	var rules, listed []string
	for name, expr := range alertRules(t) {
		rules = append(rules, name)
		check(name, expr)
	}
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, caddytest.RunbookPage, "Alerts")) {
		listed = append(listed, caddytest.CodeIn(row[0])...)
	}
	wantSame(t, "alerts", listed, rules)

	compose := readCompose(t, "observability", 1)
	mounted := make(map[string]string) // by path in a container
	for name, service := range compose.Services {
		for _, volume := range service.Volumes {
			file, place, _ := strings.Cut(strings.TrimSuffix(volume, ":ro"), ":")
			if _, err := os.Stat(observability + file); err != nil && strings.HasPrefix(file, ".") {
				t.Errorf("%s: %v", name, err)
			}
			mounted[place] = file
		}
	}
	home := compose.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if mounted[home] != "./grafana/dashboard.json" || !strings.Contains(caddytest.ReadFile(t, observability+"grafana/provider.yaml"), "path: "+filepath.Dir(home)+"\n") {
		t.Errorf("Grafana doesn't find the dashboard at %s", home)
	}
	for file, address := range map[string]string{"prometheus.yml": "caddy:8081", "grafana/datasource.yaml": "http://prometheus:9090"} {
		if !strings.Contains(caddytest.ReadFile(t, observability+file), address) {
			t.Errorf("%s does not name %s", file, address)
		}
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
func TestObservability(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: scripts/install.sh prometheus installs it", err)
		}
	}
	if output, err := exec.Command("promtool", "check", "config", observability+"prometheus.yml").CombinedOutput(); err != nil { // with the rules
		t.Errorf("promtool: %v\n%s", err, output)
	}
	server := redistest.Start(t)
	config := asTestSite(caddytest.ReadFile(t, observability+"Caddyfile"), "\n:8081 {", "\n{$OTHER} {", "{$REDIS:localhost:6379}", server.Addr+" {\n\t\t\ttimeout 5s\n\t\t}")
	c := caddytest.Start(t, config)
	p := startPrometheus(t, c.OtherSite())

	for range 200 { // 100 pass, and a few more if time passes. After 50 denials a ban begins
		c.Get(t, "/", "X-Api-Key", "key-4f1c")
	}
	if r, err := c.Do("PUT", "http://"+c.Admin+"/rate_limit/zones/api/keys/customer-2/override", `{"unlimited":true}`); err != nil || r.StatusCode != 204 {
		t.Fatal(err, r.StatusCode, r.Text)
	}
	caddytest.Flood(t, 13, 13, "/reports/2026", c) // three wait
	for _, name := range []string{
		`requests_total{outcome="banned",zone="api"}`, `requests_total{outcome="delayed",zone="reports"}`,
		`bans{zone="api"}`, `overrides{from="runtime",zone="api"}`, "redis_seconds_count",
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
