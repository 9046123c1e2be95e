#!/usr/bin/env bash
# Runs a command, and fails if it takes more than four times its budget.
#
#   scripts/budget.sh 240 ./scripts/test.sh
#
# The budget is in seconds on two cores of the machine that we measure with. Other machines are faster or
# slower, so a fixed piece of work, tools/yardstick, is timed before and after the command, and the budget is
# scaled by what it takes. The work only computes. Tests also start processes and wait for servers, in which machines
# differ more: one needed from two to three times the scaled budget.
set -euo pipefail
cd "$(dirname "$0")/.."

reference=2300 # milliseconds that the yardstick takes on two cores of the machine that we measure with

budget=$1
shift
program=$(mktemp)
trap 'rm -f "$program"' EXIT
GOWORK=off go build -C tools -o "$program" ./yardstick

before=$("$program")
began=$SECONDS
failed=0
"$@" || failed=$?
took=$((SECONDS - began))
after=$("$program")

yardstick=$(((before + after) / 2))
here=$((budget * yardstick / reference))
echo "It took $took s. The budget is $budget s, which is $here s on this machine (the yardstick: $yardstick ms, not $reference)."
if ((failed)); then exit $failed; fi
if ((took > 4 * here)); then
	echo "This is more than four times the budget. The slowest tests are named above." >&2
	exit 1
fi
