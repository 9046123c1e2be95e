#!/usr/bin/env bash
# Shows that the limits of several Caddys are exact: starts a Redis and three Caddys with
# examples/three-caddys/Caddyfile, sends each of them 100 requests at the same time, and counts. The limit is
# 100 requests for all of them together. It needs Go, curl and redis-server, and the ports 8081 to 8083.
#
# PORT=9101 REDIS_PORT=9100 scripts/three-caddys.sh uses other ports; CADDY=/usr/bin/caddy a Caddy that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${PORT:-8081}
export REDIS=localhost:${REDIS_PORT:-6399} REDIS_PASSWORD=secret

directory=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$directory"' EXIT
export XDG_CONFIG_HOME=$directory XDG_DATA_HOME=$directory

echo "Starting Redis and three Caddys ..."
caddy=${CADDY:-$directory/caddy}
[[ -n ${CADDY:-} ]] || go build -o "$caddy" ./cmd/caddy
redis-server --port "${REDIS#*:}" --requirepass "$REDIS_PASSWORD" --save '' --dir "$directory" >"$directory/redis.log" &
for n in 0 1 2; do
	# Redis and all Caddys start on this machine, which can stall for longer than the default timeout.
	sed -e "s/^:8080 /:$((port + n)) /" -e '/password {/a\
timeout 10s' examples/three-caddys/Caddyfile >"$directory/Caddyfile.$n"
	CADDY_ADMIN=unix/$directory/admin.$n "$caddy" run --adapter caddyfile --config "$directory/Caddyfile.$n" 2>"$directory/caddy.$n.log" &
done
for _ in {1..300}; do
	if [[ $(cat "$directory"/caddy.*.log | grep -c 'serving initial configuration') == 3 ]] && grep -q 'Ready to accept' "$directory/redis.log"; then break; fi
	sleep 0.1
done
sleep 1 # until each Caddy has found Redis

echo "One limit for all of them: $(grep -o 'fixed_window.*' examples/three-caddys/Caddyfile)"
echo "Sending 100 requests to each, at the same time:"
clients=()
for n in 0 1 2; do
	curl -sS --no-progress-meter --parallel --parallel-max 20 -o /dev/null -w "$n %{http_code}\n" "http://localhost:$((port + n))/?[1-100]" >"$directory/answers.$n" &
	clients+=($!)
done
wait "${clients[@]}"
awk '
	BEGIN { printf "\n              allowed   denied\n" }
	{ count[$1, $2]++; total[$2]++; answers++ }
	END {
		for (n = 0; n < 3; n++) printf "  caddy %d   %10d %8d\n", n + 1, count[n, 200], count[n, 429]
		printf "  together  %10d %8d\n", total[200], total[429]
		exit total[200] != 100 || total[429] != 200 || answers != 300
	}' "$directory"/answers.*
