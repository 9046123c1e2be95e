package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/lucaslorentz/caddy-docker-proxy/v2/caddyfile"
	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

func TestMain(m *testing.M) { caddytest.Main(m) }

// labelsOf returns the labels of each service in a compose file.
func labelsOf(t *testing.T, compose string) map[string]map[string]string {
	t.Helper()
	var file struct {
		Services map[string]struct{ Labels map[string]string }
	}
	errtest.None(t, yaml.Unmarshal([]byte(compose), &file))
	labels := make(map[string]map[string]string)
	for name, service := range file.Services {
		labels[name] = service.Labels
	}
	return labels
}

// fromLabels makes a Caddyfile from labels as caddy-docker-proxy does. The upstreams of a service are
// the addresses that upstreams has for it.
func fromLabels(t *testing.T, labels map[string]map[string]string, upstreams map[string]string) string {
	t.Helper()
	all := caddyfile.CreateContainer()
	for name, of := range labels {
		one, err := caddyfile.FromLabels(of, nil, template.FuncMap{"upstreams": func(port int) string {
			var targets []string
			for address := range strings.FieldsSeq(upstreams[name]) {
				targets = append(targets, fmt.Sprint(address, ":", port))
			}
			return strings.Join(targets, " ")
		}})
		errtest.None(t, err, name)
		all.Merge(one)
	}
	processed, errors := caddyfile.Process(all.Marshal())
	if len(errors) > 0 {
		t.Logf("%s", errors)
	}
	return string(processed)
}

// The labels on the page become the Caddyfile on the page, and the newest Caddy with it loads the module and limits requests.
func TestDockerProxy(t *testing.T) {
	text, err := os.ReadFile("../../docs/recipes/docker-proxy.md")
	errtest.None(t, err)
	blocks := func(language string) (all []string) {
		for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
		return all
	}
	if len(blocks("yaml")) != 2 || len(blocks("caddyfile")) != 1 {
		t.Fatal("the page has other blocks")
	}
	labels := labelsOf(t, blocks("yaml")[0])
	upstreams := map[string]string{"app": "172.20.0.3"}
	config := fromLabels(t, labels, upstreams)
	formatted := func(config string) string {
		return strings.TrimSpace(regexp.MustCompile(`\n+`).ReplaceAllString(config, "\n"))
	}
	if want := blocks("caddyfile")[0]; formatted(config) != formatted(want) {
		t.Errorf("the labels become\n%s\nbut the page says\n%s", config, want)
	}

	// Labels of the service caddy are global options.
	var caddy struct{ Labels map[string]string }
	errtest.None(t, yaml.Unmarshal([]byte(blocks("yaml")[1]), &caddy))
	labels["caddy"] = caddy.Labels
	config = fromLabels(t, labels, upstreams)
	for _, want := range []string{
		"\torder rate_limit after basic_auth\n",
		"\trate_limit {\n\t\tredis redis:6379 {\n\t\t\tpassword {env.REDIS_PASSWORD}\n",
	} {
		if options, _, _ := strings.Cut(config, "app.example.com"); !strings.Contains(options, want) {
			t.Errorf("the global options have no %q: %s", want, options)
		}
	}

	// Two containers of one service have one zone.
	second := map[string]map[string]string{"app": labels["app"], "app-2": labels["app"]}
	config = fromLabels(t, second, map[string]string{"app": "172.20.0.3", "app-2": "172.20.0.4"})
	if strings.Count(config, "zone logins") != 1 || strings.Count(config, "sliding_log") != 1 || !strings.Contains(config, "172.20.0.4:8000") {
		t.Errorf("two containers: %s", config)
	}

	// Services with different limits for one zone of one site get both limits.
	changed := make(map[string]string)
	for label, value := range labels["app"] {
		changed[label] = strings.Replace(value, "5 10m", "50 10m", 1)
	}
	config = fromLabels(t, map[string]map[string]string{"app": labels["app"], "other": changed}, upstreams)
	if strings.Count(config, "zone logins") != 1 || strings.Count(config, "sliding_log") != 2 {
		t.Errorf("two services: %s", config)
	}

	// A site whose labels have an error is left out.
	broken := map[string]string{"caddy": "broken.example.com", "caddy.rate_limit.zone": "a", "caddy.rate_limit.zone.sliding_lock": "5 10m"}
	config = fromLabels(t, map[string]map[string]string{"app": labels["app"], "broken": broken}, upstreams)
	if strings.Contains(config, "broken") || !strings.Contains(config, "app.example.com") {
		t.Errorf("with an error: %s", config)
	}

	// A Caddy with the site limits.
	config = fromLabels(t, map[string]map[string]string{"app": labels["app"]}, upstreams)
	config = regexp.MustCompile(`reverse_proxy .*`).ReplaceAllString(config, "respond ok")
	c := caddytest.Start(t, "{\n\tadmin {$ADMIN}\n}\n"+strings.Replace(config, "app.example.com", "{$SITE}", 1))
	var got []string
	for _, path := range []string{"/login", "/login", "/login", "/login", "/login", "/login", "/"} {
		got = append(got, fmt.Sprint(c.Get(t, path).StatusCode))
	}
	if want := "200 200 200 200 200 429 200"; strings.Join(got, " ") != want {
		t.Errorf("statuses %v, want %s", got, want)
	}
}
