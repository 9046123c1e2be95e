.PHONY: help run test lowest targets lint prose format xcaddy footprint bench simulate growth real steady cases faults soak fuzz

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: ## serve Caddyfile.example on :8080
	go run ./cmd/caddy run --config Caddyfile.example

test: ## run all tests, installing what they need (ARGS=-short: within a minute)
	./scripts/test.sh $(ARGS)

lowest: ## build and test with the lowest versions of Go and Caddy, as in go.mod
	./scripts/lowest.sh

targets: ## check the types for all systems and processors that Caddy is released for (ARGS=linux/arm/5: compile for this one)
	./scripts/targets.sh $(ARGS)

lint: ## gofumpt, the English, go vet and staticcheck
	./scripts/lint.sh

prose: ## check the English of pages, comments and messages (ARGS=FILE: one file)
	./scripts/prose.sh $(ARGS)

format: ## format the code
	GOWORK=off go tool -modfile=tools/go.mod gofumpt -w .

xcaddy: ## build Caddy with this module through xcaddy, into bin/caddy
	./scripts/xcaddy.sh

footprint: ## print what the module adds to Caddy: modules and megabytes
	./scripts/footprint.sh

bench: ## measure Caddy with and without the handler, and write docs/performance.md (ARGS="-only redis": one part, -quick)
	cd bench && go run . $(ARGS)

simulate: ## measure caddy rate-limit simulate over a generated log, which takes 12 GB (ARGS="-lines 1000000": a shorter one)
	cd bench && go run ./simulate $(ARGS)

growth: ## show the cost of decisions and keys as budgets grow, in both stores, and what a check costs Redis in instructions
	go test -run '^$$' -bench Growth -benchtime 100ms ./store ./redisstore
	go test -run '^$$' -bench Instructions -benchtime 1x -timeout 30m ./redisstore

real: ## run the tests of real faults: servers that are killed, hang, lose data or fail over (ARGS="-run TestRealX": some)
	./scripts/real.sh $(ARGS)

steady: ## run all tests 30 times, with all, half and a third of the processor, until one fails (ARGS=2: 6 times)
	./scripts/steady.sh $(ARGS)

cases: ## try 50 times as many random cases in the property tests
	RATE_LIMIT_TEST_TIMES=50 go test -timeout 4h ./...

faults: ## try the promises in simulated time, until you stop it (ARGS="-seed 7 -times 20": one seed, with its history)
	go test ./internal/faultsim -run '^TestFaults$$' -count 1 -v -timeout 0 -seeds 0 -from $$(date +%s)000 $(ARGS)

soak: ## three Caddys on a Redis, then on a cluster, and many faults, 3 minutes each (make soak ARGS="-soak 10m -soak-seed 1")
	go test -tags real ./internal/e2e -run '^TestRealSoak' -count 1 -v -timeout 2h -soak 3m $(ARGS)

fuzz: ## fuzz for a minute each: the Caddyfile, limits as text, keys, messages, replies, bodies, parity, access logs
	go test -run '^$$' -fuzz FuzzCaddyfile -fuzztime 1m .
	go test -run '^$$' -fuzz FuzzParseLimitText -fuzztime 1m .
	go test -run '^$$' -fuzz FuzzKey -fuzztime 1m ./internal/wire
	go test -run '^$$' -fuzz FuzzReadMessage -fuzztime 1m ./internal/wire/wiretest
	go test -run '^$$' -fuzz FuzzReply -fuzztime 1m ./internal/wire
	go test -run '^$$' -fuzz FuzzReader -fuzztime 1m ./internal/jsonvalue
	go test -run '^$$' -fuzz FuzzReader -fuzztime 1m ./internal/eventstream
	go test -run '^$$' -fuzz FuzzURLEncoded -fuzztime 1m ./internal/formvalue
	go test -run '^$$' -fuzz 'FuzzParse$$' -fuzztime 1m ./internal/accesslog
	go test -run '^$$' -fuzz FuzzParity -fuzztime 1m ./redisstore
