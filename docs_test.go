package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
)

// validateExample validates a configuration of a page, which names each warning of this module about it.
func validateExample(t *testing.T, config, page string) error {
	t.Helper()
	warnings, err := warningsAtLoad(t, config)
	if err != nil {
		return err
	}
	for line := range strings.Lines(warnings) {
		var entry struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			return err
		}
		if message, _, _ := strings.Cut(entry.Msg, ":"); !strings.Contains(page, message) {
			return fmt.Errorf("a warning that the page doesn't name: %s", line)
		}
	}
	return nil
}

// validateFence loads JSON of a page as its first field says: a whole configuration, a handler, the
// body of a denial, or what the admin API answers.
func validateFence(t *testing.T, text, page string) error {
	t.Helper()
	first := regexp.MustCompile(`^(?:\[\s*)?\{\s*("\w+")`).FindStringSubmatch(text)
	config := string(caddy.RemoveMetaFields([]byte(text)))
	switch {
	case first == nil:
	case first[1] == `"apps"`:
		return validateExample(t, config, page)
	case first[1] == `"handler"`:
		return validateExample(t, handlerConfig(config), page)
	case first[1] == `"type"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(httpfields.Problem))
	case first[1] == `"version"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(adminapi.Status))
	case first[1] == `"ages_seconds"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(adminapi.History))
	case first[1] == `"name"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new([]adminapi.Zone))
	case first[1] == `"key"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new([]adminapi.DeniedKey))
	case first[1] == `"zone"`:
		return caddy.StrictUnmarshalJSON([]byte(text), new(adminapi.Key))
	}
	return errors.New("no configuration, which begins with apps, no handler, no body of a denial, which begins with type, and no answer of the admin API")
}

// optionsOfLimits returns the names of the options of all algorithms.
func optionsOfLimits() (names []string) {
	for _, a := range algorithms.All() {
		names = append(names, a.OptionNames()...)
	}
	return names
}

// docs/caddyfile.md has every option there is, where it belongs, and no other.
func TestCaddyfileReference(t *testing.T) {
	const file = "docs/caddyfile.md"
	without := func(options, others []string) []string {
		return slices.DeleteFunc(slices.Clone(options), func(o string) bool { return slices.Contains(others, o) })
	}
	type section struct {
		heading string
		options []string
	}
	var blocks [][]string
	for _, s := range []section{
		{"Global option", append(slices.Clone(memoryOptions), "memory", "zone")},
		{"Zone options", without(zoneOptions(), limitOptions)},
		{"Limits", limitOptions},
		{"Options of limits", optionsOfLimits()},
		{"settle", settleOptions},
		{"Handler options", sharedOptions},
		{"redis", redisOptions},
		{"tls", tlsOptions},
	} {
		caddytest.WantRows(t, file, s.heading, s.options)
		blocks = append(blocks, s.options)
	}
	caddytest.WantOneRowEach(t, file, blocks...)
}

// docs/admin.md has every path, field and parameter of the admin API, and the values of fields that have few.
func TestAdminReference(t *testing.T) {
	const file = "docs/admin.md"
	zone := []string{"name", "store", "keys", "max_keys", "failing_nodes", "on_store_error", "requests"}
	for _, s := range zoneSettings() {
		if s.shown {
			zone = append(zone, s.Name)
		}
	}
	caddytest.WantRows(t, file, "Zones", zone)
	caddytest.WantRows(t, file, "The instance", caddytest.JSONFields(adminapi.Status{}, adminapi.Memory{}, adminapi.Redis{}))
	caddytest.WantRows(t, file, "The last hour", caddytest.JSONFields(adminapi.History{}))
	caddytest.WantRows(t, file, "Most denied keys", caddytest.JSONFields(adminapi.ShownKey{}, adminapi.DeniedKey{}))
	caddytest.WantRows(t, file, "Look up a key", caddytest.JSONFields(adminapi.Key{}, adminapi.Override{}, adminapi.Budgets{}, adminapi.Limit{}, adminapi.Concurrency{}, adminapi.Ban{}))
	caddytest.WantRows(t, file, "Explain a request", caddytest.JSONFields(adminapi.ExplainedRequest{}, adminapi.Explanation{}, adminapi.Decision{},
		adminapi.ExplainedHandler{}, adminapi.ExplainedZone{}, adminapi.ExplainedBan{}))
	lists := caddytest.JSONFields(adminapi.BanList{}, adminapi.ListedBan{}, adminapi.OverrideList{}, adminapi.ShownKey{}, adminapi.Override{})
	var requests, paths []string
	for _, r := range admin.Resources {
		lists = append(lists, r.Parameters...)
		path := strings.NewReplacer("{", "<", "}", ">").Replace(r.Form)
		if slices.Contains(r.Parameters, "key") {
			path += "?key=<key>"
		}
		for method := range r.Actions {
			requests = append(requests, method+" "+path)
		}
	}
	caddytest.WantRows(t, file, "Lists of bans and overrides", lists)
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, file, "Requests")) {
		for _, method := range caddytest.CodeIn(row[0]) {
			for _, path := range caddytest.CodeIn(row[1]) {
				paths = append(paths, method+" "+path)
			}
		}
	}
	slices.Sort(requests)
	if slices.Sort(paths); !slices.Equal(paths, requests) {
		t.Errorf("%s has the requests %q, want %q", file, paths, requests)
	}

	var shown []adminapi.Zone
	for _, text := range caddytest.Fences(t, file, "json") {
		if strings.Contains(text, `"requests"`) {
			errtest.None(t, json.Unmarshal([]byte(text), &shown))
		}
	}
	if got := slices.Sorted(maps.Keys(shown[0].Requests)); !slices.Equal(got, slices.Sorted(slices.Values(telemetry.Outcomes()))) {
		t.Errorf("%s: a zone counts requests by the outcomes %q, want %q", file, got, telemetry.Outcomes())
	}
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, file, "Explain a request")) {
		if prefix := strings.Trim(row[0], "`"); slices.Contains([]string{"verdict", "reason", "applies"}, prefix) {
			values := caddytest.ParseSource(t, ".").Constants(prefix)
			if prefix == "reason" {
				values = append(values, caddytest.ParseSource(t, "internal/denials").Constants("Reason")...)
			}
			for _, value := range values {
				if !slices.Contains(caddytest.CodeIn(row[1]), value) {
					t.Errorf("%s: the row of %s lacks %s", file, prefix, value)
				}
			}
		}
	}
}

// The grammar in docs/caddyfile.md names every option there is.
func TestGrammar(t *testing.T) {
	grammar := caddytest.Fences(t, "docs/caddyfile.md", "text")[0]
	for _, options := range [][]string{zoneOptions(), handlerOptions, redisOptions, tlsOptions, settleOptions, optionsOfLimits()} {
		for _, option := range options {
			if !regexp.MustCompile(`(?m)^\t+` + option + `\b`).MatchString(grammar) {
				t.Errorf("the grammar in docs/caddyfile.md does not show the option %s", option)
			}
		}
	}
}
