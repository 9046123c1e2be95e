#!/usr/bin/env bash
# Runs the conformance suite, the comparison of Lua with Go, and the recorded vectors against a server
# that is running: its host:port, or a URL (rediss://user:password@host:port for TLS).
#
#   scripts/conformance.sh localhost:6379
#
# The tests delete everything on that server (FLUSHALL).
set -euo pipefail
cd "$(dirname "$0")/.."
RATE_LIMIT_TEST_REDIS=${1:?write the host:port of a server whose data may be deleted} \
	go test -count 1 -v -parallel 1 -run '^Test(Conforms|Parity|Vectors)$' ./redisstore | grep -E '^(---|ok|FAIL|panic| {4}[a-z_]+\.go)'
