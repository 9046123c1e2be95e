package ratelimit

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Every Caddyfile and every JSON text is provisioned or decoded, and every YAML text is parsed. The page names
// each warning of this module about its configurations.
func TestSnippets(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "secret")
	t.Setenv("SENTINEL_PASSWORD", "secret")
	t.Setenv("KEYS_SECRET", "secret")
	t.Setenv("REDIS_CERTIFICATES", filepath.Dir(redistest.NewCertificates(t).CA)) // ca.pem, cert.pem and key.pem
	count := make(map[string]int)
	type snippet struct {
		page string
		caddytest.Block
	}
	var all []snippet
	texts := make(map[string]string)
	for _, page := range caddytest.Pages(t) {
		texts[page] = caddytest.ReadFile(t, page)
		for _, b := range caddytest.BlocksOf(t, page) {
			all = append(all, snippet{page, b})
		}
	}
	examples, _ := filepath.Glob("examples/*/Caddyfile")
	for _, file := range append(examples, "Caddyfile.example") {
		if _, shown := texts["docs/recipes/"+filepath.Base(filepath.Dir(file))+".md"]; !shown {
			texts[file] = caddytest.ReadFile(t, file)
			all = append(all, snippet{file, caddytest.Block{Language: "caddyfile", Line: 1, Text: texts[file]}})
		}
	}
	t.Chdir(t.TempDir()) // for log files
	logs, err := os.Getwd()
	errtest.None(t, err)
	// An older Caddy keeps the option order for the next Caddyfile, so those with this option come last.
	orders := func(s snippet) int { return strings.Count(s.Text, "\torder ") }
	slices.SortStableFunc(all, func(a, b snippet) int { return cmp.Compare(orders(a), orders(b)) })
	for _, b := range all {
		page := b.page
		b.Text = strings.ReplaceAll(b.Text, caddytest.LogsOnPage, logs)
		var check func(t *testing.T) error
		switch b.Language {
		case "caddyfile":
			check = func(t *testing.T) error {
				config, err := caddytest.Adapt(t, []byte(b.Text))
				if err != nil {
					return err
				}
				return validateExample(t, config, texts[page])
			}
		case "json":
			check = func(t *testing.T) error { return validateFence(t, b.Text, texts[page]) }
		case "yaml":
			check = func(*testing.T) error {
				documents := yaml.NewDecoder(strings.NewReader(b.Text))
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
			t.Errorf("%s:%d: a block in %s, which no test checks", page, b.Line, b.Language)
			continue
		}
		count[b.Language]++
		t.Run(fmt.Sprintf("%s:%d", page, b.Line), func(t *testing.T) {
			errtest.Report(t, check(t), b.Text)
		})
	}
	if count["caddyfile"] < 20 || count["json"] < 5 {
		t.Errorf("few snippets: %v", count)
	}
}
