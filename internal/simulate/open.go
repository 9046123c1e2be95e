package simulate

import "github.com/caddy-rate-limit/caddy-rate-limit/algorithms"

// ZoneName is the name of the zone that asks for proposals from nothing.
const ZoneName = "new"

const (
	second = algorithms.Micros(1_000_000)
	minute = 60 * second
	hour   = 60 * minute
)

// Windows are the windows for which limits are proposed from nothing.
var Windows = []algorithms.Micros{second, 10 * second, minute, hour, 24 * hour}
