package options

import (
	"encoding/json"
	"testing"
)

// Numbers are read as people write them. In JSON a number that JSON doesn't have is a text.
func TestNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"5": "5", "-0.5": "-0.5", "1e3": "1e3", "1E+3": "1E+3",
		"+5": `"+5"`, "05": `"05"`, ".5": `".5"`, "5.": `"5."`,
		"": "", "e": "", "1_000": "", "0x10": "", "0x1p4": "", "Infinity": "", "inf": "", "NaN": "", "٥": "", "５": "", "5 ": "", "\"5\"": "", "null": "",
	} {
		_, err := ParseNumber(text)
		written, _ := NumberJSON(text)
		var back any
		if (err == nil) != (want != "") || want != "" && string(written) != want || json.Unmarshal(written, &back) != nil {
			t.Errorf("%q: %v, JSON %s, want %s", text, err, written, want)
		}
		if asText, ok := back.(string); ok && asText != text {
			t.Errorf("%q became %q", text, asText)
		}
	}
}
