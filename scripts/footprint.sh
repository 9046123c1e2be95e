#!/usr/bin/env bash
# Prints what this module adds to a Caddy built by xcaddy, and what its package simulate adds: modules and megabytes.
#
# All programs are built with the newest Caddy (go.work) and with xcaddy's flags, so the
# module is all that differs.
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(GOWORK=off go list -m)

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
grep -v "\"$module/" cmd/caddy/main.go >"$directory/plain.go"
sed "s|$module/simulate|$module|" cmd/caddy/main.go >"$directory/limiter.go"
build() { # name package
	go build -tags nobadger,nomysql,nopgx -ldflags '-s -w' -o "$directory/$1" "$2"
	go version -m "$directory/$1" | awk '$1 == "dep" { print $2, $3 }' | sort >"$directory/$1.modules"
}
build plain "$directory/plain.go"
build limiter "$directory/limiter.go"
build simulate ./cmd/caddy

# tell BEFORE AFTER WHAT prints what makes the difference between two programs.
tell() {
	echo "$3 adds these modules:"
	comm -13 "$directory/$1.modules" "$directory/$2.modules" | grep -v "^$module " | sed 's/^/  /'
	awk -v before="$(wc -c <"$directory/$1")" -v after="$(wc -c <"$directory/$2")" -v what="$3" 'BEGIN {
		printf "megabytes: %.1f with %s, and %.1f without: %.1f more\n", after / 1e6, what, before / 1e6, (after - before) / 1e6
	}'
}
tell plain limiter "$module"
tell limiter simulate "$module/simulate"
