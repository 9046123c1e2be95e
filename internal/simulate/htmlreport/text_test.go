package htmlreport

import "testing"

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{9999: "9,999", 10_000: "10k", 12_345: "12.3k", 999_499: "999.4k", 1_500_000: "1.5M", 2_000_000_000: "2G"} {
		if got := short(n); got != want {
			t.Errorf("short(%d) is %s, want %s", n, got, want)
		}
	}
}

// Texts from logs can't change the page, and show what they have.
func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"alice":              "<bdi>alice</bdi>",
		`<b a="1">&'`:        "<bdi>&lt;b a=&#34;1&#34;&gt;&amp;&#39;</bdi>",
		"a\u202eb":           `<bdi>a\u202eb</bdi>`,
		"\x00\xff\n":         `<bdi>\x00\xff\n</bdi>`,
		"مرحبا":              "<bdi>مرحبا</bdi>",
		"\ufffd":             "<bdi>\ufffd</bdi>",
		"a\u00a0b\u2028\xe2": `<bdi>a\u00a0b\u2028\xe2</bdi>`,
	} {
		if got := string(shown(text)); got != want {
			t.Errorf("%q is shown as %s, want %s", text, got, want)
		}
	}
}
