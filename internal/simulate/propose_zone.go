package simulate

import (
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// ZoneName is the name of the zone that asks for proposals from nothing.
const ZoneName = "new"

// OpenLine is the limit that asks for proposals from nothing, as a line of a Caddyfile. No log reaches it.
const OpenLine = "fixed_window 1000000000000000 24h"

// isOpen reports whether a limit is that of OpenLine.
func isOpen(l *algorithms.Limit) bool { return l.String() == OpenLine }

// ZoneLines returns the options of a zone on separate lines. In a shell it is easier to write them on one line,
// with semicolons between spaces.
func ZoneLines(options string) string {
	return strings.TrimSpace(strings.ReplaceAll(options, " ; ", "\n"))
}
