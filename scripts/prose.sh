#!/usr/bin/env bash
# Checks the English of pages, comments, messages and the status page with Vale: the rules in
# .vale/RateLimit, each with its own tests.
#
#   scripts/prose.sh             all files
#   scripts/prose.sh docs/*.md   these files
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/install.sh gcc # Vale is built with it
vale() { GOWORK=off NO_COLOR=1 go tool -modfile=tools/go.mod vale "$@"; }

if grep -L '^tests:' .vale/RateLimit/*.yml | grep .; then
	echo "these rules have no tests" >&2
	exit 1
fi
vale test .vale
if (($# == 0)); then
	# shellcheck disable=SC2046 # file names have no spaces
	set -- $(git ls-files -co --exclude-standard '*.md' '*.go' '*.lua' 'internal/statuspage/page/*.'{js,html})
fi
vale --no-global --output line "$@" >&2
