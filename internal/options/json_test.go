package options

import "testing"

// The root's TestJSON has the errors of values. These are of the text as a whole.
func TestDecodeStrictly(t *testing.T) {
	type inner struct {
		Count int `json:"count" zero:"7"`
	}
	type outer struct {
		List []inner          `json:"list"`
		Map  map[string]inner `json:"map"`
	}
	for text, want := range map[string]string{
		`{}`: "", `{"list":[{"count":1}],"map":{"a":{}}}`: "",
		``: "the JSON ends too early", `{"list":`: "the JSON ends too early", `{} {}`: "more text follows the JSON",
		`{"list":x}`:                  "not valid JSON: invalid character 'x' looking for beginning of value",
		`{"list":[{},{"count":0}]}`:   "list[1].count must not be 0: leave it out for 7",
		`{"map":{"a":{"count":0}}}`:   "map.a.count must not be 0: leave it out for 7",
		`{"map":{"a":{"counts":0}}}`:  `map.a: unknown field "counts" (did you mean count?)`,
		`{"list":[{"count":"1"}]}`:    `list[0].count must be a whole number, not "1": write 1`,
		`{"list":{"count":"1"}}`:      "list must be a list, not an object: write for example [...]",
		`[]`:                          "it must be an object with list, map, not a list: write for example {...}",
		`{"map":{"a":{"count":"x"}}}`: `map.a.count must be a whole number, not "x": write for example 10`,
	} {
		got := ""
		if err := DecodeStrictly([]byte(text), new(outer)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
