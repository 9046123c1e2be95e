package e2e

import (
	"testing"

	_ "github.com/caddy-rate-limit/caddy-rate-limit/simulate" // and the rate limiter
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestMain(m *testing.M) { caddytest.Main(m) }
