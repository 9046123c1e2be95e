// Package goldentest compares what a program writes with golden files. With -update it writes these files instead. The
// package never judges what is in them: read the difference.
package goldentest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is into the golden files")

// Want compares a text with a file.
func Want(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := string(text); got != want {
		t.Errorf("%s: got\n%.5000s\nwant\n%.5000s\n%s", file, got, want, firstDifference(got, want))
	}
}

// firstDifference says where two texts differ, because that of a long file is hard to find.
func firstDifference(got, want string) string {
	line := 1
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			break
		}
		if got[i] == '\n' {
			line++
		}
	}
	is := func(text string) string { return strings.Split(text+strings.Repeat("\n", line), "\n")[line-1] }
	return fmt.Sprintf("The first difference is in line %d:\n%.300s\nwant\n%.300s\nIf the change is wanted, run go test with -update.",
		line, is(got), is(want))
}
