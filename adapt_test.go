package ratelimit

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-rate-limit/caddy-rate-limit/examples/webhook"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

const goldenRule = "\n----------\n"

// Each file of testdata/adapt is a Caddyfile, a rule, and what becomes of it: the
// JSON, or the error, which may be one of provisioning. -update writes them.
func TestAdapt(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	t.Setenv("TEST_SECRET", "secret")
	t.Setenv("TEST_CERTIFICATES", filepath.Dir(redistest.NewCertificates(t).CA)) // ca.pem, cert.pem and key.pem
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			input, want, _ := strings.Cut(caddytest.ReadFile(t, file), goldenRule)
			got, err := caddytest.Adapt(t, []byte(input))
			if err != nil {
				got = err.Error()
			} else if err := caddytest.Validate(got); err != nil {
				got = "valid JSON, but: " + err.Error()
			}
			if *caddytest.Update {
				caddytest.WriteFile(t, file, input+goldenRule+got+"\n", 0o644)
				return
			}
			if got != strings.TrimSpace(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// Every option there is stands in a golden file that adapts.
func TestAdaptEveryOption(t *testing.T) {
	files, _ := filepath.Glob("testdata/adapt/[^e]*.caddyfiletest")
	more, _ := filepath.Glob("testdata/adapt/e[^r]*.caddyfiletest")
	var inputs string
	for _, file := range append(files, more...) {
		input, _, _ := strings.Cut(caddytest.ReadFile(t, file), goldenRule)
		inputs += input + "\n"
	}
	all := slices.Concat(zoneOptions(), globalOptions, memoryOptions, redisOptions, tlsOptions, settleOptions)
	for _, a := range algorithms.All() {
		all = append(all, a.OptionNames()...)
	}
	for _, option := range all {
		if !regexp.MustCompile(`(?m)^\s*` + option + `\b`).MatchString(inputs) {
			t.Errorf("no golden file that adapts has the option %s", option)
		}
	}
}

// FuzzCaddyfile: whatever the directive holds, reading it ends in an error or in
// JSON that reads back the same.
func FuzzCaddyfile(f *testing.F) {
	files, _ := filepath.Glob("testdata/adapt/*.caddyfiletest")
	for _, file := range files {
		input, _, _ := strings.Cut(caddytest.ReadFile(f, file), goldenRule)
		if _, directive, found := strings.Cut(input, "rate_limit"); found {
			f.Add("rate_limit" + directive)
		}
	}
	for _, number := range strings.Fields("+5 05 -0 5. .5 1e1 1e+1 5e-1 1e999 0x10 0x1p4 0b11 0o7 1_000 Infinity NaN ٥ ５") {
		for _, option := range []string{
			"jitter %s", "zone z {\ncalendar 5 month {\nstart_day %s\n}\n}", "zone z {\ngcra %s 1s\n}", "zone z {\ngcra 5 1s %s\n}",
			"zone z {\nsmooth 5 1s {\nwarm_up 9s\ncold_factor %s\n}\n}", "zone z {\ngcra 9 1s\ncost %s\n}", "zone z {\ngcra 9 1s\nfactor %s\n}",
			"zone z {\ngcra 9 1s\nenforce %s\n}", "zone z {\ngcra 9 1s\nsettle {\ncost %s\n}\n}",
		} {
			f.Add("rate_limit {\n" + strings.ReplaceAll(option, "%s", number) + "\n}")
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := caddyfile.Tokenize([]byte(text), "Caddyfile")
		if err != nil || len(tokens) == 0 {
			return
		}
		var h Handler
		if err := h.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)); err != nil {
			if !strings.Contains(err.Error(), "Caddyfile:") {
				t.Fatalf("the error names no file and line: %v", err)
			}
			return
		}
		first, err := json.Marshal(&h)
		errtest.None(t, err)
		var again Handler
		if err := caddy.StrictUnmarshalJSON(first, &again); err != nil {
			t.Fatalf("%v in %s", err, first)
		}
		if second, _ := json.Marshal(&again); !bytes.Equal(first, second) {
			t.Fatalf("%s became %s", first, second)
		}
		for name, z := range h.RateLimits { // what was read is right without the network
			if err := z.checkLimits(); err != nil || z.checkValues() != nil {
				t.Fatalf("zone %q was accepted: %v %v", name, err, z.checkValues())
			}
		}
	})
}
