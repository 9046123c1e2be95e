#!/usr/bin/env bash
# Runs a command, and fails if it and all processes that it starts take more processor time than its budget.
#
#   scripts/budget.sh 220 ./scripts/test.sh
#
# The budget is in processor seconds of the machine that we measure with. Other machines are faster or slower, and slower still
# while others use the same processors. So a fixed piece of work, tools/yardstick, runs again and again beside the command. Its
# mean processor time scales the budget. Nothing else on the machine is counted.
set -euo pipefail
cd "$(dirname "$0")/.."

reference=118000 # microseconds of processor time that the yardstick takes beside the tests on the machine that we measure with

budget=$1
shift
program=$(mktemp)
trap 'rm -f "$program" "$program".*' EXIT
GOWORK=off go build -C tools -o "$program" ./yardstick

# note_time notes in spent the processor seconds of all processes of this script that have ended, rounded down.
note_time() {
	times >"$program.times"
	spent=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int(($1 + $3) * 60 + $2 + $4) }' "$program.times")
}

"$program" >"$program.yardstick"
while sleep 3; do "$program"; done >>"$program.yardstick" & # which has not ended when spent is noted
beside=$!
note_time
began=$spent
began_at=$SECONDS
failed=0
"$@" || failed=$?
note_time
took=$((spent - began))
wall=$((SECONDS - began_at))
kill $beside

yardstick=$(awk '{ sum += $1 } END { print int(sum / NR) }' "$program.yardstick")
here=$((budget * yardstick / reference))
echo "It took $took processor seconds, in $wall s. The budget is $budget, which is $here on this machine (the yardstick: $yardstick µs, not $reference)."
if ((failed)); then exit $failed; fi
if ((took > here)); then
	echo "This is more than the budget. The costliest tests are named above." >&2
	exit 1
fi
