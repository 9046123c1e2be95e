package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// A Caddy by TLS decides as others do. Changed certificates count from the next configuration on. A bad file changes
// nothing. TestUnixURL has unix sockets.
func TestRedisByTLS(t *testing.T) {
	t.Parallel()
	certificates, others := redistest.NewCertificates(t), redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certificates, "--requirepass", "SECRET")
	used := t.TempDir()
	install := func(c redistest.Certificates) {
		t.Helper()
		for name, file := range map[string]string{"ca.pem": c.CA, "cert.pem": c.Cert, "key.pem": c.Key} {
			caddytest.WriteFile(t, filepath.Join(used, name), caddytest.ReadFile(t, file), 0o600)
		}
	}
	install(certificates)
	config := caddytest.Site(fmt.Sprintf(`zone api {
		gcra 1 1h 5
	}
	redis %s {
		password {env.REDIS_PASSWORD}
		timeout 30s
		dial_timeout 30s
		tls {
			ca   %s/ca.pem
			cert %[2]s/cert.pem
			key  {env.TEST_KEY}
		}
	}
	on_store_error deny`, server.Addr, used))
	c := caddytest.StartProcess(t, config, "REDIS_PASSWORD=SECRET", "TEST_KEY="+used+"/key.pem")
	c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=4;t=3600`)

	install(others)
	c.Get(t, "/").Want(t, 200)
	c.Reload(t, config+"# with certificates of another authority\n")
	c.Get(t, "/").Want(t, 503)
	c.WaitForLog(t, "certificate")

	install(certificates)
	c.Reload(t, config+"# with the right ones again\n")
	c.Get(t, "/").Want(t, 200, "RateLimit", `"api";r=2;t=3600`) // its budget is where it was

	errtest.None(t, os.Remove(filepath.Join(used, "key.pem")))
	r := c.Load(t, config+"# without a key\n", "text/caddyfile")
	if r.StatusCode == 200 || !strings.Contains(r.Text, `key of tls of redis: can't use \"{env.TEST_KEY}\": no such file or directory`) {
		t.Errorf("a configuration without the key: %d %s", r.StatusCode, r.Text)
	}
	c.Get(t, "/").Want(t, 200)
	if log := c.Logged(); strings.Contains(log, "SECRET") || strings.Contains(log, "PRIVATE") {
		t.Error("a secret is in the log")
	}
	shown, err := c.Do("GET", "http://"+c.Admin+"/config/", "")
	if err != nil || strings.Contains(shown.Text, "SECRET") || strings.Contains(shown.Text, "PRIVATE") {
		t.Errorf("a secret is in what the admin API shows: %v %s", err, shown.Text)
	}
}
