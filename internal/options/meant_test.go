package options

import (
	"strings"
	"testing"
)

// Durations and numbers that are nearly right become right, and others are left alone.
func TestMeantValues(t *testing.T) {
	for text, want := range map[string]string{
		"1min": "1m", "60": "60s", "1h30min": "1h30m", "5 minutes": "5m", "2Days": "2d", "500msec": "500ms", "1H": "1h", "1.5hours": "1.5h",
		"1h30": "1h30m", "1m30": "1m30s", "2hours30": "2h30m",
		"1w": "7d", "1m;": "1m", "2 months": "60d",
		"": "", "soon": "", "0": "", "-5": "", "1 fortnight": "", "1,5m": "",
	} {
		if got, ok := meantDuration(text); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v, want %q", text, got, ok, want)
		}
	}
	for text, want := range map[string]string{
		"10/s": "10 1s", "10r/s 20": "10 1s 20", "rate=10r/s burst=20": "10 1s 20", "10 1s burst 20": "10 1s 20",
		"10 1s burst=20": "10 1s 20",
		"10 / 1m":        "10 1m", "10 / m": "10 1m", "10 per second": "10 1s", "10 1 minute": "10 1m", "1m 10": "10 1m", "1s 10 21": "10 1s 21", "10 1s 21 nodelay": "10 1s 21", "events=10 window=1m": "10 1m",
		"10 1s": "10 1s", "10 1s 20": "10 1s 20", "10": "10", "ten often": "ten often", "": "",
	} {
		if got := strings.Join(meantValues(strings.Fields(text)), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]int64{
		"10_000": 10000, "10,000": 10000, "1'000'000": 1000000, "21;": 21, "10 000": 10000, "10k": 10000,
		"5K": 5000, "1,5": 0, "10_00": 0, "10m": 0, "ten": 0, "99999999999999999999k": 0, "": 0,
	} {
		if got, ok := meantInteger(text); ok != (want != 0) || ok && got != want {
			t.Errorf("%q: %d %v, want %d", text, got, ok, want)
		}
	}
	for text, want := range map[string]string{
		"10/s": "10 1s", "10r/s": "10 1s", "60r/m": "60 1m", "100/hour": "100 1h", "5/10s": "5 10s",
		"1000req/day": "1000 1d", "10": "", "/s": "", "10/": "", "a/b": "",
	} {
		if events, window, ok := ReadRate(text); ok != (want != "") || ok && events+" "+window != want {
			t.Errorf("%q: %s %s %v, want %q", text, events, window, ok, want)
		}
	}
}
