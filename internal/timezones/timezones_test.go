package timezones

import (
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
)

func TestCheck(t *testing.T) {
	for name, want := range map[string]string{
		"Europe/Berlin":    "",
		"UTC":              "",
		"America/St_Johns": "",
		"Europe/Berln":     `unknown time zone "Europe/Berln" (did you mean Europe/Berlin?)`,
		"europe/berlin":    `unknown time zone "europe/berlin" (did you mean Europe/Berlin?)`,
		"Berlin":           `unknown time zone "Berlin" (did you mean Europe/Berlin?)`,
		"new york":         `unknown time zone "new york" (did you mean America/New_York?)`,
		"month":            `unknown time zone "month": write its name in the time zone database, such as Europe/Berlin`,
		"Local":            `unknown time zone "Local": it differs from computer to computer; write its name in the time zone database, such as Europe/Berlin`,
		"../etc/passwd":    `unknown time zone "../etc/passwd": write its name in the time zone database, such as Europe/Berlin`,
		"+02:00":           `unknown time zone "+02:00": write its name in the time zone database, such as Europe/Berlin`,
	} {
		err := Check(name)
		if got := ""; err != nil {
			got = err.Error()
			if got != want {
				t.Errorf("%q: %s, want %s", name, got, want)
			}
		} else if want != "" {
			t.Errorf("%q: no error, want %s", name, want)
		}
	}
}

// The list has the names of the database.
func TestNames(t *testing.T) {
	names := strings.Fields(namesText)
	if !slices.IsSorted(names) || len(names) < 500 {
		t.Errorf("%d names, sorted: %v", len(names), slices.IsSorted(names))
	}
	for _, name := range names {
		if _, err := time.LoadLocation(name); err != nil {
			t.Error(err)
		}
	}
}
