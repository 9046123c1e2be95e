package keys

import (
	"strings"

	"golang.org/x/text/cases"
)

// FoldCase returns a text in which letters of different case are equal, by Unicode's full case folding: "ß"
// becomes "ss". Invalid UTF-8 becomes U+FFFD. A text in lower-case ASCII is returned as it is, and costs no
// memory.
func FoldCase(text string) string {
	for i := range len(text) {
		if text[i] >= 0x80 {
			// Fold exchanges the two cases of Cherokee letters, so ToLower follows.
			return strings.ToLower(cases.Fold().String(text))
		}
	}
	return strings.ToLower(text)
}
