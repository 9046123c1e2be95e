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

// A Redis is down as long as it fails, and the status says since when, and why.
func TestStatusOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := caddytest.Start(t, caddytest.Site(fmt.Sprintf("zone api {\n gcra 100 1h\n}\nredis %s {\n timeout 30s\n}\n", server.Addr)))
	c.Get(t, "/").Want(t, 200)
	began := time.Time{}
	wait := func(state string, since time.Time) adminapi.Redis {
		t.Helper()
		v := caddytest.EventuallySees(t, "Redis is "+state, func() adminapi.Redis {
			c.Get(t, "/")
			return c.Status(t).Redis[0]
		}, func(v adminapi.Redis) bool { return v.State == state && (state == "up" || v.Error != "") }) // the reason follows the state
		if v.Since.Before(since.Truncate(time.Millisecond)) || v.Since.After(time.Now()) {
			t.Errorf("%s since %v, want after %v", state, v.Since, since)
		}
		if again := c.Status(t).Redis[0]; !again.Since.Equal(v.Since) {
			t.Errorf("%s since %v and since %v", state, v.Since, again.Since)
		}
		return v
	}
	if v := wait("up", began); v.Connections < 1 || v.Queued != 0 || v.FailingNodes != 0 || v.Error != "" {
		t.Errorf("up: %+v", v)
	}
	began = time.Now()
	server.Kill(t)
	if v := wait("down", began); v.FailingNodes != 1 || v.Error == "" {
		t.Errorf("down: %+v", v)
	}
	began = time.Now()
	server.Restart(t)
	if v := wait("up", began); v.FailingNodes != 0 || v.Error != "" {
		t.Errorf("up again: %+v", v)
	}
}
