#!/usr/bin/env bash
# Prints what this module adds to a Caddy built by xcaddy: modules and megabytes.
#
# Both programs are built with the newest Caddy (go.work) and with xcaddy's flags, so the
# module is all that differs.
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(GOWORK=off go list -m)

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
grep -v "\"$module\"" cmd/caddy/main.go >"$directory/plain.go"
build() { # name package
	go build -tags nobadger,nomysql,nopgx -ldflags '-s -w' -o "$directory/$1" "$2"
	go version -m "$directory/$1" | awk '$1 == "dep" { print $2, $3 }' | sort >"$directory/$1.modules"
}
build plain "$directory/plain.go"
build limiter ./cmd/caddy

size() { wc -c <"$directory/$1"; }
echo "modules added to Caddy, besides $module:"
comm -13 "$directory/plain.modules" "$directory/limiter.modules" | grep -v "^$module " | sed 's/^/  /'
awk -v plain="$(size plain)" -v limiter="$(size limiter)" 'BEGIN {
	printf "megabytes: %.1f, and %.1f without the module: %.1f more\n", limiter / 1e6, plain / 1e6, (limiter - plain) / 1e6
}'
