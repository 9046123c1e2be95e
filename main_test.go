package ratelimit

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

func TestMain(m *testing.M) { caddytest.Main(m) }
