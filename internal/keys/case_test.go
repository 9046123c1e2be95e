package keys

import (
	"testing"
	"unicode"
)

func TestFoldCase(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "alice": "alice", "aLICE-1": "alice-1", "ÉMILE": "émile", "STRASSE": "strasse", "Straße": "strasse", "ΣΊΣΥΦΟΣ": "σίσυφοσ", "σίσυφος": "σίσυφοσ",
		"\u212aELVIN": "kelvin", "I\u0307": "i\u0307", "\u0130": "i\u0307", "ＡＬＩＣＥ": "ａｌｉｃｅ",
		"Ꭰ": "ꭰ", "ꭰ": "ꭰ", "A\xffB": "a\ufffdb", "É\xff": "é\ufffd",
	} {
		if got := FoldCase(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	for c := range unicode.MaxRune + 1 {
		other := unicode.SimpleFold(c)
		if other == c {
			continue
		}
		folded := FoldCase(string(c))
		if twice := FoldCase(folded); twice != folded {
			t.Errorf("%q becomes %q, and that %q", c, folded, twice)
		}
		if got := FoldCase(string(other)); got != folded {
			t.Errorf("%q becomes %q, but %q becomes %q", c, folded, other, got)
		}
	}
}

// Keys in lower-case ASCII are the usual ones.
func TestFoldCaseAllocatesNothing(t *testing.T) {
	template := NewKey("{http.request.header.X-User}", Form{FoldCase: true})
	if n := testing.AllocsPerRun(100, func() { template.Normalize("alice@example.com") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if text, _ := template.Normalize("Alice@Example.com"); text != "alice@example.com" {
		t.Errorf("the key is %q", text)
	}
}
