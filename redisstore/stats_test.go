package redisstore_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// stats returns how often each command has run, and for how many µs in all, since
// the server started or its statistics were reset.
func stats(client *redis.Client) (calls, usec map[string]int) {
	calls, usec = make(map[string]int), make(map[string]int)
	info := client.Info(context.Background(), "commandstats").Val()
	for line := range strings.Lines(info) {
		name, numbers, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		var n, us int
		if _, err := fmt.Sscanf(numbers, "calls=%d,usec=%d", &n, &us); err == nil {
			calls[name], usec[name] = n, us
		}
	}
	return calls, usec
}
