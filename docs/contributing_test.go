package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// CONTRIBUTING.md names only files and identifiers that exist.
func TestContributingNames(t *testing.T) {
	text := caddytest.ReadFile(t, "CONTRIBUTING.md")
	var files []string
	var code strings.Builder
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
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
	errtest.None(t, err)
	for _, name := range regexp.MustCompile("`([a-zA-Z_/]+\\.(go|lua|sh|md))`").FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix(file, "/"+name[1]) }) {
			t.Errorf("there is no file %s", name[1])
		}
	}
	for _, name := range regexp.MustCompile("`([a-z]+[A-Z][a-zA-Z]+)` in").FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(name[1] + `\b`).MatchString(code.String()) {
			t.Errorf("there is no %s", name[1])
		}
	}
}
