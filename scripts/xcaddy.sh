#!/usr/bin/env bash
# Builds Caddy with the module of this checkout through xcaddy, into ./bin/caddy
# or the path given, and shows that the module is in it.
#
# xcaddy asks the module proxy for this module even though it is replaced by the
# checkout, so a proxy on disk answers that it exists.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-bin/caddy}
module=$(go list -m)

proxy=$(mktemp -d)
trap 'rm -rf "$proxy"' EXIT
mkdir -p "$proxy/$module/@v" "$(dirname "$output")"
echo v0.0.1 >"$proxy/$module/@v/list"
echo '{"Version":"v0.0.1"}' >"$proxy/$module/@v/v0.0.1.info"
echo "module $module" >"$proxy/$module/@v/v0.0.1.mod"

GOPROXY="file://$proxy,$(go env GOPROXY)" GONOSUMDB="$module" \
	go tool xcaddy build "$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)" \
	--with "$module=." --output "$output"
"$output" list-modules | grep -x 'http.handlers.rate_limit'
