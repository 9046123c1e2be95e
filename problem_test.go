package ratelimit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// wantProblem checks the body of a denial.
func (r response) wantProblem(t *testing.T, status int, kind string, policies ...any) {
	t.Helper()
	r.want(t, status, "Content-Type", "application/problem+json")
	if got := r.field("Content-Length"); got != strconv.Itoa(len(r.body)) {
		t.Errorf("Content-Length %q for %d bytes", got, len(r.body))
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(r.body), &got); err != nil {
		t.Fatalf("%v in %q", err, r.body)
	}
	if id, ok := got["denial"].(string); ok != (kind != "temporary-reduced-capacity") || ok && !regexp.MustCompile(`^[0-9a-z]{10}$`).MatchString(id) {
		t.Errorf("the ID of the denial is %v", got["denial"])
	}
	delete(got, "denial")
	want := map[string]any{"type": "https://iana.org/assignments/http-problem-types#" + kind, "title": got["title"], "status": float64(status)}
	if policies != nil {
		want["violated-policies"] = policies
	}
	if !reflect.DeepEqual(got, want) || got["title"] == "" {
		t.Errorf("body %v, want %v", got, want)
	}
	if strings.ContainsAny(r.body, "<>&") {
		t.Errorf("a browser could read the body as HTML: %s", r.body)
	}
}

func TestProblemJSON(t *testing.T) {
	t.Parallel()
	config := site(`
zone "<b> & 'x'" {
	key {header.Key}
	fixed_window 1 1h
	fixed_window 1 1d
	fixed_window 9 1d
	status 403
	match path /named
}
zone other {
	fixed_window 1 1h
	match path /named /other
}
zone watching {
	shadow
	fixed_window 1 1h
	match path /named /other
}
headers draft sharkey
problem_json
`)
	c := startCaddy(t, config)
	c.get(t, "/named", "Key", "a").want(t, 200, "Content-Type", "text/plain; charset=utf-8")
	r := c.get(t, "/named?<script>", "Key", "<script>")
	r.wantProblem(t, 429, "quota-exceeded", "other")
	r.want(t, 429, "Retry-After", "3600", "X-RateLimit-Remaining", "0")
	c.get(t, "/named", "Key", "a").wantProblem(t, 403, "quota-exceeded", "<b> & 'x'", "<b> & 'x'/2", "other")

	full := c.get(t, "/other")
	head, err := c.do("HEAD", "http://"+c.site+"/other", "")
	if err != nil || head.body != "" {
		t.Fatal(err, head.body)
	}
	head.want(t, 429, "Content-Type", "application/problem+json", "Content-Length", full.field("Content-Length"), "Retry-After", "3600")

	// Redis that fails is no fault of the client's.
	c.reload(t, strings.Replace(config, "problem_json\n", "problem_json\nredis localhost:1\non_store_error deny\n", 1))
	c.get(t, "/other").wantProblem(t, 503, "temporary-reduced-capacity")

	// Inherited, and switched off.
	c.reload(t, strings.Replace(config, "problem_json\n", "problem_json off\n", 1))
	c.get(t, "/other").want(t, 200)
	if r := c.get(t, "/other"); r.StatusCode != 429 || r.body != "" || r.field("Content-Type") != "" {
		t.Errorf("with problem_json off: %d %q %q", r.StatusCode, r.body, r.field("Content-Type"))
	}
	c.reload(t, strings.Replace(strings.Replace(config, "problem_json\n", "", 1), "admin {$ADMIN}", "admin {$ADMIN}\n\trate_limit {\n\tproblem_json\n\t}", 1))
	c.get(t, "/other").wantProblem(t, 429, "quota-exceeded", "other")

	// Error routes go first, and it is said that they do.
	c.reload(t, config+"handle_errors {\n respond \"rendered {err.status_code}\"\n}\n")
	for range 2 {
		if r := c.get(t, "/other"); r.StatusCode != 429 || r.body != "rendered 429" || strings.Contains(r.field("Content-Type"), "problem") {
			t.Errorf("with error routes: %d %q %q", r.StatusCode, r.body, r.field("Content-Type"))
		}
	}
	c.waitForLog(t, "problem_json has no effect here")
	r = c.load(t, fmt.Sprintf(`{"admin":{"listen":"{$ADMIN}"},"apps":{"http":{"servers":{"s":{"listen":["%s"],"routes":[{"handle":[
		{"handler":"rate_limit","problem_json":true,"rate_limits":{"json":{"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}}},
		{"handler":"static_response","body":"ok"}]}]}}}}}`, c.site), "application/json")
	r.want(t, 200)
	c.get(t, "/").want(t, 200)
	c.get(t, "/").wantProblem(t, 429, "quota-exceeded", "json")
	c.waitForLog(t, `"msg":"rate limit exceeded","zone":"json"`)
	if n := strings.Count(c.logged(), "problem_json has no effect here"); n != 1 {
		t.Errorf("said %d times that problem_json has no effect", n)
	}
}
