// Command references is Caddy with the handlers that the rate limiter is compared with.
package main

import (
	"net/http"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/redis/go-redis/v9"
)

func main() {
	register("redis_rate", func() caddy.Module { return new(redisRate) })
	register("floor", func() caddy.Module { return new(floor) })
	caddycmd.Main()
}

// register makes a handler without options a module and a directive of this name.
func register(name string, create func() caddy.Module) {
	caddy.RegisterModule(create())
	httpcaddyfile.RegisterHandlerDirective(name, func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return create().(caddyhttp.MiddlewareHandler), nil
	})
	httpcaddyfile.RegisterDirectiveOrder(name, httpcaddyfile.Before, "basic_auth")
}

// addresses returns the address of the Redis under load, or those of the nodes of a cluster.
func addresses() []string { return strings.Split(os.Getenv("BENCH_REDIS"), ",") }

func open(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, ReadTimeout: timeout})
}

// key returns the key of a request, found as a configured key would be.
func key(r *http.Request) string {
	return r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).ReplaceAll("{http.request.header.X-Key}", "")
}
