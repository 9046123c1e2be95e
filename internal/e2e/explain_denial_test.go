package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// sameExplanation returns an explanation as text, without parts that may differ between the explanation
// of a denial and that of the same request.
func sameExplanation(t *testing.T, x adminapi.Explanation) string {
	t.Helper()
	x.Request, x.Denied = adminapi.Request{}, nil
	for i := range x.Handlers {
		x.Handlers[i].Server = ""
	}
	text, err := json.MarshalIndent(x, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	notListed := regexp.MustCompile(` +"plan": "(other)?",\n`) // a denial knows only values that the plan lists
	return regexp.MustCompile(`_seconds": [0-9.e+]+`).ReplaceAllString(notListed.ReplaceAllString(string(text), ""), `_seconds": …`)
}

// A denial ID explains the same as a description of the denied request, also after changes of the
// budgets, and after a reload.
func TestExplainDenial(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := caddytest.Site(`zone api {
			key {header.Key} "by path {path}"
			match path /api/*
			plan {header.Plan} {
				free {
					token_bucket 4 1h
					token_bucket 9 1d
				}
				default {
					token_bucket 8 1h
				}
			}
			factor {header.Factor}
			cost {header.Cost}
			runtime_overrides
			ban 1h after 3 scope handler
		}
		zone tried {
			key {header.Key}
			gcra 1 1h
			shadow
		}
		zone users {
			key {client_ip}
			ipv6_prefix 64
			token_bucket 100 1h
			concurrency 10
			override 127.0.0.0/8 {
				token_bucket 50 1h
			}
		}
		problem_json
		` + use)
		c := caddytest.Start(t, config)
		// denied sends a request until it is denied, and returns a function that compares the explanations.
		denied := func(path string, header ...string) (id string, compare func(verdict string)) {
			t.Helper()
			for range 60 {
				if r := c.Get(t, path, header...); r.StatusCode == 429 {
					id = r.DenialID(t)
					break
				}
			}
			return id, func(verdict string) {
				t.Helper()
				x := c.Explain(t, adminapi.Request{Denial: id})
				if got, want := sameExplanation(t, x), sameExplanation(t, c.ExplainPath(t, path, header...)); got != want {
					t.Errorf("the ID explains %s\nthe request %s", got, want)
				}
				if x.Verdict != verdict {
					t.Errorf("the verdict is %s, want %s", x.Verdict, verdict)
				}
				// A minute tells this denial from an older one.
				if d := x.Denied; d == nil || d.ID != id || d.Method != "GET" || d.Host != c.Site || d.Path != path || d.ClientIP != "127.0.0.1" || time.Since(d.At) > caddytest.Patient {
					t.Errorf("the denial is %+v", d)
				}
			}
		}
		id, compare := denied("/api/a", "Key", "alice", "Plan", "free")
		compare("denied")
		x := c.Explain(t, adminapi.Request{Denial: strings.ToUpper(id)})
		if d := x.Denied; d.Zone != "api" || d.Reason != "limit" || d.Limit != "token_bucket 4 1h" || d.RetryAfter == nil || *d.RetryAfter < 800 || d.Shadow {
			t.Errorf("the denial is %+v", d)
		}
		if z := ofZone(t, x, "api"); *z.Key.Key != "alice" || z.Alternative != "{http.request.header.Key}" || *z.Plan != "free" || len(z.Limits) != 2 || z.Limits[0].Remaining != 0 || z.Limits[1].Remaining != 5 {
			t.Errorf("zone api: %+v", z)
		}
		if z := ofZone(t, x, "users"); z.Override == nil || z.Limits[0].Remaining != 46 {
			t.Errorf("zone users: %+v", z)
		}
		before := x
		c.Explain(t, adminapi.Request{Denial: id})
		if after := c.Explain(t, adminapi.Request{Denial: id}); sameExplanation(t, before) != sameExplanation(t, after) {
			t.Error("an explanation charges")
		}

		_, compareCostly := denied("/api/b", "Key", "bob", "Plan", "other", "Cost", "3", "Factor", "2")
		compareCostly("denied")
		_, comparePath := denied("/api/c")
		comparePath("denied")

		c.Operate(t, 204, "DELETE", keyPath("alice"), "")
		compare("allowed")
		c.Operate(t, 204, "PUT", keyPath("alice")+"/override", `{"limits":[{"algorithm":"gcra","events":5,"window":"1h"}]}`)
		compare("allowed")
		c.Operate(t, 204, "PUT", keyPath("alice")+"/override", `{"unlimited":true}`)
		compare("allowed")
		c.Operate(t, 204, "PUT", keyPath("alice")+"/ban", ``)
		compare("denied")
		c.Operate(t, 204, "PUT", keyPath("carol")+"/ban", ``)
		_, compareBan := denied("/other", "Key", "carol") // which zone api doesn't match
		compareBan("denied")

		c.Reload(t, strings.Replace(config, "token_bucket 4 1h", "token_bucket 6 1h", 1))
		c.Operate(t, 204, "DELETE", keyPath("alice")+"/override", "")
		c.Operate(t, 204, "DELETE", keyPath("alice")+"/ban", "")
		compare("allowed")
		if z := ofZone(t, c.Explain(t, adminapi.Request{Denial: id}), "api"); z.Limits[0].Limit != "token_bucket 6 1h" || z.Limits[0].Remaining != 6 {
			t.Errorf("after a reload: %+v", z)
		}
		c.Reload(t, caddytest.Site("zone users {\n gcra 1 1h\n}\n"+use))
		x = c.Explain(t, adminapi.Request{Denial: id})
		if x.Verdict != "unknown" || len(x.Handlers) != 0 || x.Denied == nil || !strings.Contains(fmt.Sprint(x.Notes), "no zone api") {
			t.Errorf("without the zone: %+v", x)
		}
	})
}

// A denial in shadow mode, which only the log names, can be explained, too.
func TestExplainShadowDenial(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone tried {\n key {header.Key}\n gcra 1 1h\n shadow\n}"))
	for range 2 {
		c.Get(t, "/", "Key", "a").Want(t, 200)
	}
	c.WaitForLog(t, "rate limit would be exceeded")
	id := regexp.MustCompile(`"id":"(\w{10})"`).FindStringSubmatch(c.Logged())
	if id == nil {
		t.Fatal("no ID in the log")
	}
	x := c.Explain(t, adminapi.Request{Denial: id[1]})
	if !x.Denied.Shadow || x.Denied.Zone != "tried" || x.Verdict != "allowed" || ofZone(t, x, "tried").Verdict != "denied" {
		t.Errorf("%+v %+v", x, x.Denied)
	}
}

// With hash_keys, and for very long keys, the denial is explained, and the present state isn't.
func TestExplainDenialOfHiddenKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	zones := "zone api {\n key {header.Key}\n gcra 1 1h\n}\nproblem_json\n"
	c := caddytest.Start(t, caddytest.Site(zones+fmt.Sprintf("redis %s {\n timeout 30s\n hash_keys pepper\n}", server.Addr)))
	explained := func(key string) adminapi.Explanation {
		t.Helper()
		c.Get(t, "/"+key[:5], "Key", key)
		x := c.Explain(t, adminapi.Request{Denial: c.Get(t, "/"+key[:5], "Key", key).DenialID(t)})
		if x.Verdict != "unknown" || x.Decides != nil || x.Denied.Limit != "gcra 1 1h" || len(x.Notes) != 1 {
			t.Errorf("%+v", x)
		}
		return x
	}
	x := explained("sesame")
	text, _ := json.Marshal(x)
	if z := ofZone(t, x, "api"); z.Key.HashedKey != redisstore.HashedKey("pepper", "sesame") || strings.Contains(string(text), "sesam") || strings.Contains(string(text), "127.0.0.1") {
		t.Errorf("%s", text)
	}
	c.Reload(t, caddytest.Site(zones))
	x = explained(strings.Repeat("x", 2000))
	if z := ofZone(t, x, "api"); !z.Key.Cut || len(*z.Key.Key) != 1024 {
		t.Errorf("%+v", z)
	}
}

// An ID that this instance doesn't know, and one beside other fields, are errors that say why.
func TestExplainUnknownDenial(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n gcra 1 1h\n}\nproblem_json"))
	c.Get(t, "/")
	id := c.Get(t, "/").DenialID(t)
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{"denial":"0000000000"}`:                             {404, "another instance denied the request, the denial is older than ten minutes"},
		`{"denial":"` + id + `","url":"http://example.com/"}`: {400, `stands for the whole request`},
	} {
		r := c.Operate(t, want.status, "POST", "explain", body)
		if !strings.Contains(r.Text, want.text) {
			t.Errorf("%s: %s", body, r.Text)
		}
	}
	other := caddytest.Start(t, caddytest.Site("zone api {\n gcra 1 1h\n}"))
	other.Operate(t, 404, "POST", "explain", `{"denial":"`+id+`"}`)
}
