package docs_test

import (
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// The pictures of the status page and of a simulation are there, and not too large.
func TestScreenshotsAreSmall(t *testing.T) {
	for _, page := range []string{"status-page", "simulate"} {
		for _, name := range []string{"light.png", "dark.png", "phone.png"} {
			path := filepath.Join("docs", page, name)
			file, err := os.Open(path)
			errtest.None(t, err)
			errtest.Report(t, errtest.Of(png.Decode(file)), path)
			if info, _ := file.Stat(); info.Size() > 150_000 {
				t.Errorf("%s has %d bytes, want at most 150,000", path, info.Size())
			}
			_ = file.Close()
		}
	}
}
