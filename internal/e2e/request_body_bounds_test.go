package e2e

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A value has at most 16 KiB, because reading it takes several times its size. Other values have no bound.
func TestLongValue(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone z {\n"+accountKey+"max_body 1MiB\nfixed_window 100 1h\n}"))
	for length, status := range map[int]int{16 << 10: 200, 16<<10 + 1: 413} {
		long, longest := strings.Repeat("x", length), strings.Repeat("x", 500_000)
		c.Post(t, "/", caddytest.JSONType, `{"other":"`+longest+`","user":{"name":"`+long+`"}}`).Want(t, status)
		c.Post(t, "/", caddytest.FormType, "other="+longest+"&user="+long).Want(t, status)
	}
	c.Post(t, "/", caddytest.JSONType, `{"user":{"name":"`+strings.Repeat("\xff", 6000)+`"}}`).Want(t, 413) // each becomes three bytes
}
