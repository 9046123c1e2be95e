#!/usr/bin/env bash
# Formatting, the size of files and lines, the English, go vet and staticcheck. The linters are
# pinned in tools/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."

tool() { GOWORK=off go tool -modfile=tools/go.mod -n "$1"; } # prints where the program is
gofumpt=$(tool gofumpt)
staticcheck=$(tool staticcheck)

unformatted=$("$gofumpt" -l .)
if [[ -n $unformatted ]]; then
	echo "gofumpt would change (run: make format):" "$unformatted" >&2
	exit 1
fi
# In the C locale every awk counts bytes.
git ls-files -co --exclude-standard '*.go' '*.lua' | LC_ALL=C xargs awk '
	FNR > 500 { large[FILENAME] = 1 }
	length > 140 && FILENAME !~ /_test\.go$/ { print FILENAME ":" FNR ": a line of more than 140 characters"; failed = 1 }
	END { for (file in large) { print file ": more than 500 lines: give its second subject a file"; failed = 1 }; exit failed }
' >&2
./scripts/prose.sh
# The tests of internal/faultsim run in virtual time.
GOWORK=off go run -C tools ./speed -most 28 $(git ls-files -co --exclude-standard '*_test.go' 'internal/*test/*.go' ':!internal/faultsim/*' | sed "s|^|$PWD/|")
modules=(. internal/faultsim internal/plugintest internal/browsertest)
if [[ $(go env GOOS) == linux ]]; then # which the benchmark is for
	modules+=(bench)
fi
for module in "${modules[@]}"; do (
	cd "$module"
	go vet ./...
	"$staticcheck" ./...
	go mod tidy -diff
); done
for directory in $(git ls-files -co --exclude-standard '*real_*_test.go' | xargs -n 1 dirname | sort -u); do (
	cd "$directory"
	go vet -tags real .
	"$staticcheck" -tags real .
); done
