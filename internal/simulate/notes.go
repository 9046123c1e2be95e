package simulate

import (
	"fmt"
	"strings"
)

// note adds a note.
func (c *ConfigurationReport) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// noteOverflow notes how many limits or slots were decided on a shared budget.
func (c *ConfigurationReport) noteOverflow(n int64) {
	if n > 0 {
		c.note("the store had no room for more keys, so a shared budget decided %s, as in production: raise max_keys", counted(n, "time"))
	}
}

// noteNoLimitedRequest notes that the log and the configuration don't belong together.
func (c *ConfigurationReport) noteNoLimitedRequest() {
	if c.Limited == 0 && c.Requests > 0 {
		c.note("no request belongs to a zone: compare the hosts, paths and methods in the log with those of the configuration")
	}
}

// noteEmptyKeys notes in which zones a log lacks the value of the key.
func (c *ConfigurationReport) noteEmptyKeys() {
	for i := range c.Zones {
		z := &c.Zones[i]
		if z.RequestsWithoutKey > 0 && strings.Contains(strings.Join(z.Key, ""), "{") {
			c.note("in zone %s, the key of %s is empty: the log lacks the value of %s, or its name is misspelled",
				z.Zone, counted(z.RequestsWithoutKey, "request"), strings.Join(z.Key, ", "))
		}
	}
}

// noteFewKeys notes in which zones the share of the target is less than one key. The proposed limits then deny
// nobody, so they depend on the single key that asks for most.
func (c *ConfigurationReport) noteFewKeys(target Target) {
	if target.Requests || target.Share == 0 {
		return
	}
	for i := range c.Zones {
		z := &c.Zones[i]
		if len(z.Proposals) > 0 && z.Keys > 0 && z.Keys < (whole+target.Share-1)/target.Share {
			c.note("in zone %s, %v of the keys is less than one key, so the proposed limits deny nobody: name a larger share, or a longer log",
				z.Zone, target)
		}
	}
}
