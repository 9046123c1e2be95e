#!/usr/bin/env bash
# Runs the tests, shows their progress, and names the slowest of them at the end. First it
# installs what they need and the machine lacks: redis-server, Prometheus, Chromium, and a C compiler
# for the race detector.
#
#   scripts/test.sh              all tests: 4 minutes on two cores
#   scripts/test.sh -short       without tests that take long, and without the race detector: a minute
#   scripts/test.sh -run Parity  these tests, under the race detector; any arguments of go test
#   scripts/test.sh -prepare     only installs, and compiles what the tests need
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

# Paths of this checkout would make the results of compilations useless to another one. Information for
# debuggers makes linking slow. scripts/lint.sh runs go vet.
build=(-trimpath -ldflags '-s -w')
flags=("${build[@]}" -vet off)
export GOGC=400 # most processes live for seconds, and their garbage can stay

if [[ $* == -prepare ]]; then
	go build "${build[@]}" -race ./...
	go build "${build[@]}" ./...
	exit
fi

gotestsum=$(GOWORK=off go tool -modfile=tools/go.mod -n gotestsum)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
format=pkgname-and-test-fails

# run NAME DIRECTORY ARGUMENTS… runs go test in a directory. Most tests wait for servers and for time to pass,
# so more of them run at once than there are cores.
run() {
	local name=$1 directory=$2
	shift 2
	(cd "$directory" && "$gotestsum" --format "${GOTESTSUM_FORMAT:-$format}" --hide-summary skipped \
		--jsonfile "$results/$name" -- "${flags[@]}" -parallel 4 -timeout 30m "$@") || touch "$results/failed"
}

# The packages in whose tests goroutines meet run under the race detector, which makes them several times
# slower. In a few of their tests only one goroutine computes, for long, or counts allocations, which the
# race detector adds to: these tests run without it.
meet='/(redisstore|store|internal/(accesslog|bodies|command|contentcoding|denials|limiter|lines|readahead'
meet+='|redistest|relay|simulate/propose|statuspage|telemetry|topk))$'
alone='^Test((Parity|Poison)(CatchesMutants)?|Vectors|.*Allocates?(Nothing)?|DeciderLikeHandler'
alone+='|DenyCache(IsRight|RetryAfter|IsBounded)|Memory(SlotsNeverLeak|AfterAFlood|HoldsNoPointers|ForgetsZones)'
alone+='|Memory(ReclaimIsBounded|LimitsCostNothing|OverflowIsOneBudget|ListsInOneOrder)'
alone+='|ParseFindsWhatCaddyEncodes|Proposals(OfAllAlgorithms|FromNothing)'
alone+='|(Permissions|DenyCache|Cluster)Conforms?)$'

# Whole Caddys are slow under the race detector, so it runs only those tests of them in which many requests
# meet each other, or meet a reload or a fault.
together='Concurren|Reload|Soak$|Flood|Leave|AddsUp|Exact|Busy|WaitForSlotInOutage|StreamsAndSlots'

case "$*" in
"") # three rows of runs side by side, so that one computes while others wait
	meet="^$(go list .)$meet"
	{
		run race . -race -skip "$alone" $(go list ./... | grep -E "$meet")
		run linear internal/faultsim -race ./linear     # in a module of its own
		run faultsim internal/faultsim . ./simredis     # in simulated time: one goroutine runs at a time
		run plugins internal/plugintest ./...           # another one, with the newest Caddy
		if [[ $(go env GOOS) == linux ]]; then run bench bench -race ./...; fi # and another one
	} &
	{
		run e2e-race . -race -run "$together" ./internal/e2e
		run e2e . -skip "$together" ./internal/e2e
	} &
	run browser internal/browsertest ./... # one more, with a browser
	run others . $(go list ./... | grep -vE "$meet|/e2e$")
	run alone . -run "$alone" ./internal/accesslog ./internal/limiter ./internal/simulate/propose ./redisstore ./store
	wait
	;;
-short)
	run docs . -short ./docs &
	run e2e . -short ./internal/e2e &
	run others . -short $(go list ./... | grep -vE '/(docs|e2e)$')
	wait
	;;
*) run some . -race "$@" ./... ;;
esac

failed=0
if [[ -e $results/failed ]]; then failed=1; fi
rm -f "$results/failed"
cat "$results"/* >"$results/all"
printf '\nThe slowest tests:\n'
"$gotestsum" tool slowest --jsonfile "$results/all" --threshold 1s --num 15
exit $failed
