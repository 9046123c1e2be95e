#!/usr/bin/env bash
# Runs the tests of real faults, one after the other, under the race detector: servers are killed, hang, lose their data or
# fail over, with the timeouts of the product. Nothing else should run on the machine. A release needs it.
#
#   scripts/real.sh                  all of them
#   scripts/real.sh -run TestRealX   these; any arguments of go test
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/install.sh redis gcc curl prometheus
./scripts/install.sh chromium # alone, because it is missing on some systems

gotestsum=$(GOWORK=off go tool -modfile=tools/go.mod -n gotestsum)
export GOGC=400
failed=
for directory in $(git ls-files -co --exclude-standard '*real_*_test.go' | xargs -n 1 dirname | sort -u); do
	(cd "$directory" && "$gotestsum" --format "${GOTESTSUM_FORMAT:-testname}" -- -trimpath -ldflags '-s -w' -vet off -race -tags real \
		-count 1 -parallel 1 -timeout 1h -run '^TestReal' "$@" .) || failed+=" $directory"
done
if [[ -n $failed ]]; then
	echo "failed:$failed" >&2
	exit 1
fi
