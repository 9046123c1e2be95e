package e2e

import (
	"testing"

	_ "github.com/caddy-rate-limit/caddy-rate-limit"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestMain(m *testing.M) { caddytest.Main(m) }
