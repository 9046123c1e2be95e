package e2e

import (

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)
