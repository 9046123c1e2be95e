package terminal

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

// Documents for scripts are safe on a terminal, too, and mean the same.
func TestPrintableJSON(t *testing.T) {
	for document, want := range map[string]string{
		"{\n\t\"a\": \"é 世 \\u001b\"\n}":                        "{\n\t\"a\": \"é 世 \\u001b\"\n}",
		"\"\u009b31m \x7f\"":                                    `"\u009b31m \u007f"`,
		"\"\u202egnp.exe no\u00a0break \U000e0041 \U0001f600\"": `"\u202egnp.exe no\u00a0break \udb40\udc41 ` + "\U0001f600\"",
		"\"\xff\"": "\"\ufffd\"",
	} {
		got := PrintableJSON(document)
		if got != want {
			t.Errorf("%q is printed as %q, want %q", document, got, want)
		}
		var before, after any
		if err := errors.Join(json.Unmarshal([]byte(document), &before), json.Unmarshal([]byte(got), &after)); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q means %q, not %q (%v)", got, after, before, err)
		}
	}
}

// Wide and combining characters don't move the columns that follow them.
func TestTable(t *testing.T) {
	table := NewTable("NAME", "", ">COUNT", "NOTE")
	table.Add(Plain("日本"), Plain("hidden"), Plain("7"), Cell{"red", Red})
	table.Add(Plain("e\u0301"), Plain("hidden"), Plain("1,000"), Plain(""))
	want := "NAME  COUNT  NOTE\n日本      7  red\ne\u0301     1,000\n"
	if got := table.Text(Style{}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	want = "\x1b[2mNAME\x1b[0m  \x1b[2mCOUNT\x1b[0m  \x1b[2mNOTE\x1b[0m\n日本      7  \x1b[31mred\x1b[0m\ne\u0301     1,000\n"
	if got := table.Text(Style{Colored: true}); got != want {
		t.Errorf("in colors %q, want %q", got, want)
	}
}
