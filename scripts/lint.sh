#!/usr/bin/env bash
# Formatting, go vet and staticcheck. The linters are pinned in tools/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(go tool -modfile=tools/go.mod gofumpt -l .)
if [[ -n $unformatted ]]; then
	echo "gofumpt would change (run: make format):" "$unformatted" >&2
	exit 1
fi
go vet ./...
go tool -modfile=tools/go.mod staticcheck ./...
go mod tidy -diff
if [[ $(go env GOOS) == linux ]]; then # which the benchmark is for; it is a module of its own
	cd bench
	go vet ./...
	go tool -modfile=../tools/go.mod staticcheck ./...
	go mod tidy -diff
fi
