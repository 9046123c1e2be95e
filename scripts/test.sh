#!/usr/bin/env bash
# Runs the tests, shows their progress, and names the slowest of them at the end. First it
# installs what they need and the machine lacks: redis-server, Prometheus, Chromium, and a C compiler
# for the race detector.
#
#   scripts/test.sh              all tests, under the race detector: 4 minutes on two cores
#   scripts/test.sh -short       no faults of Redis, soaks or floods, no race detector: a minute
#   scripts/test.sh -run Parity  these tests, under the race detector; any arguments of go test
#
# GOTESTSUM_FORMAT=testname shows every test.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v go >/dev/null || {
	echo "Go is not installed: see https://go.dev/doc/install" >&2
	exit 1
}

./scripts/install.sh redis gcc curl prometheus
./scripts/install.sh chromium # alone, because it is missing on some systems

gotestsum=$(GOWORK=off go tool -modfile=tools/go.mod -n gotestsum)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
format=dots
if [[ -t 1 ]]; then format=dots-v2; fi
runs=0
failed=0

# run runs go test in a directory with the arguments that follow. Most tests wait for servers and
# for time to pass, so more of them run at once than there are cores.
run() {
	local directory=$1
	shift
	runs=$((runs + 1))
	(cd "$directory" && "$gotestsum" --format "${GOTESTSUM_FORMAT:-$format}" --hide-summary skipped \
		--jsonfile "$results/$runs" -- -parallel 6 -timeout 30m "$@") || failed=1
}

# In these tests one goroutine compares the Go functions with the scripts, or with what they
# promise, or counts allocations. The race detector has nothing to find there. It makes them several
# times slower, and allocates.
alone='^Test((Parity|Poison)(CatchesMutants)?|Vectors|.*Allocates?(Nothing)?)$'

case "$*" in
"")
	run . -race -skip "$alone" $(go list ./... | grep -v /algorithms)
	run . ./algorithms
	run . -run "$alone" . ./redisstore ./store
	run redisstore/linear -race ./... # a module of its own
	run internal/plugintest ./...     # another one, with the newest Caddy
	run internal/browsertest ./...    # another one, with a browser
	if [[ $(go env GOOS) == linux ]]; then run bench -race ./...; fi # and another one
	;;
-short) run . -short ./... ;;
*) run . -race "$@" ./... ;;
esac

cat "$results"/* >"$results/all"
printf '\nThe slowest tests:\n'
"$gotestsum" tool slowest --jsonfile "$results/all" --threshold 1s --num 15
exit $failed
