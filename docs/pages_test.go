package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Each recipe has the same parts, so that a reader finds them, and the README lists each of them.
func TestRecipesHaveTheirParts(t *testing.T) {
	untried := []string{"docker-proxy", "kubernetes"} // need programs that tests don't have
	list := caddytest.ReadFile(t, "README.md")
	recipes, err := filepath.Glob("docs/recipes/*.md")
	if err != nil || len(recipes) < 17 {
		t.Fatal(recipes, err)
	}
	for _, page := range recipes {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if titles := regexp.MustCompile(`(?m)^# `).FindAllStringIndex(prose(t, page), -1); len(titles) != 1 || titles[0][0] != 0 {
			t.Errorf("%s doesn't begin with its only title", page)
		}
		headings := strings.Join(regexp.MustCompile(`(?m)^## .*$`).FindAllString(prose(t, page), -1), "\n")
		if want := "## Configuration\n## Try it\n## What goes wrong"; headings != want {
			t.Errorf("%s has the sections\n%s\nwant\n%s", page, headings, want)
		}
		if len(caddytest.Fences(t, page, "caddyfile")) == 0 {
			t.Errorf("%s has no Caddyfile", page)
		}
		if len(caddytest.Fences(t, page, "console")) == 0 && !slices.Contains(untried, name) {
			t.Errorf("%s has no command", page)
		}
		if !strings.Contains(list, "](docs/recipes/"+name+".md)") {
			t.Errorf("README.md does not list %s", name)
		}
	}
}

// -update copies the Caddyfile of each example into its recipe.
func TestRecipesShowTheirExamples(t *testing.T) {
	recipes, _ := filepath.Glob("docs/recipes/*.md")
	found := 0
	for _, page := range recipes {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		example, err := os.ReadFile("examples/" + name + "/Caddyfile")
		if err != nil {
			continue // not every recipe is about a Caddyfile
		}
		found++
		shown := caddytest.Fences(t, page, "caddyfile")
		switch {
		case len(shown) == 0:
			t.Errorf("%s does not show examples/%s/Caddyfile", page, name)
		case shown[0] == string(example):
		case *caddytest.Update:
			caddytest.WriteFile(t, page, strings.Replace(caddytest.ReadFile(t, page), shown[0], string(example), 1), 0o644)
		default:
			t.Errorf("the first Caddyfile of %s is not examples/%s/Caddyfile; -update copies the example", page, name)
		}
	}
	if found < 10 {
		t.Errorf("only %d recipes with an example found", found)
	}
}
