package ratelimit

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// eventually waits until something is so. No test reaches its deadline by the slowness of its
// machine.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	redistest.WaitFor(t, "the moment when "+what, so)
}

// long marks a test of faults of Redis, a soak or a flood, which -short skips.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}

// readFile returns the text of a file.
func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writeFile writes a file, and the directories that it is in.
func writeFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// field returns a header field's values, joined.
func (r response) field(name string) string { return strings.Join(r.Header.Values(name), ", ") }

// want checks the status and fields, given as pairs of name and value.
func (r response) want(t *testing.T, status int, fields ...string) {
	t.Helper()
	if r.StatusCode != status {
		t.Errorf("status %d, want %d", r.StatusCode, status)
	}
	for i := 0; i < len(fields); i += 2 {
		wantText(t, fields[i], r.field(fields[i]), fields[i+1])
	}
}

// wantText compares two texts. Numbers of 60 and more may be up to 5 less than
// wanted, and those of 300 and more up to 20: they are seconds, and some have passed.
func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	number := regexp.MustCompile(`\d+`)
	same := number.ReplaceAllString(got, "0") == number.ReplaceAllString(want, "0")
	if same {
		gots, wants := number.FindAllString(got, -1), number.FindAllString(want, -1)
		for i := range wants {
			g, _ := strconv.Atoi(gots[i])
			w, _ := strconv.Atoi(wants[i])
			passed := 5
			if w >= 300 {
				passed = 20
			}
			same = same && (g == w || w >= 60 && g < w && g >= w-passed)
		}
	}
	if !same {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}
