// Command caddy is Caddy with the rate limiter built in.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddy-rate-limit/caddy-rate-limit/simulate" // and the rate limiter
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

func main() {
	caddycmd.Main()
}
