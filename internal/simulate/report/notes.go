package report

import (
	"fmt"
	"strings"
)

// Note adds a note.
func (c *Configuration) Note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// NoteDoubts adds notes about outcomes that are not as in production, or that the log can't show. overflowed is how
// many limits or slots were decided on a shared budget.
func (c *Configuration) NoteDoubts(overflowed int64) {
	if c.Limited == 0 && c.Requests > 0 && len(c.LeftOut) == 0 {
		c.Note("no request belongs to a zone: compare the hosts, paths and methods in the log with those of the configuration")
	}
	for i := range c.Zones {
		z := &c.Zones[i]
		if z.RequestsWithoutKey > 0 && strings.Contains(strings.Join(z.Key, ""), "{") {
			c.Note("in zone %s, the key of %s is empty: the requests or their log have no value for %s, or its name is misspelled",
				z.Name, Counted(z.RequestsWithoutKey, "request"), strings.Join(z.Key, ", "))
		}
	}
	if overflowed > 0 {
		c.Note("the store had no room for more keys, so a shared budget decided %s, as in production: raise max_keys",
			Counted(overflowed, "time"))
	}
}
