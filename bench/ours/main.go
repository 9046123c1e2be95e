// Command ours is Caddy with the rate limiter of this checkout, built with the same versions
// of everything else as the references are.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddy-rate-limit/caddy-rate-limit"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

func main() {
	caddycmd.Main()
}
