#!/usr/bin/env bash
# Runs a command, and fails if it and all processes that it starts take more processor time than its budget.
#
#   scripts/budget.sh 220 ./scripts/test.sh
#
# The budget is in processor seconds of the machine that we measure with. Other machines are faster or slower, so the
# processor time of a fixed piece of work, tools/yardstick, is measured before and after the command, and scales the
# budget. Nothing else on the machine is counted.
set -euo pipefail
cd "$(dirname "$0")/.."

reference=4950 # milliseconds of processor time that the yardstick takes on the machine that we measure with

budget=$1
shift
program=$(mktemp)
trap 'rm -f "$program" "$program.times"' EXIT
GOWORK=off go build -C tools -o "$program" ./yardstick

# note_time notes in spent the processor seconds of all processes of this script that have ended, rounded down.
note_time() {
	times >"$program.times"
	spent=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int(($1 + $3) * 60 + $2 + $4) }' "$program.times")
}

before=$("$program")
note_time
began=$spent
began_at=$SECONDS
failed=0
"$@" || failed=$?
note_time
took=$((spent - began))
wall=$((SECONDS - began_at))
after=$("$program")

yardstick=$(((before + after) / 2))
here=$((budget * yardstick / reference))
echo "It took $took processor seconds, in $wall s. The budget is $budget, which is $here on this machine (the yardstick: $yardstick ms, not $reference)."
if ((failed)); then exit $failed; fi
if ((took > here)); then
	echo "This is more than the budget. The costliest tests are named above." >&2
	exit 1
fi
