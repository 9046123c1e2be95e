// Package defaults has the timeouts that apply if none is configured. Programs that are built for tests raise
// them, so that no test depends on the speed of its machine. A released Caddy never changes them.
package defaults

import "time"

var (
	Timeout     = 100 * time.Millisecond // of a message to Redis and its reply
	DialTimeout = time.Second            // of a new connection to Redis
	BodyTimeout = 5 * time.Second        // of a whole body
)
