#!/usr/bin/env bash
# Formatting, go vet and staticcheck. The linters are pinned in tools/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(go tool -modfile=tools/go.mod gofumpt -l .)
if [[ -n $unformatted ]]; then
	echo "gofumpt would change (run: make format):" "$unformatted" >&2
	exit 1
fi
modules=(. redisstore/linear)
if [[ $(go env GOOS) == linux ]]; then # which the benchmark is for
	modules+=(bench)
fi
tools=$PWD/tools/go.mod
for module in "${modules[@]}"; do (
	cd "$module"
	go vet ./...
	go tool -modfile="$tools" staticcheck ./...
	go mod tidy -diff
); done
