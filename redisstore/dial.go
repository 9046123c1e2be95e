package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"time"
)

// dialer returns a function that opens connections, encrypted if config is not nil.
func dialer(timeout time.Duration, config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Minute}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		conn, err := plain.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn = graceConn{conn}
		if config == nil {
			return conn, nil
		}
		config := config.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address)
		}
		encrypted := tls.Client(conn, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return encrypted, nil
	}
}

// graceConn is a connection that tries once more after a deadline. A busy process may get to read a
// reply long after its arrival, or to send a message long after it was made. In these cases the
// other side was not silent.
type graceConn struct{ net.Conn }

// readGrace is how long the second try takes at most.
const readGrace = 5 * time.Millisecond

func (c graceConn) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); n == 0 && isTimeout(err) {
		_ = c.SetReadDeadline(time.Now().Add(readGrace))
		return c.Conn.Read(b)
	}
	return n, err
}

func (c graceConn) Write(b []byte) (n int, err error) {
	if n, err = c.Conn.Write(b); n == 0 && isTimeout(err) {
		_ = c.SetWriteDeadline(time.Now().Add(readGrace))
		return c.Conn.Write(b)
	}
	return n, err
}

// SyscallConn implements [syscall.Conn]. The client uses it to see whether the other side has
// closed the connection.
func (c graceConn) SyscallConn() (syscall.RawConn, error) { return c.Conn.(syscall.Conn).SyscallConn() }
