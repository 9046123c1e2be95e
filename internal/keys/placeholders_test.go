package keys

import (
	"strings"
	"testing"
)

func TestPlaceholders(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a": "", "{a}": "a", "{a}{b.c}": "a b.c", "x{a}y{b}z": "a b", `\{a\}`: "", `\{{a}\}`: "a", `{a\}b}`: `a\}b`, "{}": "",
		"{": "error", "}": "error", "{a": "error", "a}": "error", "{a}}": "error", "{{a}": "error", "{a{b}": "error", `\{a}`: "error", `{a\}`: "error",
	} {
		names, err := Placeholders(text)
		got := strings.Join(names, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
	}
}
