// Package timezones checks the names of time zones in configurations. It never computes with times.
package timezones

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
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
	for _, other := range names {
		if strings.EqualFold(name, other) || strings.EqualFold(strings.ReplaceAll(name, " ", "_"), city(other)) {
			return fmt.Errorf("unknown time zone %q: write %s", name, other)
		}
	}
	if _, err := time.LoadLocation(name); err == nil && name != "Local" { // newer than the names here
		return nil
	}
	advice := "write its name in the time zone database, such as Europe/Berlin"
	switch name {
	case "day", "week", "month", "year":
		advice = "the period comes before the time zone, as in " + name + " Europe/Berlin"
	}
	if name == "Local" {
		advice = "it is another one on each computer; " + advice
	} else if i := closest.Index(name, names); i >= 0 {
		return fmt.Errorf("unknown time zone %q (did you mean %s?)", name, names[i])
	}
	return fmt.Errorf("unknown time zone %q: %s", name, advice)
}

// city returns the last part of a name.
func city(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
