#!/usr/bin/env bash
# Runs all tests under the race detector, and first installs what they need and
# the machine lacks: redis-server, and a C compiler for the race detector.
# Arguments are passed on to go test, for example: scripts/test.sh -run Parity
set -euo pipefail
cd "$(dirname "$0")/.."

command -v go >/dev/null || {
	echo "Go is not installed: see https://go.dev/doc/install" >&2
	exit 1
}

missing=()
command -v redis-server >/dev/null || missing+=(redis)
command -v "$(go env CC)" >/dev/null || missing+=(gcc)

if ((${#missing[@]})); then
	echo "installing: ${missing[*]}"
	if command -v apt-get >/dev/null; then
		sudo=()
		if ((EUID != 0)); then sudo=(sudo); fi
		"${sudo[@]}" apt-get update -qq
		for package in "${missing[@]}"; do
			case $package in
			redis) "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server ;;
			gcc) "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq gcc libc6-dev ;;
			esac
		done
	elif command -v brew >/dev/null; then
		brew install "${missing[@]}"
	else
		echo "please install ${missing[*]} with this machine's package manager (redis 6.2 or later, or valkey with a redis-server command) and run this again" >&2
		exit 1
	fi
fi

if (($# == 0)); then # modules of their own
	(cd redisstore/linear && go test -race ./...)
	if [[ $(go env GOOS) == linux ]]; then
		(cd bench && go test -race ./...)
	fi
fi
exec go test -race -timeout 30m "$@" ./...
