package options

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Errors name the place, and the option that was meant or the block that it belongs in.
func TestReadBlock(t *testing.T) {
	var color string
	doors := 0
	shop := []Option{
		Single("color", "red", &color, Text, nil),
		{Name: "door", Repeatable: true, Read: func(d *caddyfile.Dispenser) error {
			doors++
			if d.NextArg() {
				return errors.New("a wrong door")
			}
			return nil
		}},
	}
	blocks := []Block{
		{"a line", []string{"size"}, true}, {"a shop", []string{"color", "door", "key"}, false}, {"a lock", []string{"key"}, false},
	}
	for _, test := range []struct {
		text string
		all  []Option
		want string // the end of the error; "" for none
	}{
		{"{\n color red\n door\n door\n}", shop, ""},
		{"", shop, ""},
		{"small {\n}", shop, `shop takes no value "small" here: write its options in braces, at Testfile:1`},
		{"{\n color red\n color blue\n}", shop, "color is given twice: write it once, at Testfile:3"},
		{"{\n color red {\n x\n }\n}", shop, "color takes no block, at Testfile:2"},
		{"{\n door\n door\n color red\n door\n}", shop, "too many of door, color: close one, at Testfile:4"},
		{"{\n door\n door\n door\n}", shop, "too many of door, color: close one"}, // by its own line
		{"{\n door wrong\n}", shop, "a wrong door, at Testfile:2"},
		{"{\n color\n}", shop, "color has no value: write for example color red, at Testfile:2"},
		{"{\n key\n}", shop, `unknown option "key" of shop: it belongs in a shop or a lock, at Testfile:2`},
		{"{\n colr red\n}", shop, `unknown option "colr" of shop (did you mean color?): write for example color red, at Testfile:2`},
		{"{\n colr\n}", nil, `unknown option "colr" of shop (did you mean color?): it belongs in a shop, at Testfile:2`},
		{"{\n size\n}", shop, `unknown option "size" of shop: it belongs in a line, at Testfile:2`},
		{"{\n sized\n}", shop, `unknown option "sized" of shop: write one of color, door, at Testfile:2`},
		{"{\n frobnicate\n}", nil, `unknown option "frobnicate" of shop: it has none, at Testfile:2`},
		{"{\n frobnicate\n}", shop, `unknown option "frobnicate" of shop: write one of color, door, at Testfile:2`},
	} {
		d := caddyfile.NewTestDispenser("block " + test.text)
		d.Next()
		doors = 0
		err := ReadBlock(d, "shop", test.all, blocks, func() error {
			if doors > 2 {
				return fmt.Errorf("too many of door, %s: close one", shop[0].Name)
			}
			return nil
		})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasSuffix(err.Error(), test.want)) {
			t.Errorf("%q: %v, want %s", test.text, err, test.want)
		}
	}
}

// Misspelled names and words of other limiters are recognized, and names that are like none are not.
func TestSuggest(t *testing.T) {
	names := []string{"token_bucket", "fixed_window", "events", "window", "key", "key_case", "concurrency", "match", "exempt", "shadow"}
	for name, want := range map[string]string{
		"tokenbucket": "token_bucket", "token-bucket": "token_bucket", "TokenBucket": "token_bucket", "tocken_bucket": "token_bucket",
		"evnets": "events", "kye": "key", "windows": "window", "fixed": "fixed_window", "window_size": "window", "match_path": "match",
		"Rate": "token_bucket", "max-requests": "events", "maxRequests": "events", "dryRun": "shadow", "whitelist": "exempt",
		"x": "", "frobnicate": "", "bandwidth": "", "": "",
	} {
		if got := Suggest(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
