module github.com/caddy-rate-limit/caddy-rate-limit/redisstore/linear

go 1.26.0

replace github.com/caddy-rate-limit/caddy-rate-limit => ../..

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/caddy-rate-limit/caddy-rate-limit v0.0.0-00010101000000-000000000000
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dchest/siphash v1.2.3 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
