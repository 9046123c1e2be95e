package docs_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
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
	errtest.None(t, json.Unmarshal([]byte(caddytest.ReadFile(t, observability+"grafana/dashboard.json")), &d))
	return d
}

// alertRules returns the expressions of the alerts, by name.
func alertRules(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	errtest.None(t, yaml.Unmarshal([]byte(caddytest.ReadFile(t, observability+"alerts.yml")), &file))
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
	var rules []string
	for name, expr := range alertRules(t) {
		rules = append(rules, name)
		check(name, expr)
	}
	wantSame(t, "alerts", caddytest.FirstColumn(t, caddytest.RunbookPage, "Alerts"), rules)

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
