package ratelimit

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// workedExample is a table of docs/algorithms.md that plays requests against a limit. Before it
// stands a line such as
//
//	Example: `token_bucket 1 1s 5` with `initial 0`:
//
// where the first code is the limit, and each later code is an option of the limit, or delay or
// mode. The columns are at, cost, result, and any other. A column may also have the name of a mode.
type workedExample struct {
	limits, options, zoneOptions []string
	columns                      []string
	rows                         [][]string
}

// workedExamples returns the worked examples of a page.
func workedExamples(t *testing.T, file string) (examples []workedExample) {
	t.Helper()
	cells := func(line string) (cells []string) {
		for _, cell := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		return cells
	}
	tables := regexp.MustCompile("(?m)^Example: (.*(?:\n.+)*):\n\n(\\|.*)\n\\|[-:| ]*\n((?:\\|.*\n)*)")
	for _, s := range tables.FindAllStringSubmatch(caddytest.ReadFile(t, file), -1) {
		var e workedExample
		for _, code := range caddytest.CodeIn(s[1]) {
			switch name, _, _ := strings.Cut(code, " "); {
			case name == "delay" || name == "mode" || name == "factor":
				e.zoneOptions = append(e.zoneOptions, code)
			case slices.Contains(limitOptions, name):
				e.limits = append(e.limits, code)
			default:
				e.options = append(e.options, code)
			}
		}
		e.columns = cells(s[2])
		for _, row := range strings.Split(strings.TrimSpace(s[3]), "\n") {
			e.rows = append(e.rows, cells(row))
		}
		examples = append(examples, e)
	}
	return examples
}

// play plays the rows in a mode, and returns each result as in the table.
func (e *workedExample) play(t *testing.T, mode algorithms.Mode) (results []string) {
	t.Helper()
	zone := strings.Join(e.limits, "\n")
	if len(e.options) > 0 {
		zone += " {\n" + strings.Join(e.options, "\n") + "\n}"
	}
	zone += "\n" + strings.Join(e.zoneOptions, "\n")
	var h Handler
	errtest.None(t, h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\nzone x {\n"+zone+"\n}\n}")), zone)
	c := h.RateLimits["x"]
	limits, err := compileLimits(c.Limits)
	errtest.None(t, err)
	if c.Mode != "" {
		mode, err = algorithms.ParseMode(c.Mode)
		errtest.None(t, err)
	}
	request := algorithms.ZoneRequest{Mode: mode}
	for _, l := range limits {
		if c.Factor != "" {
			l = l.Scaled(c.fixedFactor())
		}
		request.Checks = append(request.Checks, algorithms.Check{Limit: l, State: new(algorithms.State)})
	}
	if c.Delay != nil {
		request.MaxWait = c.Delay.maxWait()
	}
	const start = 1_800_000_000 * 1_000_000 // where a window of an hour begins
	for _, row := range e.rows {
		at, err := time.ParseDuration(strings.ReplaceAll(row[0], " ", ""))
		errtest.None(t, err)
		request.Cost, err = strconv.ParseInt(row[1], 10, 64)
		errtest.None(t, err)
		requests := []algorithms.ZoneRequest{request}
		passes := algorithms.Take(requests, start+at.Microseconds())
		results = append(results, describeDecisions(passes, requests[0].Checks))
	}
	return results
}

// describeDecisions returns all facts that a table may say about a request. Of several limits the
// first tells charged and remaining.
func describeDecisions(passes bool, checks []algorithms.Check) string {
	var wait, retry algorithms.Micros
	for _, c := range checks {
		wait, retry = max(wait, c.Decision.Wait), max(retry, c.Decision.RetryAfter)
	}
	text := "passes"
	switch {
	case !passes && retry == algorithms.Forever:
		text = "denied, no retry after"
	case !passes:
		text = "denied, retry after " + spaced(retry)
	case wait > 0:
		text = "passes after " + spaced(wait)
	}
	d := checks[0].Decision
	return fmt.Sprintf("%s, charged %d, remaining %d", text, d.Charged, d.Remaining)
}

// spaced returns a span as people write it, such as 1.5 s.
func spaced(span algorithms.Micros) string {
	d := time.Duration(span) * time.Microsecond
	text := strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
	if d < time.Second {
		text = d.String()
	}
	unit := strings.TrimLeft(text, "0123456789.")
	return strings.TrimSuffix(text, unit) + " " + unit
}

// The limits decide as in the worked examples of docs/algorithms.md.
func TestWorkedExamples(t *testing.T) {
	const file = "docs/algorithms.md"
	examples := workedExamples(t, file)
	seen := make(map[string]bool)
	for _, e := range examples {
		seen[strings.Fields(e.limits[0])[0]] = true
		for n, column := range e.columns {
			mode, err := algorithms.ParseMode(strings.Trim(column, "`"))
			isMode := err == nil && column != ""
			if column != "result" && !isMode {
				continue
			}
			got := e.play(t, mode)
			for i, row := range e.rows {
				if len(row) != len(e.columns) {
					t.Fatalf("%s: the row %q has not %d cells", file, row, len(e.columns))
				}
				facts := strings.Split(row[n], ", ")
				if n+1 < len(row) && e.columns[n+1] == "remaining" {
					facts = append(facts, "remaining "+row[n+1])
				}
				for _, fact := range facts {
					if !strings.Contains(", "+got[i]+", ", ", "+fact+", ") {
						t.Errorf("%s: %q %q at %s, cost %s, %s: %q, want %q",
							file, e.limits, slices.Concat(e.options, e.zoneOptions), row[0], row[1], column, fact, got[i])
					}
				}
			}
		}
	}
	for _, a := range algorithms.All() {
		if !seen[a.Name] {
			t.Errorf("%s has no worked example of %s", file, a.Name)
		}
	}
}
