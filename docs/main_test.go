package docs_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	_ "github.com/caddy-rate-limit/caddy-rate-limit/simulate" // and the rate limiter
)

// The tests here run the pages: every configuration is loaded, and every command is executed and its output
// compared. CONTRIBUTING.md says how to write a block.

func TestMain(m *testing.M) { caddytest.Main(m) }
