package caddytest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// Operate asks the admin API for a path after /rate_limit/, and ends the test unless it
// answers with this status.
func (c *Caddy) Operate(t *testing.T, status int, method, path, body string) Response {
	t.Helper()
	r, err := c.Do(method, "http://"+c.Admin+"/rate_limit/"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != status {
		t.Fatalf("%s %s %s: %d %s, want %d", method, path, body, r.StatusCode, r.Text, status)
	}
	if status == 204 && r.Text != "" || status != 204 && r.Field("Content-Type") != "application/json" {
		t.Errorf("%s %s: %s %q", method, path, r.Field("Content-Type"), r.Text)
	}
	return r
}

// Explain describes a request to the admin API, and returns the explanation.
func (c *Caddy) Explain(t testing.TB, q adminapi.ExplainedRequest) (x adminapi.Explanation) {
	t.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Do("POST", "http://"+c.Admin+"/rate_limit/explain", string(body))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(r.Text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&x); err != nil || r.StatusCode != 200 {
		t.Fatalf("explain %s: %d %s (%v)", body, r.StatusCode, r.Text, err)
	}
	return x
}

// ExplainPath explains a GET of a path of the site. header is pairs of name and value.
func (c *Caddy) ExplainPath(t testing.TB, path string, header ...string) adminapi.Explanation {
	t.Helper()
	q := adminapi.ExplainedRequest{URL: "http://" + c.Site + path, Headers: make(map[string]adminapi.Strings)}
	for i := 0; i < len(header); i += 2 {
		q.Headers[header[i]] = append(q.Headers[header[i]], header[i+1])
	}
	return c.Explain(t, q)
}

// Until asks until a response has a status, for what has been denied just now can be for
// another second.
func (c *Caddy) Until(t *testing.T, status int, header ...string) Response {
	t.Helper()
	return c.UntilAt(t, "/", status, header...)
}

// UntilAt is until for a path.
func (c *Caddy) UntilAt(t *testing.T, path string, status int, header ...string) (r Response) {
	t.Helper()
	ask := func() Response { return c.Get(t, path, header...) }
	return EventuallySees(t, fmt.Sprint(path, " gets ", status), ask, func(r Response) bool { return r.StatusCode == status })
}

// Status returns the answer of GET /rate_limit/status.
func (c *Caddy) Status(t *testing.T) (v adminapi.Status) {
	t.Helper()
	r, err := c.Do("GET", "http://"+c.Admin+"/rate_limit/status", "")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(r.Text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); r.StatusCode != 200 || err != nil {
		t.Fatalf("%d %v: %s", r.StatusCode, err, r.Text)
	}
	if strings.Contains(r.Text, "SECRET") {
		t.Errorf("a secret is shown: %s", r.Text)
	}
	return v
}
