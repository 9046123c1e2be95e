package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/logtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/configuration"
)

// The text of a zone is a configuration that limits every request of a log, whatever its host and port.
func TestSimulationOfAZone(t *testing.T) {
	s, err := configuration.LoadZone("match path /api/* ; key {client_ip} ; ipv6_prefix 64 ; cost 3")
	errtest.None(t, err)
	zones := s.Zones()
	if len(zones) != 1 || zones[0].Name != simulate.ZoneName || len(zones[0].Sets) != 1 || len(zones[0].Sets[0].Limits) != 0 || !zones[0].Sets[0].Open {
		t.Fatalf("zones %+v", zones)
	}
	for _, r := range []accesslog.Request{
		{URI: "/api/a", Host: "example.com", ClientIP: "2001:db8::1"},
		{URI: "/api/a", Host: "[2001:db8::80]", ClientIP: "2001:db8::2"},
		{URI: "/api/a", Host: "example.com", ClientIP: "2001:db8::3", TLS: &accesslog.TLS{}},
		{URI: "/", Host: "example.com", ClientIP: "2001:db8::1"},
	} {
		r.Method, r.Proto, r.RemoteIP, r.RemotePort, r.Status = "GET", "HTTP/1.1", r.ClientIP, "1234", 200
		r.Start, r.End, r.Header, r.ResponseHeader = 1e15, 1e15+5, http.Header{}, http.Header{}
		v, err := s.Visit(&r)
		errtest.None(t, err)
		var keys []string
		for _, h := range v.Handlers {
			for _, z := range h.Requests {
				keys = append(keys, z.Key)
				if z.Cost != 3 {
					t.Errorf("%+v: cost %d", r, z.Cost)
				}
			}
		}
		want := "2001:db8::/64"
		if r.URI == "/" {
			want = ""
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%+v: key %q, want %q", r, got, want)
		}
	}
	if notes := s.Notes(); len(notes) > 0 {
		t.Errorf("notes %q", notes)
	}
}

// Errors name the flag and the user's own lines, and nothing of the site around the zone.
func TestSimulationOfAZoneErrors(t *testing.T) {
	for text, want := range map[string]string{
		"kee {client_ip}": `--zone: unknown option "kee" of a zone (did you mean key?): write for example key {client_ip}`,
		"key":             "--zone: key has no value: write for example key {client_ip}",
		`key "x`:          "--zone: unexpected EOF",
		"mode fast":       `--zone: mode must be binary, nary, uniform or force, not "fast"`,
		"match pth /x":    `--zone: match has no matcher "pth" (did you mean path?): write for example match path /api/*`,
		"key {client_ip}\nlimit 5": `--zone: unknown option "limit" of a zone (did you mean token_bucket?): ` +
			"write for example token_bucket 10 1s, at line 2",
		"fixed_window 1 1s ; token_bucket 5 1x": "--zone: token_bucket takes events, window and optionally a burst, " +
			`not "5 1x": write for example token_bucket 10 1s, at line 2`,
		"key {client_ip}\n}\n}\n:81 {\n": `--zone: the braces of "key {client_ip}\n}\n}\n:81 {" don't match: ` +
			"write options of a zone, such as key {client_ip}",
		"key {client_ip}; ipv6_prefix 64": `--zone: write a space before the semicolon of "{client_ip};", or quotes around it`,
		"match {":                         `--zone: the braces of "match {" don't match: write options of a zone, such as key {client_ip}`,
	} {
		if _, err := configuration.LoadZone(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A report from nothing has a zone to paste, with the user's options and one of the limits. No format shows the
// limit that stands for none.
func TestReportOfAZone(t *testing.T) {
	t.Parallel()
	dir := simulationDirectory(t)
	for format, wants := range map[string][]string{
		"text": {"No limit is configured.", "24h ", "one of which is enough: each is the smallest that denies at most 5% of the keys", "    zone new {\n        key {client_ip}\n        ipv6_prefix 64\n        "},
		"json": {`"limits": []`, `"zone_options": "key {client_ip} ; ipv6_prefix 64"`, `"propose": "5%"`, `"window": 86400`},
		"html": {"No limit is configured.", "one of which is enough", "<bdi>zone new {</bdi>\n<bdi>    key {client_ip}</bdi>\n<bdi>    ipv6_prefix 64</bdi>\n"},
	} {
		process := simulateIn(dir, "--zone", "key {client_ip} ; ipv6_prefix 64", "--propose", "5%", "--format", format, "access.log")
		result := caddytest.RunCommand(t, process)
		for _, want := range wants {
			if !strings.Contains(result.Out, want) {
				t.Errorf("%s lacks %q: %s\n%s", format, want, result.Out, result.Err)
			}
		}
		for _, none := range []string{"000000000", "1_000", "denied none", "1,000,000,000"} {
			if strings.Contains(result.Out, none) {
				t.Errorf("%s has %q: %s", format, none, result.Out)
			}
		}
	}
	process := simulateIn(dir, "--zone", "key {client_ip} ; ipv6_prefix 64", "access.log")
	_, zone, _ := strings.Cut(caddytest.RunCommand(t, process).Out, "to be written into rate_limit:\n")
	zone, _, _ = strings.Cut(zone, "\n  It would have denied ")
	pasted := strings.Replace(logtest.Site, "zone clients {", zone+"\nzone clients {", 1)
	if zones := loadSimulation(t, pasted).Zones(); len(zones) != 4 || zones[3].Name != "new" || len(zones[3].Sets[0].Limits) != 1 {
		t.Errorf("with %s there are the zones %+v", zone, zones)
	}
}

// A report says that keys shared budgets, because the store was full.
func TestReportOfAFullStore(t *testing.T) {
	t.Parallel()
	file := generatedLog(t, logtest.Options{Requests: 2000, Clients: 200})
	for global, want := range map[string]string{"memory {\n max_keys 10\n}": "the store had no room for more keys", "": ""} {
		caddyfile := "{\n rate_limit {\n" + global + "\n}\n}\n" + logtest.Site
		if global == "" {
			caddyfile = logtest.Site
		}
		notes := strings.Join(replayLog(t, file, 1, caddyfile).Configurations[0].Notes, "\n")
		if strings.Contains(notes, "no room") != (want != "") || !strings.Contains(notes, want) {
			t.Errorf("with %q the notes are %s", global, notes)
		}
	}
}

// A report says that the log, the configuration and the target don't belong together.
func TestReportNotes(t *testing.T) {
	t.Parallel()
	file := generatedLog(t, logtest.Options{Requests: 500, Clients: 5}) // too few for a share of one key
	keyless := strings.ReplaceAll(logtest.Site, "{client_ip}", "{header.X-Nobody-Sends-This}")
	for caddyfile, want := range map[string]string{
		logtest.Site: "of the keys is less than one key, so the proposed limits deny nobody",
		keyless:      "the requests or their log have no value for {header.X-Nobody-Sends-This}, or its name is misspelled",
		"other.example {\n rate_limit {\n zone a {\n gcra 1 1s\n}\n}\n}\n": "no request belongs to a zone",
	} {
		report := replayLog(t, file, 1, caddyfile)
		notes := strings.Join(report.Configurations[0].Notes, "\n")
		if !strings.Contains(notes, want) {
			t.Errorf("the notes are %s, want %s", notes, want)
		}
		if caddyfile == logtest.Site && (strings.Contains(notes, "misspelled") || strings.Contains(notes, "no request")) {
			t.Errorf("notes without a reason: %s", notes)
		}
	}
}
