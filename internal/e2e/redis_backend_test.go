package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The log says what becomes of requests while Redis fails, and afterwards how long that was
// and what became of how many.
func TestOutageIsLogged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	handler := "rate_limit /%s {\n zone %[1]s {\n  gcra 100 1h\n }\n redis %s {\n  timeout 30s\n }\n on_store_error %[1]s\n}\n"
	// The messages of this module are in a separate log, so the default log leaves them out.
	config := "{\n\tadmin {$ADMIN}\n\tlog ours {\n\t\toutput stdout\n\t\tinclude http.handlers.rate_limit\n\t}\n}\n{$SITE}\n"
	for _, mode := range []string{"local", "allow", "deny"} {
		config += fmt.Sprintf(handler, mode, server.Addr)
	}
	c := caddytest.Start(t, config+"respond ok\n")
	server.Kill(t)
	caddytest.Flood(t, 20, 4, "/local", c)
	c.WaitForLog(t, `"Redis is failing, and Caddy won't ask it until it recovers: meanwhile on_store_error decides`)
	for path, n := range map[string]int{"/local": 3, "/allow": 4, "/deny": 5} {
		caddytest.Flood(t, n, 1, path, c)
	}
	c.Reload(t, strings.Replace(fmt.Sprintf("{\n\tadmin {$ADMIN}\n}\n{$SITE}\n"+handler, "deny", server.Addr), "zone", "# another\n zone", 1)+"respond ok\n")
	c.WaitForLog(t, `"Redis did not pass the check at the start: until it does, on_store_error decides`)
	server.Restart(t)
	c.WaitForLog(t, "Redis works again")
	line := regexp.MustCompile(`\{"level.*"msg":"Redis works again".*`).FindString(c.Logged())
	var said struct {
		Level, Address string
		Outage         float64
		Local          int `json:"requests_decided_locally"`
		Allowed        int `json:"requests_passed_unlimited"`
		Denied         int `json:"requests_answered_503"`
	}
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	if said.Level != "warn" || said.Address != server.Addr || said.Outage <= 0 || said.Local < 3 || said.Local > 20+3 || said.Allowed != 4 || said.Denied != 5 {
		t.Errorf("%+v", said)
	}
}
