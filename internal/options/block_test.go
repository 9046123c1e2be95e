package options

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Errors name the option that was meant, or the block that it belongs in.
func TestReadBlock(t *testing.T) {
	table := &Table{
		Blocks: []Block{
			{Name: "a shop", Options: []string{"colour", "door", "key"}},
			{Name: "the lock of a door", Within: "door", Options: []string{"key"}},
		},
		Repeatable: []string{"door"},
		Examples:   map[string]string{"colour": "for example colour red"},
		Correct: func(option, block string) string {
			if option == "roof" && block == "shop" {
				return "a shop has a ceiling"
			}
			return ""
		},
	}
	shop := []string{"colour", "door"}
	for _, test := range []struct {
		text, block string
		options     []string
		want        string // the end of the error; "" for none
	}{
		{"{\n colour red\n door\n door\n}", "shop", shop, ""},
		{"", "shop", shop, ""},
		{"small {\n}", "shop", shop, `shop takes no value "small" here: write its options in braces, at Testfile:1`},
		{"{\n colour red\n colour blue\n}", "shop", shop, "colour is given twice: write it once, at Testfile:3"},
		{"{\n colour red {\n x\n }\n}", "shop", shop, "colour takes no block, at Testfile:2"},
		{"{\n colour {\n x\n }\n door\n}", "shop", shop, "colour takes no block, at Testfile:2"},
		{"{\n door\n door\n colour red\n door\n}", "shop", shop, "too many of door, colour: close one, at Testfile:4"},
		{"{\n door\n door\n door\n}", "shop", shop, "too many of door, colour: close one"}, // by its own line
		{"{\n door wrong\n}", "shop", shop, "a wrong door, at Testfile:2"},
		{"{\n roof\n}", "shop", shop, `unknown option "roof" of shop: a shop has a ceiling, at Testfile:2`},
		{"{\n key\n}", "shop", shop, `unknown option "key" of shop: it belongs in a shop, at Testfile:2`},
		{"{\n key\n}", "door", nil, `unknown option "key" of door: it belongs in the lock of a door, at Testfile:2`},
		{"{\n color red\n}", "shop", shop, `unknown option "color" of shop (did you mean colour?): write for example colour red, at Testfile:2`},
		{"{\n color\n}", "door", nil, `unknown option "color" of door (did you mean colour?): it belongs in a shop, at Testfile:2`},
		{"{\n path\n}", "shop", []string{"match"}, `unknown option "path" of shop (did you mean match path?), at Testfile:2`},
		{"{\n match_path /x\n}", "shop", []string{"match"}, `unknown option "match_path" of shop (did you mean match path?), at Testfile:2`},
		{"{\n exempt_client_ip ::1\n}", "shop", []string{"exempt"}, `unknown option "exempt_client_ip" of shop (did you mean exempt client_ip?), at Testfile:2`},
		{"{\n colour_path\n}", "shop", []string{"colour"}, `unknown option "colour_path" of shop (did you mean colour?): write for example colour red, at Testfile:2`},
		{"{\n redir\n}", "shop", []string{"redis"}, `unknown option "redir" of shop: it is a directive: write } above it, to close shop, at Testfile:2`},
		{"{\n frobnicate\n}", "door", nil, `unknown option "frobnicate" of door: it has none, at Testfile:2`},
		{"{\n frobnicate\n}", "shop", shop, `unknown option "frobnicate" of shop: write one of colour, door, at Testfile:2`},
	} {
		d := caddyfile.NewTestDispenser("block " + test.text)
		d.Next()
		doors := 0
		err := table.ReadBlock(d, test.block, test.options, func(option string) error {
			if args := d.RemainingArgs(); len(args) == 1 && args[0] == "wrong" {
				return errors.New("a wrong door")
			}
			if option == "door" {
				doors++
			}
			return nil
		}, func() error {
			if doors > 2 {
				return fmt.Errorf("too many of door, %s: close one", shop[0])
			}
			return nil
		})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasSuffix(err.Error(), test.want)) {
			t.Errorf("%q: %v, want %s", test.text, err, test.want)
		}
	}
}
