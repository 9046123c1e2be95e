package simulate

import "github.com/caddy-rate-limit/caddy-rate-limit/algorithms"

// ZoneName is the name of the zone that asks for proposals from nothing.
const ZoneName = "new"

// OpenLine is the limit that asks for proposals from nothing, as a line of a Caddyfile. No log reaches it.
const OpenLine = "fixed_window 1000000000000000 24h"

// isOpen reports whether a limit is that of OpenLine.
func isOpen(l *algorithms.Limit) bool { return l.String() == OpenLine }

const (
	second = algorithms.Micros(1_000_000)
	minute = 60 * second
	hour   = 60 * minute
)

// Windows are the windows for which limits are proposed from nothing.
var Windows = []algorithms.Micros{second, 10 * second, minute, hour, 24 * hour}
