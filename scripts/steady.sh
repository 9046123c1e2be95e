#!/usr/bin/env bash
# Shows that the tests are never red by chance: runs them all again and again, every other time while one
# busy loop per core takes processor time away from them. It stops at the first failure.
#
#   scripts/steady.sh     20 runs, ten of them under load
#   scripts/steady.sh 6   6 runs, three of them under load
#
# With RATE_LIMIT_LOAD=0 no run is under load, with 1 each.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS="${GOFLAGS:-} -count=1" # no result of an earlier run

loops=()
end_load() {
	if ((${#loops[@]})); then kill "${loops[@]}" 2>/dev/null || true; fi
	loops=()
}
trap end_load EXIT

for ((run = 1; run <= ${1:-20}; run++)); do
	load=${RATE_LIMIT_LOAD:-$((1 - run % 2))}
	if ((load)); then
		for ((i = 0; i < $(getconf _NPROCESSORS_ONLN); i++)); do
			while :; do :; done &
			loops+=($!)
		done
	fi
	began=$SECONDS
	if ! ./scripts/test.sh; then
		echo "run $run, with load $load, failed after $((SECONDS - began)) s" >&2
		exit 1
	fi
	end_load
	echo "run $run, with load $load: green in $((SECONDS - began)) s"
done
