package e2e

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
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// drawExplained draws a configuration in which nothing changes by the passing of time.
func drawExplained(random *rand.Rand, prefix, options string) (c caddytest.ComboConfig) {
	c = caddytest.DrawCombo(random, prefix, options)
	algorithms := []string{"fixed_window", "gcra", "token_bucket", "leaky_bucket", "sliding_window", "sliding_log"}
	redraw := func(config string) string {
		var handler map[string]any
		if err := json.Unmarshal([]byte(config), &handler); err != nil {
			panic(err)
		}
		zones, _ := handler["rate_limits"].(map[string]any)
		for i := range c.Zones {
			settings, _ := zones[c.Zones[i].Name].(map[string]any)
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
	c.App, c.Outer, c.Inner = redraw(c.App), redraw(c.Outer), redraw(c.Inner)
	return c
}

var rateLimitItem = regexp.MustCompile(`"([^"]*)";r=(\d+)`)

// Random requests in random configurations get what the explanation before says: the verdict, the zone
// and the reason of a denial, and the wait. The explanation after has the remaining events of the
// response.
func TestExplainForesees(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) { testExplainForesees(t, "", seedtest.Cases[uint64](t, 12)) })
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		testExplainForesees(t, fmt.Sprintf(`,"redis":{"address":[%q],"timeout":"30s"}`, server.Addr), max(seedtest.Cases[uint64](t, 6), 4))
	})
}

func testExplainForesees(t *testing.T, options string, seeds uint64) {
	c := caddytest.Start(t, caddytest.Site("zone ready {\n gcra 1 1h\n}\n"))
	_, port, _ := net.SplitHostPort(c.Site)
	denied, valid := 0, uint64(0)
	for seed := uint64(0); valid < seeds && seed < 4*seeds; seed++ {
		random := rand.New(rand.NewPCG(seed, 23))
		config := drawExplained(random, fmt.Sprintf("x%d-", seed), options)
		handler := func(h string) string {
			return `{"handle":[` + strings.Replace(h, "{", `{"handler":"rate_limit",`, 1) + `]}`
		}
		routes := `[{"match":[{"path":["/ready"]}],"handle":[{"handler":"static_response"}],"terminal":true},` +
			handler(config.Outer) + `,` + handler(config.Inner) + `,{"handle":[{"handler":"static_response","status_code":200}]}]`
		failed := `{"handler":"static_response","status_code":"{http.error.status_code}","headers":{` +
			`"X-Denied":["{http.rate_limit.exceeded.name}"],"X-Reason":["{http.rate_limit.exceeded.reason}"]}}`
		r := c.Load(t, fmt.Sprintf(`{"admin":{"listen":%q},"apps":{"rate_limit":%s,"http":{"servers":{"a":{"listen":[":%s"],`+
			`"routes":%s,"errors":{"routes":[{"handle":[%s]}]}}}}}}`, c.Admin, config.App, port, routes, failed), "application/json")
		if r.StatusCode != 200 {
			continue
		}
		valid++
		for range 25 {
			if testExplained(t, c, &config, random, seed) {
				denied++
			}
			if t.Failed() {
				t.Fatalf("seed %d: %s", seed, config.App+"\n"+config.Outer+"\n"+config.Inner)
			}
		}
	}
	if valid < seeds || denied < int(seeds) {
		t.Errorf("%d configurations are valid, and %d requests were denied", valid, denied)
	}
}

// testExplained compares the explanation of a random request with what happens to the request.
func testExplained(t *testing.T, c *caddytest.Caddy, config *caddytest.ComboConfig, random *rand.Rand, seed uint64) (denied bool) {
	t.Helper()
	r := caddytest.DrawComboRequest(random, len(config.Zones))
	overrides := []string{`{"unlimited":true}`, `{"limits":[{"algorithm":"gcra","events":2,"window":"1000h"}]}`}
	for _, z := range config.Zones {
		if z.Settings["runtime_overrides"] != nil && random.IntN(6) == 0 {
			c.Operate(t, 204, "PUT", "zones/"+z.Name+"/keys/a/override", overrides[random.IntN(2)])
		}
	}
	q := adminapi.Request{
		Method: "POST", URL: "http://" + c.Site + "/", Body: `{"user":"` + r.User + `"}`, Headers: map[string]adminapi.Strings{
			"Content-Type": {"application/json"}, "User": {r.User}, "Cost": {strconv.FormatInt(r.Cost, 10)}, "Factor": {"1"},
		},
	}
	if r.NoFactor {
		q.Headers["Factor"] = adminapi.Strings{"0"}
	}
	for i := range r.In {
		if r.In[i] {
			q.Headers[fmt.Sprint("In-", i)] = adminapi.Strings{"1"}
		}
		if r.Free[i] {
			q.Headers[fmt.Sprint("Free-", i)] = adminapi.Strings{"1"}
		}
	}
	var header []string
	for name, values := range q.Headers {
		header = append(header, name, values[0])
	}
	before := c.Explain(t, q)
	got, err := c.Do(q.Method, q.URL, q.Body, header...)
	if err != nil {
		t.Fatal(err)
	}
	after := c.Explain(t, q)

	denied = got.StatusCode == 429
	if (before.Verdict == "denied") != denied || !denied && got.StatusCode != 200 {
		t.Errorf("seed %d: %s, and the response %d\n%+v", seed, before.Verdict, got.StatusCode, before)
		return denied
	}
	uniform := false
	for _, z := range config.Zones {
		uniform = uniform || z.Settings["mode"] == "uniform"
	}
	// A request in mode uniform also waits for its own charge. With Redis a remembered denial can have an
	// upper bound of the wait.
	if d := before.Decides; denied && !uniform && !config.InRedis() {
		wait, seconds := "", 0.0
		if d.RetryAfter != nil {
			wait, seconds = "1", math.Max(math.Ceil(*d.RetryAfter), 1)
		}
		given, _ := strconv.ParseFloat(got.Field("Retry-After"), 64)
		if d.Zone != got.Field("X-Denied") || d.Reason != got.Field("X-Reason") || (wait == "") != (given == 0) || seconds-given > caddytest.Patient.Seconds() || given > seconds {
			t.Errorf("seed %d: %s %s %v, and the response %v\n%+v", seed, d.Zone, d.Reason, seconds, got.Header, before)
		}
	}
	left := make(map[string]int64)
	for _, h := range after.Handlers {
		for _, z := range h.Zones {
			if !slices.ContainsFunc(config.Zones, func(drawn caddytest.ComboZone) bool { return drawn.Name == z.Zone }) {
				continue // its only limit is restored after a millisecond
			}
			label := z.Zone
			for i, l := range z.Limits {
				if i > 0 {
					label = fmt.Sprintf("%s/%d", z.Zone, i+1)
				}
				left[label] = l.Remaining
			}
		}
	}
	for _, item := range rateLimitItem.FindAllStringSubmatch(got.Field("RateLimit"), -1) {
		n, _ := strconv.ParseInt(item[2], 10, 64)
		if remaining, known := left[item[1]]; known && remaining != n {
			t.Errorf("seed %d: %s: %d remaining, and the response says %d\n%+v", seed, item[1], remaining, n, after)
		}
	}
	return denied
}
