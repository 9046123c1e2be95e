package ratelimit

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// placesToTouch returns the files that the numbered list of a section of CONTRIBUTING.md names.
func placesToTouch(t *testing.T, heading string) (files []string) {
	t.Helper()
	section := sectionOf(t, "CONTRIBUTING.md", heading)
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
	if len(places) < 11 || len(options) < 7 || len(settings) < 7 {
		t.Fatalf("only these places found: %q, %q and %q", places, options, settings)
	}
	for _, a := range algorithms.All() {
		wantPlaces(t, places, a.Name, `\b`+a.Name+`\b`)
		for _, option := range a.OptionNames() {
			wantPlaces(t, options, option, `(?i)\b(`+option+`|`+strings.ReplaceAll(option, "_", "")+`)\b`) // or the name of the field in Go
		}
	}
	endpoints := placesToTouch(t, "Add an endpoint of the admin API")
	if len(endpoints) < 7 {
		t.Fatalf("only these places found: %q", endpoints)
	}
	for _, r := range adminResources {
		words := slices.DeleteFunc(strings.Split(r.form, "/"), func(part string) bool { return strings.HasPrefix(part, "{") })
		name := words[len(words)-1]
		for _, place := range endpoints {
			if place != "admin_lists.go" && place != "SECURITY.md" && place != "internal/adminapi/adminapi.go" { // not about each endpoint
				wantPlaces(t, []string{place}, name, `\b`+name+`\b`)
			}
		}
	}
	var fields []string
	for _, s := range zoneSettings() {
		field := s.name
		if s.field != "" {
			field = s.field
		}
		fields = append(fields, field)
		for _, place := range settings {
			name := s.name
			switch {
			case name == "limits" && !strings.HasPrefix(place, "zone") && place != "docs/json.md":
				continue // a Caddyfile has options for each algorithm
			case place == "docs/admin.md" && !s.shown, place == "docs/caddyfile.md" && s.read == nil:
				continue
			case place == "zone.go", place == "docs/json.md":
				name = field
			}
			wantPlaces(t, []string{place}, name, `\b`+name+`\b`)
		}
	}
	slices.Sort(fields)
	if want := slices.Sorted(slices.Values(jsonFields(Zone{}))); !slices.Equal(fields, want) {
		t.Errorf("the table of settings has the fields %q, want those of Zone, %q", fields, want)
	}
}

// CONTRIBUTING.md names only files and identifiers that exist.
func TestContributingNames(t *testing.T) {
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	var code strings.Builder
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && slices.Contains([]string{".go", ".lua", ".sh", ".md"}, filepath.Ext(path)) {
			files = append(files, "/"+path)
			if !strings.HasSuffix(path, ".md") {
				source, err := os.ReadFile(path)
				code.Write(source)
				return err
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile("`([a-zA-Z_/]+\\.(go|lua|sh|md))`").FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix(file, "/"+name[1]) }) {
			t.Errorf("there is no file %s", name[1])
		}
	}
	for _, name := range regexp.MustCompile("`([a-z]+[A-Z][a-zA-Z]+)` in").FindAllStringSubmatch(string(text), -1) {
		if !regexp.MustCompile(`\b` + name[1] + `\b`).MatchString(code.String()) {
			t.Errorf("there is no %s", name[1])
		}
	}
}
