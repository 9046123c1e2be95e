package e2e

import (
	"bufio"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// upgrade opens a connection that becomes another protocol, whose other end repeats each line. The test
// closes it at its end, if it has not done so before.
func upgrade(t *testing.T, c *caddytest.Caddy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Site)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n", c.Site)
	answer := bufio.NewReader(conn)
	for line := ""; line != "hello\n"; {
		if line, err = answer.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// duringReloads calls ask all the time while a Caddy loads ten configurations, each with the status it must
// get. ask reports whether it had an answer: there is none while the admin endpoint is being replaced.
func duringReloads(t *testing.T, c *caddytest.Caddy, ask func() bool, reload func(n int) (config string, status int)) {
	t.Helper()
	stop := make(chan struct{})
	var answers atomic.Int64
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if ask() {
					answers.Add(1)
				}
			}
		}
	})
	for n := 0; n < 10 || answers.Load() == 0; n++ {
		config, status := reload(n)
		r, err := c.Do("POST", "http://"+c.Admin+"/load", c.Expand(config), "Content-Type", "text/caddyfile")
		if err == nil && r.StatusCode != status {
			t.Errorf("%d %s", r.StatusCode, r.Text)
		}
	}
	close(stop)
	asking.Wait()
	c.Settle(t)
}
