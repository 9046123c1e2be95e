package report

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

func TestPercent(t *testing.T) {
	for _, test := range []struct {
		part, whole int64
		want        string
	}{
		{0, 0, "0%"},
		{0, 7, "0%"},
		{7, 7, "100%"},
		{1, 1_000_000_000, "<0.001%"},
		{1, 100_000, "0.001%"},
		{123, 1_000_000, "0.012%"},
		{1, 3, "33%"},
		{1, 30, "3.3%"},
		{1, 10, "10%"},
		{995, 10_000, "10%"}, // not 9.9 or 9.95
		{98_900, 100_000, "99%"},
		{99_899, 100_000, "99.8%"},
		{99_999, 100_000, ">99.9%"},
		{9_999_999_999_999, 10_000_000_000_000, ">99.9%"},
	} {
		if got := PercentOf(test.part, test.whole); got != test.want {
			t.Errorf("%d of %d is %s, want %s", test.part, test.whole, got, test.want)
		}
	}
}

func TestShortSpans(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0s", 0.000057: "57µs", 0.0123456: "12.3ms", 0.2: "200ms", 1.23456: "1.23s", 12.3456: "12.3s", 123.456: "2m3s", 7200: "2h",
	} {
		if got := short(seconds); got != want {
			t.Errorf("%v seconds are %s, want %s", seconds, got, want)
		}
	}
	for seconds, want := range map[float64]string{1: "1s", 60: "1m", 90: "1m30s", 86400: "24h", 0.5: "500ms"} {
		if got := Window(seconds); got != want {
			t.Errorf("%v seconds are %s, want %s", seconds, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	red := terminal.Style{Colored: true}.Paint("12", terminal.Red)
	for _, test := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"日本語", 6, "日本語"},
		{"日本語", 5, "日本…"},
		{"日本語", 4, "日…"},
		{red + " ab", 5, red + " ab"},
		{red + " abc", 5, red + " a…\x1b[0m"},
	} {
		if got := cut(test.text, test.width); got != test.want {
			t.Errorf("%q in %d columns is %q, want %q", test.text, test.width, got, test.want)
		}
	}
}
