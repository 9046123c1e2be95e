package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/configuration"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// accessLines returns the lines of the access log that a Caddy has printed, once there are n of them.
func accessLines(t testing.TB, c *caddytest.Caddy, n int) (lines []string) {
	t.Helper()
	caddytest.EventuallySees(t, fmt.Sprintf("the access log has %d lines", n), func() int {
		lines = lines[:0]
		for line := range strings.Lines(c.Logged()) {
			if strings.Contains(line, `"logger":"http.log.access`) && strings.HasSuffix(line, "}\n") && !strings.Contains(line, `"uri":"/ready"`) {
				lines = append(lines, line)
			}
		}
		return len(lines)
	}, func(has int) bool { return has >= n })
	return lines
}

// explainedMeeting returns the zones of an explained request, in the words of visitedMeeting.
func explainedMeeting(x adminapi.Explanation) (met string) {
	for _, h := range x.Handlers {
		handler := ""
		for _, z := range h.Zones {
			if z.Applies == "yes" || z.Applies == "ban_only" {
				handler += fmt.Sprintf("%s %s cost %d %s shadow %v ban only %v override %v\n",
					z.Zone, *z.Key.Key, z.Cost, z.Mode, z.Shadow, z.Applies == "ban_only", z.Override != nil)
			}
		}
		if handler != "" {
			met += handler + "\n"
		}
	}
	return met
}

func (s loadedSimulation) visitedMeeting(v *simulate.Visit) (met string) {
	for _, h := range v.Handlers {
		for i, r := range h.Requests {
			z := s.Zones()[h.Zones[i].Zone]
			met += fmt.Sprintf("%s %s cost %d %v shadow %v ban only %v override %v\n",
				z.Name, r.Key, r.Cost, r.Mode, r.Shadow, h.Zones[i].BanOnly, strings.HasPrefix(z.Sets[h.Zones[i].Set].Name, "override"))
		}
		met += "\n"
	}
	return met
}

// Random requests in random configurations meet the same handlers, zones, keys and costs in a simulation
// over the access log as they met in Caddy.
func TestSimulationMeetsWhatRequestsMet(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone ready {\n gcra 1 1h\n}\n"))
	_, port, _ := net.SplitHostPort(c.Site)
	requests, met := 0, 0
	lineOf := func(path string) (found string) {
		caddytest.Eventually(t, path+" is in the access log", func() bool {
			log := c.Logged()
			at := strings.LastIndex(log, fmt.Sprintf(`"uri":%q`, path))
			if at < 0 {
				return false
			}
			line, _, complete := strings.Cut(log[strings.LastIndexByte(log[:at], '\n')+1:], "\n")
			found = line + "\n"
			return complete
		})
		return found
	}
	for seed, valid := uint64(0), 0; valid < 30; seed++ {
		random := rand.New(rand.NewPCG(seed, 29))
		drawn := caddytest.DrawCombo(random, fmt.Sprintf("s%d-", seed), "")
		handler := func(h string) string {
			return `{"handle":[` + strings.Replace(h, "{", `{"handler":"rate_limit",`, 1) + `]}`
		}
		routes := `[{"match":[{"path":["/ready"]}],"handle":[{"handler":"static_response"}],"terminal":true},` + handler(drawn.Outer) +
			`,{"handle":[{"handler":"subroute","routes":[` + handler(drawn.Inner) + `]},{"handler":"static_response","status_code":200}]}]`
		config := fmt.Sprintf(`{"admin":{"listen":%q},"apps":{"rate_limit":%s,"http":{"servers":{"a":{"listen":[":%s"],"logs":{},"routes":%s}}}}}`,
			c.Admin, drawn.App, port, routes)
		r := c.Load(t, config, "application/json")
		loaded, err := configuration.Load([]byte(config))
		if (r.StatusCode == 200) != (err == nil) {
			t.Fatalf("seed %d: Caddy says %d %s, the simulation %v", seed, r.StatusCode, r.Text, err)
		}
		if err != nil {
			continue
		}
		valid++
		s := loadedSimulation{loaded}
		var want, paths []string
		for range 10 {
			q := drawLogged(random, len(drawn.Zones))
			path := fmt.Sprint("/", requests+len(want)) // by which its line is found: the log may have another order
			paths, q.URL = append(paths, path), "http://"+c.Site+path
			var header []string
			for name, values := range q.Headers {
				header = append(header, name, values[0])
			}
			want = append(want, explainedMeeting(c.Explain(t, q)))
			errtest.None(t, errtest.Of(c.Do("GET", q.URL, "", header...)))
		}
		var parser accesslog.Parser
		for i, path := range paths {
			line := lineOf(path)
			var logged accesslog.Request
			errtest.None(t, parser.Parse([]byte(line), &logged), line)
			before := s.LeftOut()
			got, want := s.visitedMeeting(s.visit(t, &logged)), want[i]
			for _, zone := range s.LeftOut() { // its key or its cost needs a body
				if !slices.ContainsFunc(before, func(b report.LeftOut) bool { return b.Zone == zone.Zone && b.Requests == zone.Requests }) {
					want = regexp.MustCompile("(?m)^"+regexp.QuoteMeta(zone.Zone)+" .*\n?").ReplaceAllString(want, "")
				}
			}
			want = strings.Join(slices.DeleteFunc(strings.SplitAfter(want, "\n\n"), func(handler string) bool { return strings.TrimSpace(handler) == "" }), "")
			if got != strings.TrimLeft(want, "\n") {
				t.Fatalf("seed %d: the request %s met\n%s\nand not\n%s\nin %s", seed, line, want, got, config)
			}
			met += strings.Count(want, "cost")
		}
		requests += len(want)
	}
	if met < requests/2 {
		t.Errorf("%d requests met only %d zones", requests, met)
	}
}

// drawLogged draws a request without a body, because a log has no bodies.
func drawLogged(random *rand.Rand, zones int) adminapi.ExplainedRequest {
	r := caddytest.DrawComboRequest(random, zones)
	q := adminapi.ExplainedRequest{Headers: map[string]adminapi.Strings{
		"User": {r.User}, "Cost": {strconv.FormatInt(r.Cost, 10)}, "Factor": {[]string{"0", "0.5", "1", "2"}[random.IntN(4)]},
	}}
	for i := range r.In {
		if r.In[i] {
			q.Headers[fmt.Sprint("In-", i)] = adminapi.Strings{"1"}
		}
		if r.Free[i] {
			q.Headers[fmt.Sprint("Free-", i)] = adminapi.Strings{"1"}
		}
	}
	return q
}

// The errors of a configuration that can't be simulated name the place.
func TestSimulationErrors(t *testing.T) {
	const limited = `{"handler":"rate_limit","rate_limits":{"a":{"limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}}}`
	inServer := func(routes string) string {
		return `{"apps":{"http":{"servers":{"srv0":{"listen":[":80"],"routes":` + routes + `}}}}}`
	}
	for _, test := range []struct{ config, want string }{
		{`x`, "is not JSON"},
		{`{"apps":{}}`, "no http app"},
		{inServer(`[]`), "limits no requests"},
		{inServer(`[{"handle":[{"handler":"static_response"}]}]`), "limits no requests"},
		{inServer(`[{"match":[{"nothing":{}}],"handle":[` + limited + `]}]`), "server srv0: route 0: loading matcher modules"},
		{inServer(`[{"match":[{"nothing":{}}],"handle":[` + limited + `]}]`), "http.matchers.nothing"},
		{
			inServer(`[{"handle":[{"handler":"subroute","routes":[{"handle":[{"handler":"vars"},` + strings.Replace(limited, "gcra", "gcrb", 1) + `]}]}]}]`),
			"server srv0: route 0: handler 0: route 0: handler 1: rate_limit",
		},
		{inServer(`[{"handle":[` + strings.Replace(limited, `"limits"`, `"key":"{http.request.nothing}","limits"`, 1) + `]}]`), "{http.request.nothing} is always empty, because nothing provides it"},
		{inServer(`[{"handle":[{"handler":"rewrite","nothing":1},` + limited + `]}]`), "rewrite"},
		{`{"apps":{"rate_limit":{"rate_limits":{"a":{}}},"http":{}}}`, "zone"},
		{`{"apps":{"http":{"servers":{"srv0":null}}}}`, "server srv0 is null"},
		{`{"apps":{"http":{"servers":{"srv0":{"named_routes":{"a":null}}}}}}`, "server srv0: named route a is null"},
	} {
		if !json.Valid([]byte(test.config)) && test.config != "x" {
			t.Fatal(test.config)
		}
		_, err := configuration.Load([]byte(test.config))
		errtest.Says(t, err, test.want, test.config)
		var syntax *json.SyntaxError
		if test.config == "x" && !errors.As(err, &syntax) {
			t.Error(err)
		}
	}
}
