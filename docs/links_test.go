package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Every link from a page to a file of the repository leads to a file, and its anchor to a heading.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found, known := 0, make(map[string]map[string]bool)
	for _, page := range caddytest.Pages(t) {
		for _, m := range link.FindAllStringSubmatch(prose(t, page), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			found++
			target, anchor, _ := strings.Cut(m[1], "#")
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if info, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			} else if anchor != "" {
				if known[file] == nil && !info.IsDir() {
					known[file] = anchors(t, file)
				}
				if !known[file][anchor] {
					t.Errorf("%s: %s has no such heading", page, m[1])
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d links found", found)
	}
}

// prose returns a page without its blocks.
func prose(t *testing.T, page string) string {
	t.Helper()
	return caddytest.Fence.ReplaceAllString(caddytest.ReadFile(t, page), "")
}

// anchors returns the anchors that GitHub gives the headings of a page.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(t, page), -1) {
		name := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")
		anchor := name
		for n := 1; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", name, n)
		}
		all[anchor] = true
	}
	return all
}

// A reader decides within five minutes whether to use the module.
func TestReadmeIsShort(t *testing.T) {
	text := caddytest.ReadFile(t, "README.md")
	if lines := strings.Count(text, "\n"); lines > 150 {
		t.Errorf("README.md has %d lines, want at most 150", lines)
	}
	if words := len(strings.Fields(text)); words > 1150 {
		t.Errorf("README.md has %d words, want at most 1150", words)
	}
}
