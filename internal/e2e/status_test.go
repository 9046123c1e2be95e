package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The status has the stores that the configuration uses, and no others.
func TestStatus(t *testing.T) {
	t.Parallel()
	config := "zone api {\n key {query.key}\n gcra 1 1h\n}\n"
	c := caddytest.Start(t, strings.Replace(caddytest.Site(config), "admin {$ADMIN}", "admin {$ADMIN}\n\trate_limit {\n\tmemory {\n\tmax_keys 2\n\t}\n\t}", 1))
	for key := range 5 {
		c.Get(t, fmt.Sprint("/?key=", key))
	}
	v := c.Status(t)
	if v.Memory == nil || *v.Memory != (adminapi.Memory{Keys: 2, MaxKeys: 2, Overflowed: 3}) || v.Redis != nil {
		t.Errorf("in memory: %+v %+v", v.Memory, v.Redis)
	}
	if v.Version != "(devel)" && !strings.HasPrefix(v.Version, "v") {
		t.Errorf("version %q", v.Version)
	}
	if now := time.Now(); v.Started.Before(now.Add(-24*time.Hour)) || v.Started.After(now) {
		t.Errorf("started %v, and it is %v", v.Started, now)
	}
	server := redistest.Start(t)
	c.Reload(t, caddytest.Site(config+"redis redis://:SECRET@"+server.Addr+" {\n timeout 30s\n}\non_store_error deny"))
	if v := c.Status(t); v.Memory != nil || len(v.Redis) != 1 || v.Redis[0].Address != server.Addr {
		t.Errorf("in Redis: %+v %+v", v.Memory, v.Redis)
	}
	if later := c.Status(t); !later.Started.Equal(v.Started) {
		t.Errorf("a reload moves the start from %v to %v", v.Started, later.Started)
	}
	r, err := c.Do("POST", "http://"+c.Admin+"/rate_limit/status", "")
	if err != nil || r.StatusCode != 405 || r.Field("Allow") != "GET" {
		t.Errorf("POST: %v %d, Allow: %s", err, r.StatusCode, r.Field("Allow"))
	}
}
