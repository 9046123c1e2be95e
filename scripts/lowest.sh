#!/usr/bin/env bash
# Builds and tests the module with the lowest versions that it works with: the Go and the Caddy in
# go.mod. All other scripts take the newest Caddy, which go.work adds.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off
lowest=$(go list -m -f '{{.GoVersion}}')
if [[ $(go env GOVERSION) == go${lowest%.*}.* ]]; then # any patch of this version will do
	LOWEST_GO=local
fi
export GOTOOLCHAIN=${LOWEST_GO:-go$lowest}
go version
echo "Caddy $(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)"

# These tests describe the newest Caddy: its placeholders, allocations and requirements, header fields
# after early hints, which an older reverse_proxy drops, and the option order, which an older Caddy keeps
# for the next Caddyfile. An older Caddy leaves a goroutine in simulated time.
newest='^Test(NamesOfCaddy|ServeHTTPAllocates|RequirementsAreForUsers|Upstream|WarningsOf(LateUsers|UnseenLogins)|ShortestSweepInterval|ExplainAgrees)$'

go vet ./... # also tells of functions that this Go doesn't have
go test -short -skip "$newest" "$@" . ./internal/bodies ./internal/denials ./internal/e2e ./internal/limiter ./internal/lines ./docs ./algorithms ./store ./redisstore
