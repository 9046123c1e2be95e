// Package timezones checks the names of time zones in configurations. It never computes with times.
package timezones

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// namesText has the names of the time zone database, sorted, one on each line.
//
//go:embed names.txt
var namesText string

// Check returns an error if there is no time zone of a name, or if its name in the time zone database is written
// otherwise. Some systems find europe/berlin, too; there the same zone would have two names.
func Check(name string) error {
	names := strings.Fields(namesText)
	if slices.Contains(names, name) {
		return nil
	}
	if name == "Local" {
		return fmt.Errorf("unknown time zone %q: it differs from computer to computer; "+advice, name)
	}
	near := options.Suggest(name, names)
	if _, err := time.LoadLocation(name); err == nil && !strings.EqualFold(name, near) { // newer than the names here
		return nil
	}
	if near == "" {
		return fmt.Errorf("unknown time zone %q: "+advice, name)
	}
	return fmt.Errorf("unknown time zone %q (did you mean %s?)", name, near)
}

const advice = "write its name in the time zone database, such as Europe/Berlin"
