package redisstore

import (
	"net"
	"os"
	"testing"
	"time"
)

// lateConn is a connection on which each read finds something only after its deadline, in the second try.
type lateConn struct {
	net.Conn
	reads int
}

func (c *lateConn) Read(b []byte) (int, error) {
	if c.reads++; c.reads%2 == 1 {
		return 0, os.ErrDeadlineExceeded
	}
	return copy(b, "x"), nil
}

func (*lateConn) SetReadDeadline(time.Time) error { return nil }

// Each deadline of a connection has one second try of a read, also if an earlier deadline has had one.
func TestGraceOfEachDeadline(t *testing.T) {
	c := &graceConn{Conn: new(lateConn)}
	for n, set := range []func(time.Time) error{c.SetReadDeadline, c.SetReadDeadline, c.SetReadDeadline} {
		if err := set(time.Now()); err != nil {
			t.Fatal(err)
		}
		if read, err := c.Read(make([]byte, 1)); read != 1 || err != nil {
			t.Errorf("deadline %d: read %d bytes, error %v", n, read, err)
		}
		if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
			t.Errorf("deadline %d: a second time, error %v, want that it is late", n, err)
		}
		c.Conn.(*lateConn).reads = 0
	}
}
