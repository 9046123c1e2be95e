//go:build real

package redisstore

import (
	"time"
)

// Misroute makes a cluster send the calls of a slot to the wrong node. That node's queue stands
// still for d.
func Misroute(c *Cluster, key string, d time.Duration) {
	slot := c.names().HashSlot(key)
	right := c.hashSlotNodes[slot].Load()
	var wrong *node
	c.mu.Lock()
	for _, n := range c.nodes {
		if n != right {
			wrong = n
		}
	}
	c.mu.Unlock()
	c.hashSlotNodes[slot].Store(wrong)
	q := &wrong.queue
	wrong.keys.mu.Lock()
	defer wrong.keys.mu.Unlock()
	before := q.maxInFlight
	q.maxInFlight = 0
	time.AfterFunc(d, func() {
		wrong.keys.mu.Lock()
		defer wrong.keys.mu.Unlock()
		q.maxInFlight = before
		wrong.scheduleSendLocked()
	})
}
