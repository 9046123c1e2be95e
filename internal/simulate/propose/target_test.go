package propose

import (
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"0.1%": {Share: 1_000_000}, "keys:0.1%": {Share: 1_000_000}, "requests:0.1%": {Requests: true, Share: 1_000_000},
		"0%": {}, "100%": {Share: 1_000_000_000}, "requests:0.0000001%": {Requests: true, Share: 1}, ".5%": {Share: 5_000_000},
		"5 %": {Share: 50_000_000}, "12.5%": {Share: 125_000_000},
	} {
		got, err := ParseTarget(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
		shown := got.String()
		if again, err := ParseTarget(shown); err != nil || again != want || shown[len(shown)-2] == '.' {
			t.Errorf("%q is written %q, and read as %+v, %v", text, shown, again, err)
		}
	}
	for text, want := range map[string]string{
		"0.1":                      `the target must be a percentage, not "0.1": write 0.1%`,
		"requests:1":               `the target must be a percentage, not "requests:1": write requests:1%`,
		"101%":                     `the target must be from 0% to 100%, not "101%": write for example 0.1%`,
		"-1%":                      `the target must be from 0% to 100%, not "-1%": write for example 0.1%`,
		"1e3%":                     `the target must be a percentage with at most 7 digits after the point, not "1e3%": write for example 0.1% or requests:0.1%`,
		"0.00000001%":              `the target must be a percentage with at most 7 digits after the point, not "0.00000001%": write for example 0.1% or requests:0.1%`,
		"":                         `the target must be a percentage with at most 7 digits after the point, not "": write for example 0.1% or requests:0.1%`,
		"bytes:1%":                 `the target must be a share of keys or requests, not "bytes:1%": write for example 0.1% or requests:0.1%`,
		"99999999999999999999999%": `the target must be from 0% to 100%, not "99999999999999999999999%": write for example 0.1%`,
	} {
		if got, err := ParseTarget(text); err == nil || err.Error() != want {
			t.Errorf("%q: %+v, %v, want %s", text, got, err, want)
		}
	}
}

// A share of the keys is at least one key, so that a single scraper doesn't decide the proposal. One of few keys is too
// large a part.
func TestTargetAllowsOneKey(t *testing.T) {
	for _, test := range []struct {
		target       string
		denied, keys int64
		want         bool
	}{
		{"1%", 1, 96, true},
		{"1%", 2, 96, false},
		{"1%", 2, 200, true},
		{"1%", 1, 10, true},
		{"1%", 1, 9, false},
		{"20%", 1, 9, true},
		{"0%", 1, 96, false},
		{"0%", 0, 96, true},
		{"requests:1%", 1, 96, false},
	} {
		target, err := ParseTarget(test.target)
		if err != nil {
			t.Fatal(err)
		}
		// Each key has made one request.
		if got := target.allows(tally{test.denied, test.denied}, tally{test.keys, test.keys}); got != test.want {
			t.Errorf("%s of %d keys allows a limit that denies %d: %t", test.target, test.keys, test.denied, got)
		}
	}
}
