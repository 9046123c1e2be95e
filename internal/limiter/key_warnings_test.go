package limiter

import (
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Values that later handlers leave as they are, or empty, are not looked at for ever.
func TestWatchEnds(t *testing.T) {
	for value, most := range map[string]int{"": maxLateChecks, "same": maxLateChecks / unchangedLateCost} {
		z := &Zone{KeyWarnings: new(KeyWarnings)}
		z.lateChecksLeft.Store(maxLateChecks)
		repl := caddy.NewEmptyReplacer()
		repl.Set("http.request.header.X-Key", value)
		looks := 0
		for ; z.lateChecksLeft.Load() > 0 && looks <= most; looks++ {
			warnOfLatePlaceholders([]earlyValue{{z, &LatePlaceholder{"key", "http.request.header.X-Key"}, value}}, repl)
		}
		if looks != most {
			t.Errorf("%q is looked at %d times, want %d", value, looks, most)
		}
	}
}
