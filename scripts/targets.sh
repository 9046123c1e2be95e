#!/usr/bin/env bash
# Shows that the module compiles for all systems and processors that Caddy is released for, and for 386.
#
#   scripts/targets.sh                 checks the types for all, and runs tests as a 32-bit program: a minute on two cores
#   scripts/targets.sh linux           compiles the module and its tests for all targets of a system, which takes minutes for each
#   scripts/targets.sh linux/arm/5     compiles them for this one
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

targets=( # system/processor, and a version of arm
	linux/386 linux/amd64 linux/arm/5 linux/arm/6 linux/arm/7 linux/arm64 linux/ppc64le linux/riscv64 linux/s390x
	darwin/amd64 darwin/arm64
	windows/amd64 windows/arm64
	freebsd/amd64 freebsd/arm/6 freebsd/arm/7 freebsd/arm64
)

if [[ $# -eq 0 ]]; then
	programs=$(mktemp -d)
	trap 'rm -r "$programs"' EXIT
	GOWORK=off go build -C tools -o "$programs" ./typecheck
	"$programs/typecheck" $(printf '%s\n' "${targets[@]}" | cut -d/ -f1,2 | uniq) # types are the same for all arm
	if [[ $(go env GOHOSTOS)/$(go env GOHOSTARCH) == linux/amd64 ]]; then # which also runs programs for 386, with most kernels
		export GOARCH=386
		through=()
		printf 'package main\nfunc main() {}\n' >"$programs/empty.go"
		go build -o "$programs/empty" "$programs/empty.go"
		if ! "$programs/empty" 2>/dev/null; then
			./scripts/install.sh qemu
			# On several processors, one of a thousand programs crashes when Go's threads start.
			processor=$(taskset -cp $$ | grep -oE '[0-9]+$') # the last one that this script may use
			through=(-exec "taskset -c $processor qemu-i386")
			export GODEBUG=asyncpreemptoff=1 # whose signals qemu delivers on a wrong stack
		fi
		go test -short "${through[@]}" ./algorithms ./store ./internal/wire/... ./redisstore/internal/slots
	fi
	exit
fi
found=
for target in "${targets[@]}"; do
	if [[ $target/ == "$1"/* ]]; then
		found=yes
		echo "$target"
		IFS=/ read -r GOOS GOARCH GOARM <<<"$target"
		export GOOS GOARCH GOARM
		go build ./...
		go vet ./...
	fi
done
if [[ -z $found ]]; then
	echo "there is no target $1: write a system, or one of ${targets[*]}" >&2
	exit 1
fi
