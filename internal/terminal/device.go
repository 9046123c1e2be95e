package terminal

import (
	"os"

	"golang.org/x/term"
)

// Of returns the terminal to which an output goes, or nil.
func Of(output any) *os.File {
	if file, ok := output.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}

// IsColored reports whether the user of the terminal wants colors.
func IsColored() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }
