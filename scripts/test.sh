#!/usr/bin/env bash
# Runs the tests, shows their progress, and names the costliest of them at the end. First it
# installs what they need and the machine lacks: redis-server, curl, Prometheus, Chromium, and a C compiler
# for the race detector.
#
#   scripts/test.sh              all tests: three minutes on two cores
#   scripts/test.sh -short       without tests that take long, and without the race detector: a minute
#   scripts/test.sh -run Parity  these tests, under the race detector; any arguments of go test
#   scripts/test.sh -prepare     only installs, and compiles what the tests need
#
# No test depends on the speed of the machine. Tests of real faults are in scripts/real.sh.
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

# The packages in whose tests goroutines meet run under the race detector, which makes them several times
# slower. In a few of these tests only one goroutine or a server computes, for long, or they count allocations,
# which the race detector adds to: these tests run without it. Elsewhere another program would cost more than it saves.
meet='/(redisstore|store|internal/(accesslog|bodies|contentcoding|denials|limiter|lines|readahead|relay|telemetry|topk))$'
alone='^Test((Parity|Poison)(CatchesMutants)?|Vectors|(Take|MemoryTake|Failover|DenyCache)Allocates(Nothing)?'
alone+='|DenyCache(IsRight|RetryAfter|IsBounded)|Memory(SlotsNeverLeak|AfterAFlood|HoldsNoPointers)'
alone+='|Memory(ReclaimIsBounded|(Limits|Zones)CostNothing|OverflowIsOneBudget|ListsInOneOrder)'
alone+='|ReplyBounds|MalformedReplies|LargestCounts|WorkPerDecision|Laws|WriterBoundsWork|SketchIsBounded'
alone+='|(DenyCache)?Conforms|Cluster)$'

if [[ $* == -prepare ]]; then
	compile() { go list "${build[@]}" -export -test -deps "$@" >/dev/null; }
	compile -race $(go list ./... | grep -E "$meet") ./internal/faultsim/linear
	for module in . internal/faultsim internal/browsertest internal/plugintest; do (cd "$module" && compile ./...); done
	exit
fi

gotestsum=$(GOWORK=off go tool -modfile=tools/go.mod -n gotestsum)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
if [[ $(go env GOOS) == linux ]]; then
	GOWORK=off go build -C tools -o "$results/cost" ./cost
	flags+=(-exec "$results/cost $results/costs")
fi

# run NAME DIRECTORY ARGUMENTS… runs go test in a directory. Many tests wait for servers, so more of them run at
# once than there are cores.
run() {
	local name=$1 directory=$2
	shift 2
	(cd "$directory" && "$gotestsum" --format "${GOTESTSUM_FORMAT:-pkgname-and-test-fails}" --hide-summary skipped \
		-- "${flags[@]}" -parallel 4 -timeout 30m "$@") || echo "$name" >>"$results/failed"
}

case "$*" in
"") # two rows of runs side by side. Each run loads the packages of Caddy again, so there are few.
	modules=(./internal/faultsim ./internal/faultsim/simredis ./internal/browsertest/... ./internal/plugintest/...) # with the newest Caddy
	if [[ $(go env GOOS) == linux ]]; then modules+=(./bench/...); fi
	# Programs with one processor take a fifth less of its time, because Go looks for work on each. Those under the race
	# detector have all.
	GOMAXPROCS=1 run driven . -p 1 ./internal/e2e ./docs &
	run race . -race -skip "$alone" $(go list ./... | grep -E "$meet") ./internal/faultsim/linear
	run alone . -run "$alone" ./redisstore ./store ./internal/lines ./internal/contentcoding ./internal/topk
	GOMAXPROCS=1 run others . -p "$(getconf _NPROCESSORS_ONLN)" $(go list ./... | grep -vE "$meet|/(docs|e2e)$") "${modules[@]}"
	wait
	;;
-short)
	# These take long, too, but scripts/lowest.sh needs them.
	long='^Test(Pages|(\w+)?Conforms|WorkPerDecision|Simulation(DeniesWhatCaddyDenied|EndsWhatCaddyEnded|MeetsWhatRequestsMet)'
	long+='|LargestCounts|MalformedReplies|Poison|WriterOfBrokenContent|SlowBodies|BodyIsNotKept|SuggestedLimits'
	long+='|GapOfExampleLog|Reload(s|DuringRequests)|WaitForSlot(DuringReloadOfConcurrency|AndBan)'
	long+='|MergeOpensFewFiles|BoundWork|WellFormed)$'
	{
		run docs . -short -skip "$long" ./docs
		run e2e . -short -skip "$long|/^memory\$" ./internal/e2e # more happens in Redis
	} &
	run others . -short -skip "$long" $(go list ./... | grep -vE '/(docs|e2e)$')
	wait
	;;
*) run some . -race "$@" ./... ;;
esac

if [[ -e $results/costs ]]; then
	printf '\nThe costliest packages and tests, in processor seconds:\n'
	sort -rn "$results/costs" >"$results/sorted"
	grep -m 15 ' package ' "$results/sorted" || true # no pipe to head, which would end grep by a signal
	echo
	grep -m 15 -v ' package ' "$results/sorted" || true
fi
if [[ -e $results/failed ]]; then
	echo "failed: $(tr '\n' ' ' <"$results/failed")" >&2
	exit 1
fi
