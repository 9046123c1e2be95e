package options

import (
	"strings"
	"testing"
)

// Values that are nearly right become right, and others are left alone.
func TestMeant(t *testing.T) {
	for text, want := range map[string]string{
		"1min": "1m", "60": "60s", "5 minutes": "5m", "2Days": "2d", "500msec": "500ms", "1H": "1h", "1.5hours": "1.5h", "1w": "7d", "1month": "30d", "2mo": "60d", "1m;": "1m",
		"": "", "soon": "", "0": "", "-5": "", "1 fortnight": "", "1,5m": "",
	} {
		if got := meantDuration(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"10_000": "10000", "10,000": "10000", "1'000'000": "1000000", "21;": "21", "10k": "10000", "5K": "5000", "64KiB": "65536", "2MB": "2000000",
		"1,5": "", "10_00": "", "10m": "", "ten": "", "": "",
	} {
		if got := meantInteger(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"10/s": "10 1s", "10r/s 20": "10 1s 20", "rate=10r/s burst=20": "10 1s 21", "10 1s burst 20": "10 1s 20", "5/10s": "5 10s",
		"10 / 1m": "10 1m", "10 / m": "10 1m", "10 per second": "10 1s", "10 1 minute": "10 1m", "10 1s 21 nodelay": "10 1s 21",
		"events=10 window=1m": "10 1m", "1000req/day": "1000 1d", "10k 1m": "10000 1m", "10 60": "10 60s",
		"10": "", "ten often": "", "0/s": "", "/s": "", "10/": "", "": "",
	} {
		events, window, burst := MeantLimit(text)
		if got := strings.TrimSpace(events + " " + window + " " + burst); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
