package e2e

import (
	"bufio"
	"fmt"
	"net"
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
