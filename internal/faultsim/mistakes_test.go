package faultsim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each mistake can be planted in one place.
func TestMistakesApply(t *testing.T) {
	for _, m := range mistakes {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Fatal(err)
		}
		if m.old == m.new {
			t.Errorf("%q changes nothing", m.name)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("%q: %s has %d times what it replaces", m.name, m.file, n)
		}
	}
}
