// Command browsertest is Caddy with the rate limiter. It is a separate module, so that the
// browser's driver, which the tests use, doesn't get into a Caddy built with this module.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddy-rate-limit/caddy-rate-limit/simulate" // and the rate limiter
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

func main() {
	caddycmd.Main()
}
