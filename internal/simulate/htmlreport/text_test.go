package htmlreport

import (
	"math"
	"strings"
	"testing"
)

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 48120: "48,120", 1234567: "1,234,567", -1000: "−1,000", math.MaxInt64: "9,223,372,036,854,775,807"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) is %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{9999: "9,999", 10_000: "10k", 12_345: "12k", 999_499: "999k", 999_500: "1M", 1_500_000: "1.5M", 2_000_000_000: "2G"} {
		if got := short(n); got != want {
			t.Errorf("short(%d) is %s, want %s", n, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 1.234: "1.23", 99.999: "100", 1234.5: "1,235", 12: "12"} {
		if got := decimal(v); got != want {
			t.Errorf("decimal(%v) is %s, want %s", v, got, want)
		}
	}
}

// A share is 0 % or 100 % only if it is exactly that.
func TestShares(t *testing.T) {
	for fraction, want := range map[float64]string{
		0: "0 %", 1e-9: "<0.001 %", 0.00001: "0.001 %", 0.0000123: "0.0012 %", 0.001: "0.1 %", 0.000966: "0.097 %", 0.0065: "0.65 %",
		0.01: "1 %", 0.0143: "1.4 %", 0.0995: "10 %", 0.26: "26 %", 0.5: "50 %", 0.991: "99.1 %", 0.9985: "99.9 %", 0.9999: ">99.9 %", 1: "100 %",
	} {
		if got := strings.ReplaceAll(share(fraction), nbsp, " "); got != want {
			t.Errorf("share(%v) is %s, want %s", fraction, got, want)
		}
	}
}

func TestSpans(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0 s", 0.05: "50 ms", 0.0001: "0.1 ms", 1: "1 s", 1.5: "1.5 s", 60: "1 min", 90: "1 min 30 s", 600: "10 min", 3600: "1 h", 86340: "23 h 59 min", 86400: "1 d", 90000: "1 d 1 h", 86401: "1 d",
	} {
		if got := strings.ReplaceAll(span(seconds), nbsp, " "); got != want {
			t.Errorf("span(%v) is %s, want %s", seconds, got, want)
		}
	}
}

// Texts from logs can't change the page, and show what they have.
func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"alice":              "<bdi>alice</bdi>",
		`<b a="1">&'`:        "<bdi>&lt;b a=&#34;1&#34;&gt;&amp;&#39;</bdi>",
		"a\u202eb":           `<bdi>a<span class="code-point">U+202E</span>b</bdi>`,
		"\x00\xff\n":         `<bdi><span class="code-point">U+0000</span><span class="code-point">0xFF</span><span class="code-point">U+000A</span></bdi>`,
		"مرحبا":              "<bdi>مرحبا</bdi>",
		"\ufffd":             "<bdi>\ufffd</bdi>",
		"a\u00a0b\u2028\xe2": `<bdi>a<span class="code-point">U+00A0</span>b<span class="code-point">U+2028</span><span class="code-point">0xE2</span></bdi>`,
	} {
		if got := string(shown(text)); got != want {
			t.Errorf("%q is shown as %s, want %s", text, got, want)
		}
	}
}
