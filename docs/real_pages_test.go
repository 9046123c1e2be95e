//go:build real

package docs_test

import (
	"slices"
	"testing"
)

// Every command on a page that needs real time or a real outage does what the page shows, with the product's own timeouts.
//
// Simulated: TestPages, TestFailover, TestBreaker, TestSlotLineLaws.
func TestRealPages(t *testing.T) {
	runPages(t, func(s pageSection) pageSection {
		if !slices.ContainsFunc(s.commands, needsRealTime) {
			s.commands = nil
		}
		return s
	})
}
