package ratelimit

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// drawExplained draws a configuration in which nothing changes by the passing of time.
func drawExplained(random *rand.Rand, prefix, options string) (c comboConfig) {
	c = drawCombo(random, prefix, options)
	algorithms := []string{"fixed_window", "gcra", "token_bucket", "leaky_bucket", "sliding_window", "sliding_log"}
	redraw := func(config string) string {
		var handler map[string]any
		if err := json.Unmarshal([]byte(config), &handler); err != nil {
			panic(err)
		}
		zones, _ := handler["rate_limits"].(map[string]any)
		for i := range c.zones {
			settings, _ := zones[c.zones[i].name].(map[string]any)
			if settings == nil {
				continue
			}
			delete(settings, "settle")
			if settings["limits"] == nil {
				continue
			}
			var limits []any
			for n := range 1 + random.IntN(2) {
				a := algorithms[random.IntN(len(algorithms))]
				if settings["delay"] != nil || settings["factor"] != nil {
					a = algorithms[1+random.IntN(2)]
				}
				limits = append(limits, map[string]any{"algorithm": a, "events": 3 + random.IntN(9), "window": fmt.Sprint(1000+n, "h")})
			}
			settings["limits"] = limits
		}
		b, err := json.Marshal(handler)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	c.app, c.outer, c.inner = redraw(c.app), redraw(c.outer), redraw(c.inner)
	return c
}

func (c *comboConfig) inRedis() bool { return strings.Contains(c.app, `"redis"`) }

var rateLimitItem = regexp.MustCompile(`"([^"]*)";r=(\d+)`)

// Random requests in random configurations get what the explanation before says: the verdict, the zone
// and the reason of a denial, and the wait. The explanation after has the remaining events of the
// response.
func TestExplainForesees(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) { testExplainForesees(t, "", 20) })
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		testExplainForesees(t, fmt.Sprintf(`,"redis":{"address":[%q],"timeout":"30s"}`, server.Addr), 6)
	})
}

func testExplainForesees(t *testing.T, options string, seeds uint64) {
	c := startCaddy(t, site("zone ready {\n gcra 1 1h\n}\n"))
	_, port, _ := net.SplitHostPort(c.site)
	denied, valid := 0, uint64(0)
	for seed := uint64(0); valid < seeds && seed < 4*seeds; seed++ {
		random := rand.New(rand.NewPCG(seed, 23))
		config := drawExplained(random, fmt.Sprintf("x%d-", seed), options)
		handler := func(h string) string {
			return `{"handle":[` + strings.Replace(h, "{", `{"handler":"rate_limit",`, 1) + `]}`
		}
		routes := `[{"match":[{"path":["/ready"]}],"handle":[{"handler":"static_response"}],"terminal":true},` +
			handler(config.outer) + `,` + handler(config.inner) + `,{"handle":[{"handler":"static_response","status_code":200}]}]`
		failed := `{"handler":"static_response","status_code":"{http.error.status_code}","headers":{` +
			`"X-Denied":["{http.rate_limit.exceeded.name}"],"X-Reason":["{http.rate_limit.exceeded.reason}"]}}`
		r := c.load(t, fmt.Sprintf(`{"admin":{"listen":%q},"apps":{"rate_limit":%s,"http":{"servers":{"a":{"listen":[":%s"],`+
			`"routes":%s,"errors":{"routes":[{"handle":[%s]}]}}}}}}`, c.admin, config.app, port, routes, failed), "application/json")
		if r.StatusCode != 200 {
			continue
		}
		valid++
		for range 25 {
			if testExplained(t, c, &config, random, seed) {
				denied++
			}
			if t.Failed() {
				t.Fatalf("seed %d: %s", seed, config.app+"\n"+config.outer+"\n"+config.inner)
			}
		}
	}
	if valid < seeds || denied < int(seeds) {
		t.Errorf("%d configurations are valid, and %d requests were denied", valid, denied)
	}
}

// testExplained compares the explanation of a random request with what happens to the request.
func testExplained(t *testing.T, c *caddyProcess, config *comboConfig, random *rand.Rand, seed uint64) (denied bool) {
	t.Helper()
	r := drawComboRequest(random, len(config.zones))
	overrides := []string{`{"unlimited":true}`, `{"limits":[{"algorithm":"gcra","events":2,"window":"1000h"}]}`}
	for _, z := range config.zones {
		if z.settings["runtime_overrides"] != nil && random.IntN(6) == 0 {
			c.operate(t, 204, "PUT", "zones/"+z.name+"/keys/a/override", overrides[random.IntN(2)])
		}
	}
	q := adminapi.Request{
		Method: "POST", URL: "http://" + c.site + "/", Body: `{"user":"` + r.user + `"}`, Headers: map[string]adminapi.Strings{
			"Content-Type": {"application/json"}, "User": {r.user}, "Cost": {strconv.FormatInt(r.cost, 10)}, "Factor": {"1"},
		},
	}
	if r.noFactor {
		q.Headers["Factor"] = adminapi.Strings{"0"}
	}
	for i := range r.in {
		if r.in[i] {
			q.Headers[fmt.Sprint("In-", i)] = adminapi.Strings{"1"}
		}
		if r.free[i] {
			q.Headers[fmt.Sprint("Free-", i)] = adminapi.Strings{"1"}
		}
	}
	var header []string
	for name, values := range q.Headers {
		header = append(header, name, values[0])
	}
	before := c.explain(t, q)
	got, err := c.do(q.Method, q.URL, q.Body, header...)
	if err != nil {
		t.Fatal(err)
	}
	after := c.explain(t, q)

	denied = got.StatusCode == 429
	if (before.Verdict == "denied") != denied || !denied && got.StatusCode != 200 {
		t.Errorf("seed %d: %s, and the response %d\n%+v", seed, before.Verdict, got.StatusCode, before)
		return denied
	}
	uniform := false
	for _, z := range config.zones {
		uniform = uniform || z.settings["mode"] == "uniform"
	}
	// A request in mode uniform also waits for its own charge. With Redis a remembered denial can have an
	// upper bound of the wait.
	if d := before.Decides; denied && !uniform && !config.inRedis() {
		wait, seconds := "", 0.0
		if d.RetryAfter != nil {
			wait, seconds = "1", math.Max(math.Ceil(*d.RetryAfter), 1)
		}
		given, _ := strconv.ParseFloat(got.field("Retry-After"), 64)
		if d.Zone != got.field("X-Denied") || d.Reason != got.field("X-Reason") || (wait == "") != (given == 0) || seconds-given > 1 || given > seconds {
			t.Errorf("seed %d: %s %s %v, and the response %v\n%+v", seed, d.Zone, d.Reason, seconds, got.Header, before)
		}
	}
	left := make(map[string]int64)
	for _, h := range after.Handlers {
		for _, z := range h.Zones {
			if !slices.ContainsFunc(config.zones, func(drawn comboZone) bool { return drawn.name == z.Zone }) {
				continue // its only limit is restored after a millisecond
			}
			for i, l := range z.Limits {
				left[limitLabels(z.Zone, i+1)[i]] = l.Remaining
			}
		}
	}
	for _, item := range rateLimitItem.FindAllStringSubmatch(got.field("RateLimit"), -1) {
		n, _ := strconv.ParseInt(item[2], 10, 64)
		if remaining, known := left[item[1]]; known && remaining != n {
			t.Errorf("seed %d: %s: %d remaining, and the response says %d\n%+v", seed, item[1], remaining, n, after)
		}
	}
	return denied
}
