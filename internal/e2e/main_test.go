package e2e

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	_ "github.com/caddy-rate-limit/caddy-rate-limit/simulate" // and the rate limiter
)

func TestMain(m *testing.M) { caddytest.Main(m) }
