package ratelimit

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// placesToTouch returns the files that the numbered list of a section of CONTRIBUTING.md names.
func placesToTouch(t *testing.T, heading string) (files []string) {
	t.Helper()
	section := caddytest.SectionOf(t, "CONTRIBUTING.md", heading)
	for _, item := range regexp.MustCompile(`(?m)^\d+\. (.*(\n {3,}\S.*)*)`).FindAllStringSubmatch(section, -1) {
		file := regexp.MustCompile("`([a-zA-Z_/<>-]+(/|\\.(go|lua|md))|examples/[a-z-]+/Caddyfile)`")
		for _, name := range file.FindAllStringSubmatch(item[1], -1) {
			files = append(files, name[1])
		}
	}
	return files
}

// wantPlaces checks that each of the places is about the name. A directory must have a file about
// it.
func wantPlaces(t *testing.T, places []string, name, pattern string) {
	t.Helper()
	for _, place := range places {
		files := []string{strings.ReplaceAll(place, "<name>", name)}
		if strings.HasSuffix(place, "/") {
			files, _ = filepath.Glob(place + "*")
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && regexp.MustCompile(pattern).Match(text)
		}) {
			t.Errorf("%s is not about %s: CONTRIBUTING.md says what belongs there", strings.ReplaceAll(place, "<name>", name), name)
		}
	}
}

// The lists of CONTRIBUTING.md hold for all algorithms and options there are.
func TestContributing(t *testing.T) {
	places, options := placesToTouch(t, "Add an algorithm"), placesToTouch(t, "Add an option of a limit")
	settings := placesToTouch(t, "Add a zone option")
	if len(places) < 10 || len(options) < 6 || len(settings) < 7 {
		t.Fatalf("only these places found: %q, %q and %q", places, options, settings)
	}
	for _, a := range algorithms.All() {
		ofName := places
		if slices.Contains([]string{"token_bucket", "gcra", "leaky_bucket"}, a.Name) { // one arithmetic, in the files of bucket
			ofName = slices.DeleteFunc(slices.Clone(places), func(place string) bool { return strings.HasPrefix(place, "algorithms/<name>.") })
		}
		wantPlaces(t, ofName, a.Name, `\b`+a.Name+`\b`)
		for _, option := range a.OptionNames() {
			wantPlaces(t, options, option, `(?i)\b(`+option+`|`+strings.ReplaceAll(option, "_", "")+`)\b`) // or the name of the field in Go
		}
	}
	endpoints := placesToTouch(t, "Add an endpoint of the admin API")
	if len(endpoints) < 6 {
		t.Fatalf("only these places found: %q", endpoints)
	}
	for _, r := range admin.Resources {
		words := slices.DeleteFunc(strings.Split(r.Form, "/"), func(part string) bool { return strings.HasPrefix(part, "{") })
		name := words[len(words)-1]
		for _, place := range endpoints {
			if place != "internal/admin/lists.go" && place != "SECURITY.md" && place != "internal/adminapi/adminapi.go" { // not about each endpoint
				wantPlaces(t, []string{place}, name, `\b`+name+`\b`)
			}
		}
	}
	var fields []string
	for _, s := range zoneSettings() {
		field := s.Name
		if s.field != "" {
			field = s.field
		}
		fields = append(fields, field)
		for _, place := range settings {
			name := s.Name
			switch {
			case name == "limits" && !strings.HasPrefix(place, "zone") && place != "docs/json.md":
				continue // a Caddyfile has options for each algorithm
			case place == "docs/admin.md" && !s.shown, place == "docs/caddyfile.md" && s.Read == nil:
				continue
			case place == "zone.go", place == "docs/json.md":
				name = field
			}
			wantPlaces(t, []string{place}, name, `\b`+name+`\b`)
		}
	}
	slices.Sort(fields)
	if want := slices.Sorted(slices.Values(caddytest.JSONFields(Zone{}))); !slices.Equal(fields, want) {
		t.Errorf("the table of settings has the fields %q, want those of Zone, %q", fields, want)
	}
}
