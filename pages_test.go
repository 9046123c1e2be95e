package ratelimit

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The tests here and in page_commands_test.go run the pages: every configuration is loaded, and every command is
// executed and its output compared. CONTRIBUTING.md says how to write a block.

// pages returns all Markdown files that users read.
func pages(t testing.TB) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == ".git" || path == "bench" || path == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			files = append(files, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil || len(files) < 5 {
		t.Fatal("pages:", files, err)
	}
	return files
}

// block is a fenced block of a page.
type block struct {
	language string
	text     string
	line     int
}

var fence = regexp.MustCompile("(?ms)^( *)```(\\w*)\n(.*?)^ *```$")

// blocksOf returns the fenced blocks of a page, without the indentation that they have in lists.
func blocksOf(t testing.TB, page string) (blocks []block) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fence.FindAllSubmatchIndex(content, -1) {
		indent, text := string(content[m[2]:m[3]]), string(content[m[6]:m[7]])
		if indent != "" {
			text = strings.ReplaceAll("\n"+text, "\n"+indent, "\n")[1:]
		}
		blocks = append(blocks, block{
			language: string(content[m[4]:m[5]]),
			text:     text,
			line:     1 + bytes.Count(content[:m[0]], []byte("\n")),
		})
	}
	return blocks
}

// fences returns the blocks of a page that are in a language.
func fences(t testing.TB, page, language string) (found []string) {
	t.Helper()
	for _, b := range blocksOf(t, page) {
		if b.language == language {
			found = append(found, b.text)
		}
	}
	return found
}

// sectionOf returns the section of a page with this heading, without the sections below it.
func sectionOf(t *testing.T, page, heading string) string {
	t.Helper()
	section := regexp.MustCompile(`(?ms)^##+ ` + regexp.QuoteMeta(heading) + `$(.*?)(^##|\z)`).FindString(readFile(t, page))
	if section == "" {
		t.Fatalf("%s has no section %q", page, heading)
	}
	return section
}

// tableRows returns the cells of the rows of a section whose first cell begins with code.
func tableRows(section string) (rows [][]string) {
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*) \\|$").FindAllStringSubmatch(section, -1) {
		rows = append(rows, strings.Split(row[1], " | "))
	}
	return rows
}

// codeIn returns the texts in backticks.
func codeIn(text string) (found []string) {
	for _, c := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(text, -1) {
		found = append(found, c[1])
	}
	return found
}

// Every Caddyfile and every JSON text is provisioned or decoded, and every YAML text is parsed. The page names
// each warning of this module about its configurations.
func TestSnippets(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "secret")
	t.Setenv("SENTINEL_PASSWORD", "secret")
	t.Setenv("KEYS_SECRET", "secret")
	t.Setenv("REDIS_CERTIFICATES", filepath.Dir(redistest.NewCertificates(t).CA)) // ca.pem, cert.pem and key.pem
	logs := t.TempDir()
	count := make(map[string]int)
	all, texts := make(map[string][]block), make(map[string]string)
	for _, page := range pages(t) {
		all[page], texts[page] = blocksOf(t, page), readFile(t, page)
	}
	examples, _ := filepath.Glob("examples/*/Caddyfile")
	for _, file := range append(examples, "Caddyfile.example") {
		if _, shown := texts["docs/recipes/"+filepath.Base(filepath.Dir(file))+".md"]; !shown {
			texts[file] = readFile(t, file)
			all[file] = []block{{language: "caddyfile", line: 1, text: texts[file]}}
		}
	}
	t.Chdir(t.TempDir()) // for log files
	logs, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for page, blocks := range all {
		for _, b := range blocks {
			b.text = strings.ReplaceAll(b.text, logsOnPage, logs)
			var check func(t *testing.T) error
			switch b.language {
			case "caddyfile":
				check = func(t *testing.T) error {
					config, err := adapt(t, []byte(strings.ReplaceAll(b.text, logsOnPage, logs)))
					if err != nil {
						return err
					}
					return validateExample(t, config, texts[page])
				}
			case "json":
				check = func(t *testing.T) error { return validateFence(t, b.text, texts[page]) }
			case "yaml":
				check = func(*testing.T) error {
					documents := yaml.NewDecoder(strings.NewReader(b.text))
					for {
						if err := documents.Decode(new(any)); err == io.EOF {
							return nil
						} else if err != nil {
							return err
						}
					}
				}
			case "", "go", "lua", "js", "java", "nginx", "ini", "promql", "dockerfile", "text", "console", "sh":
				continue
			default:
				t.Errorf("%s:%d: a block in %s, which no test checks", page, b.line, b.language)
				continue
			}
			count[b.language]++
			t.Run(fmt.Sprintf("%s:%d", page, b.line), func(t *testing.T) {
				if err := check(t); err != nil {
					t.Errorf("%v in\n%s", err, b.text)
				}
			})
		}
	}
	if count["caddyfile"] < 20 || count["json"] < 5 {
		t.Errorf("few snippets: %v", count)
	}
}

// Each recipe has the same parts, so that a reader finds them, and the list of recipes has each of them.
func TestRecipesHaveTheirParts(t *testing.T) {
	untried := []string{"docker-proxy", "kubernetes"} // need programs that tests don't have
	list, err := os.ReadFile("docs/recipes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes, err := filepath.Glob("docs/recipes/*.md")
	if err != nil || len(recipes) < 17 {
		t.Fatal(recipes, err)
	}
	for _, page := range recipes {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if name == "README" {
			continue
		}
		if titles := regexp.MustCompile(`(?m)^# `).FindAllStringIndex(prose(t, page), -1); len(titles) != 1 || titles[0][0] != 0 {
			t.Errorf("%s doesn't begin with its only title", page)
		}
		headings := strings.Join(regexp.MustCompile(`(?m)^## .*$`).FindAllString(prose(t, page), -1), "\n")
		if want := "## Configuration\n## Try it\n## What goes wrong\n## See also"; headings != want {
			t.Errorf("%s has the sections\n%s\nwant\n%s", page, headings, want)
		}
		if len(fences(t, page, "caddyfile")) == 0 {
			t.Errorf("%s has no Caddyfile", page)
		}
		if len(fences(t, page, "console")) == 0 && !slices.Contains(untried, name) {
			t.Errorf("%s has no command", page)
		}
		if !bytes.Contains(list, []byte("]("+name+".md)")) {
			t.Errorf("docs/recipes/README.md does not list %s", name)
		}
	}
}

// -update copies the Caddyfile of each example into its recipe.
func TestRecipesShowTheirExamples(t *testing.T) {
	recipes, err := filepath.Glob("docs/recipes/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range recipes {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		example, err := os.ReadFile("examples/" + name + "/Caddyfile")
		if err != nil {
			continue // not every recipe is about a Caddyfile
		}
		found++
		shown := fences(t, page, "caddyfile")
		switch {
		case len(shown) == 0:
			t.Errorf("%s does not show examples/%s/Caddyfile", page, name)
		case shown[0] == string(example):
		case *update:
			text, _ := os.ReadFile(page)
			if err := os.WriteFile(page, bytes.Replace(text, []byte(shown[0]), example, 1), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("the first Caddyfile of %s is not examples/%s/Caddyfile; -update copies the example", page, name)
		}
	}
	if found < 10 {
		t.Errorf("only %d recipes with an example found", found)
	}
}
