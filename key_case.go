package ratelimit

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/cases"
)

// checkKeyCase checks the value of the option key_case.
func checkKeyCase(keyCase string) error {
	if keyCase != "lower" {
		return fmt.Errorf("key_case takes lower, not %.100q: write key_case lower, or leave it out if the case of keys counts", keyCase)
	}
	return nil
}

// foldsKeys reports whether texts that differ only in their case are the same key.
func (c *Zone) foldsKeys() bool { return c.KeyCase == "lower" }

// foldKey returns a key from an operator as the zone writes it.
func (c *Zone) foldKey(key string) string {
	if c.foldsKeys() {
		return foldCase(key)
	}
	return key
}

// foldCase returns a text in which letters of different case are equal, by Unicode's full case folding: "ß"
// becomes "ss". Invalid UTF-8 becomes U+FFFD. A text in lower-case ASCII is returned as it is, and costs no
// memory.
func foldCase(text string) string {
	for i := range len(text) {
		if text[i] >= 0x80 {
			// Fold exchanges the two cases of Cherokee letters, so ToLower follows.
			return strings.ToLower(cases.Fold().String(text))
		}
	}
	return strings.ToLower(text)
}

// overrides returns the zone's overrides by the keys that requests have.
func (c *Zone) overrides() map[string]*LimitSet {
	if !c.foldsKeys() {
		return c.Override
	}
	folded := make(map[string]*LimitSet, len(c.Override))
	for key, set := range c.Override {
		folded[foldCase(key)] = set
	}
	return folded
}

// foldMatters reports whether requests can have keys of the template that differ only in their case.
func (t *keyTemplate) foldMatters() bool { return !t.plain && !t.address }

// ignoresKeyCase reports whether key_case lower changes no key.
func (z *zone) ignoresKeyCase() bool {
	return z.config.foldsKeys() && !slices.ContainsFunc(z.keys, func(t keyTemplate) bool { return t.foldMatters() })
}
