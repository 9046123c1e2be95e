package redisstore_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// In a cluster a batch of many keys makes as many script calls. A script that a new primary lacks
// is loaded once.
func TestLoadsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Address: server.Addr})
	var requests [][]store.Request
	for n := range 50 {
		requests = append(requests, request(t, fmt.Sprint(n)))
	}
	for _, err := range redisstore.SendSeparately(s, requests) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := server.Calls(t, "evalsha"); n != 100 { // the first 50 prove that nothing ran
		t.Errorf("%d calls, want 100", n)
	}
	stats := server.Client.Info(context.Background(), "commandstats").Val()
	if loads := regexp.MustCompile(`cmdstat_script(?:.load)?:calls=(\d+)`).FindStringSubmatch(stats); loads == nil || loads[1] != "1" {
		t.Errorf("loads %q, want 1", loads)
	}
}
