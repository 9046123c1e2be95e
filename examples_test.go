package ratelimit

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// startExample starts a Caddy with an example's Caddyfile, whose site is :8080; the
// options are global ones.
func startExample(t *testing.T, name, options string) *caddyProcess {
	t.Helper()
	text, err := os.ReadFile("examples/" + name + "/Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(string(text), "\n:8080 {", "\n{\n\tadmin {$ADMIN}\n"+options+"}\n{$SITE} {", 1)
	return startCaddy(t, config)
}

// Each zone of the example with every algorithm and mode answers as its comments say.
func TestExampleWithEveryAlgorithm(t *testing.T) {
	eachStore(t, func(t *testing.T, use string) {
		if use != "" {
			use = "rate_limit {\n" + use + "}\n"
		}
		c := startExample(t, "every-algorithm", use)
		// ask sends requests one after the other and returns statuses, and what remains
		// after each.
		ask := func(t *testing.T, path string, requests int) (statuses, remaining string) {
			t.Helper()
			for range requests {
				r := c.get(t, path)
				_, rest, _ := strings.Cut(r.field("RateLimit"), ";r=")
				left, _, _ := strings.Cut(rest, ";")
				statuses += fmt.Sprint(r.StatusCode, " ")
				remaining += left + " "
			}
			return statuses, remaining
		}
		check := func(path, wantStatuses, wantRemaining string) {
			t.Helper()
			statuses, remaining := ask(t, path, strings.Count(wantStatuses, " "))
			if statuses != wantStatuses || remaining != wantRemaining {
				t.Errorf("%s: statuses %s with %s remaining, want %s with %s", path, statuses, remaining, wantStatuses, wantRemaining)
			}
		}
		for _, a := range algorithms.All() {
			check("/"+a.Name+"/binary", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
			if a.BinaryOnly {
				continue
			}
			check("/"+a.Name+"/nary", "200 200 200 429 ", "3 1 0 0 ")
			check("/"+a.Name+"/uniform", "200 200 200 200 200 429 429 ", "4 3 2 1 0 0 0 ")
			check("/"+a.Name+"/force", "200 200 200 200 ", "3 1 0 0 ")
		}
		check("/min_interval", "200 429 ", "0 0 ")
		check("/buckets", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
		check("/align", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
		check("/initial", "429 429 ", "0 0 ")
		check("/warm_up", "200 429 ", "0 0 ")
		check("/legacy", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
		check("/limits", "200 200 200 200 200 429 ", "4 3 2 1 0 0 ")
		check("/factor", "200 200 ", "9 8 ")

		passed, refused := timed(t, c, 20, "/delay")
		for i, at := range passed {
			if soonest := time.Duration(i) * time.Second; at < soonest {
				t.Errorf("request %d passed after %v", i+1, at)
			}
		}
		if len(passed) < 4 || refused == 0 {
			t.Errorf("/delay: %d passed and %d were refused", len(passed), refused)
		}
		passed, refused = timed(t, c, 20, "/stages")
		if len(passed) < 5 || refused == 0 || passed[3] < 500*time.Millisecond || passed[4] < time.Second {
			t.Errorf("/stages: requests passed after %v, and %d were refused", passed, refused)
		}
	})
}
