package redisstore_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
