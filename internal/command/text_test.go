package command

import (
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// hostileKeys are keys that clients can make up, and the form in which people see them.
var hostileKeys = map[string]string{
	"customer-7":                "customer-7",
	"203.0.113.9":               "203.0.113.9",
	"2001:db8::/64":             "2001:db8::/64",
	"alice@example.com":         "alice@example.com",
	"müller":                    "müller",
	"":                          "''",
	"a b":                       "'a b'",
	"it's":                      `'it'\''s'`,
	"$(reboot)":                 "'$(reboot)'",
	"a;b|c&d>e":                 "'a;b|c&d>e'",
	"~root":                     "'~root'",
	"=ls":                       "'=ls'",
	"*":                         "'*'",
	`back\slash`:                `'back\slash'`,
	"--encoded x":               "--encoded %2D-encoded%20x",
	"-x":                        "--encoded %2Dx",
	"100%":                      "100%",
	"a\nb":                      "--encoded a%0Ab",
	"\x1b[31mred\x1b]0;title\a": "--encoded %1B%5B31mred%1B%5D0%3Btitle%07",
	"a\x00b":                    "--encoded a%00b",
	"\xff":                      "--encoded %FF",
	"\u202egnp.exe":             "--encoded %E2%80%AEgnp.exe",
	"zero\u200bwidth":           "--encoded zero%E2%80%8Bwidth",
	"no\u00a0break":             "--encoded no%C2%A0break",
	"\u2028":                    "--encoded %E2%80%A8",
	"\u0085":                    "--encoded %C2%85",
	"<script>":                  "'<script>'",
}

func TestQuoteKey(t *testing.T) {
	for key, want := range hostileKeys {
		if got := quoteKey(key); got != want {
			t.Errorf("%q is shown as %s, want %s", key, got, want)
		}
	}
}

// A key as people see it, pasted into a command line, is the key again.
func TestQuotedKeysCanBePasted(t *testing.T) {
	for key := range hostileKeys {
		output, err := exec.Command("sh", "-c", "printf '%s\\n' "+quoteKey(key)).Output()
		errtest.None(t, err)
		words := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
		got := words[len(words)-1]
		if len(words) == 2 && words[0] == "--encoded" {
			got, err = url.PathUnescape(got)
			errtest.Report(t, err)
		} else if len(words) != 1 {
			t.Errorf("%q becomes the words %q", key, words)
		}
		if got != key {
			t.Errorf("%q becomes %q", key, got)
		}
	}
}

// Nothing that a terminal could execute, hide or turn around is printed.
func FuzzPrintable(f *testing.F) {
	for key := range hostileKeys {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, text string) {
		encoded := url.PathEscape(text)
		for _, shown := range []string{
			printable(text), quoteKey(text), shownKey(adminapi.ShownKey{Key: &encoded}), shownKey(adminapi.ShownKey{HashedKey: text}),
		} {
			if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q is shown as %q", text, shown)
			}
		}
	})
}

func TestShownKey(t *testing.T) {
	long, cut := strings.Repeat("a", 10_000), strings.Repeat("b", 256)
	for want, key := range map[string]adminapi.ShownKey{
		strings.Repeat("a", 80) + "… (10,000 bytes)":        {Key: &long},
		strings.Repeat("b", 80) + "… (more than 256 bytes)": {Key: &cut, Cut: true},
		"hash abc": {HashedKey: "abc"},
	} {
		if got := shownKey(key); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0s", -1: "0s", 0.0001: "1ms", 0.057: "57ms", 0.25: "250ms", 0.9985: "999ms", 0.9991: "1s", 0.9999: "1s", 1: "1s", 1.2: "2s", 59: "59s", 59.5: "1m", 60: "1m",
		61: "1m1s", 1197.2: "19m58s", 3599.5: "1h", 3600: "1h", 3601: "1h1m", 3720: "1h2m", 86399: "1d", 86400: "1d", 90000: "1d1h",
		365 * 86400: "365d", 1e12: "over 30 years",
	} {
		if got := span(seconds); got != want {
			t.Errorf("%v s: %s, want %s", seconds, got, want)
		}
	}
}
