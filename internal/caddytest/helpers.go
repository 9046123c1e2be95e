package caddytest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/relay"
)

// Long marks a test that takes long. With -short it is skipped.
func Long(t testing.TB) {
	t.Helper()
	redistest.Long(t)
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// WriteFile writes a file, and the directories that it is in.
func WriteFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// Update is set by -update.
var Update = flag.Bool("update", false, "write what is into the golden files")

// StartLink starts a relay to Redis that can be made bad.
func StartLink(t *testing.T, to string) *relay.Relay {
	t.Helper()
	link, err := relay.Start(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	return link
}

// EachStore runs a test with budgets in memory and in Redis; use selects the store in a
// configuration.
func EachStore(t *testing.T, run func(t *testing.T, use string)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		run(t, "")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		run(t, fmt.Sprintf("redis %s {\n timeout 30s\n}\n", redistest.Shared(t).Addr))
	})
}
