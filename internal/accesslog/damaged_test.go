package accesslog

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// A damaged file has one broken line, behind all of its lines that can be read, also if lines of other files come between.
func TestBrokenLineComesOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 1))
	for range seedtest.Cases(t, 20) {
		var damaged, other strings.Builder
		n := 1 + random.IntN(40)
		for at := range n {
			damaged.WriteString(lineAt(2*at, "damaged") + "\n")
			other.WriteString(lineAt(2*at+1, "other") + "\n")
		}
		content := gzipped(t, damaged.String(), 100)
		names := []string{writeFile(t, "damaged", content[:len(content)-4]), writeFile(t, "other", other.String())}
		var read []string
		for _, line := range readAll(t, openLog(t, Options{Names: names}, 1+random.IntN(5000))) {
			_, text, _ := strings.Cut(line, " ")
			if strings.HasPrefix(text, "error: ") {
				read = append(read, "broken")
			} else if strings.Contains(text, "damaged") {
				read = append(read, text)
			}
		}
		want := append(strings.Split(strings.TrimSpace(damaged.String()), "\n"), "broken")
		if !slices.Equal(read, want) {
			t.Fatalf("of %d lines were read: %q", n, read)
		}
	}
}
