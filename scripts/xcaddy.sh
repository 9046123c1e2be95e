#!/usr/bin/env bash
# Builds the newest Caddy (go.work) with the module of this checkout and its package simulate through xcaddy, into
# ./bin/caddy or the path given, and shows that both are in it. CADDY_VERSION is another version.
#
# xcaddy asks the module proxy for this module even though it is replaced by the
# checkout, so a proxy on disk answers that it exists.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-bin/caddy}
module=$(GOWORK=off go list -m)
version=${CADDY_VERSION:-$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)}
xcaddy=$(GOWORK=off go tool -modfile=tools/go.mod -n xcaddy)

proxy=$(mktemp -d)
trap 'rm -rf "$proxy"' EXIT
mkdir -p "$proxy/$module/@v" "$(dirname "$output")"
echo v0.0.1 >"$proxy/$module/@v/list"
echo '{"Version":"v0.0.1"}' >"$proxy/$module/@v/v0.0.1.info"
echo "module $module" >"$proxy/$module/@v/v0.0.1.mod"

GOPROXY="file://$proxy,$(go env GOPROXY)" GONOSUMDB="$module" \
	"$xcaddy" build "$version" --with "$module/simulate" --replace "$module=." --output "$output"
"$output" list-modules | grep -x 'http.handlers.rate_limit'
"$output" version | grep -F "$version " # nothing has raised it
"$output" rate-limit simulate --zone 'key {client_ip}' examples/simulate/access.log.gz | grep -x 'Zone new has no limit.*'
