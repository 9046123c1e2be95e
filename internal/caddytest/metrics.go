package caddytest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// Metrics returns the metrics of a Caddy as text.
func (c *Caddy) Metrics(t *testing.T) string {
	t.Helper()
	r, err := c.Do("GET", "http://"+c.Admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	return r.Text
}

// WaitForMetric waits until the metrics have a line.
func WaitForMetric(t *testing.T, c *Caddy, line string) {
	t.Helper()
	name, _, _ := strings.Cut(line, "{")
	name, _, _ = strings.Cut(name, " ")
	EventuallySees(t, "the metrics say "+line, func() (of string) {
		for line := range strings.Lines(c.Metrics(t)) {
			if strings.HasPrefix(line, name) {
				of += line
			}
		}
		return of
	}, func(of string) bool { return strings.Contains(of, line+"\n") })
}

// Metrics returns the metrics whose names begin so, by name and labels.
func Metrics(t *testing.T, c *Caddy, name string) map[string]float64 {
	t.Helper()
	r, err := c.Do("GET", "http://"+c.Admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]float64)
	for line := range strings.Lines(r.Text) {
		if labels, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(labels, name) {
			var n float64
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatal(err, line)
			}
			found[labels] = n
		}
	}
	return found
}

// WaitForWaiters waits until so many requests wait for slots.
func (c *Caddy) WaitForWaiters(t *testing.T, n int) {
	t.Helper()
	EventuallySees(t, fmt.Sprint(n, " requests wait for slots"), func() int {
		r, err := c.Do("GET", "http://"+c.Admin+"/debug/pprof/goroutine?debug=2", "")
		if err != nil { // the admin endpoint is being replaced
			return -1
		}
		return strings.Count(r.Text, "(*State).awaitTurn(")
	}, func(waiting int) bool { return waiting == n })
}

// ResetAfter asks the admin endpoint when the first limit of a key is full again, in seconds.
func (c *Caddy) ResetAfter(t *testing.T, zone, key string) float64 {
	t.Helper()
	return c.firstLimit(t, zone, key).ResetAfter
}

// limitView has the fields that the admin endpoint shows of a limit.
type limitView struct {
	Remaining  int64
	ResetAfter float64 `json:"reset_after_seconds"`
}

// firstLimit asks the admin endpoint about the first limit of a key.
func (c *Caddy) firstLimit(t *testing.T, zone, key string) limitView {
	t.Helper()
	r, err := c.Do("GET", "http://"+c.Admin+"/rate_limit/zones/"+zone+"/keys?key="+url.QueryEscape(key), "")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Budgets []struct{ Limits []limitView }
	}
	if err := json.Unmarshal([]byte(r.Text), &answer); err != nil || len(answer.Budgets) == 0 {
		t.Fatalf("%s: %v", r.Text, err)
	}
	return answer.Budgets[0].Limits[0]
}

// WaitForMetricAbove waits until a metric is above 0.
func WaitForMetricAbove(t *testing.T, c *Caddy, name string) {
	t.Helper()
	look := func() float64 { return Metrics(t, c, name)[name] }
	EventuallySees(t, name+" is above 0", look, func(value float64) bool { return value > 0 })
}
