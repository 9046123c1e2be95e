#!/usr/bin/env bash
# Shows that the tests are never red by chance: runs them all again and again, with all, half and a third of the processor.
# It stops at the first failure.
#
#   scripts/steady.sh          ten rounds of three runs
#   scripts/steady.sh 2        two rounds
#   scripts/steady.sh -alone   each package 20 times, alone
#
# A control group takes the processor away, in periods of a second: with a third of it, two processors stand still for two
# thirds of each second. That needs root on Linux. Elsewhere busy loops run beside the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS="${GOFLAGS:-} -count=1" # no result of an earlier run

if [[ ${1:-} == -alone ]]; then
	for package in $(go list ./...); do
		go test -trimpath -ldflags '-s -w' -vet off -count 20 -parallel 4 -timeout 2h "$package"
	done
	exit
fi

cores=$(getconf _NPROCESSORS_ONLN)
loops=()
group=
end_share() {
	if ((${#loops[@]})); then kill "${loops[@]}" 2>/dev/null || true; fi
	loops=()
	if [[ -n $group ]]; then rmdir "$group" 2>/dev/null || true; fi
	group=
}
trap end_share EXIT

# with_share N COMMAND… runs a command with the Nth part of the processor.
with_share() {
	local part=$1 period=1000000
	shift
	local quota=$((period * cores / part))
	if ((part == 1)); then
		"$@"
	elif group=$(mktemp -d /sys/fs/cgroup/cpu/steady-XXXX 2>/dev/null) && [[ -w $group/cpu.cfs_quota_us ]]; then
		echo $period >"$group/cpu.cfs_period_us"
		echo $quota >"$group/cpu.cfs_quota_us"
		(echo $BASHPID >"$group/cgroup.procs" && "$@")
	elif group=$(mktemp -d /sys/fs/cgroup/steady-XXXX 2>/dev/null) && [[ -w $group/cpu.max ]]; then
		echo "$quota $period" >"$group/cpu.max"
		(echo $BASHPID >"$group/cgroup.procs" && "$@")
	else
		for ((i = 0; i < cores * (part - 1); i++)); do
			while :; do :; done &
			loops+=($!)
		done
		"$@"
	fi
}

for ((round = 1; round <= ${1:-10}; round++)); do
	for part in 1 2 3; do
		began=$SECONDS
		if ! with_share $part ./scripts/test.sh; then
			echo "round $round, with 1/$part of the processor, failed after $((SECONDS - began)) s" >&2
			exit 1
		fi
		end_share
		echo "round $round, with 1/$part of the processor: green in $((SECONDS - began)) s"
	done
done
