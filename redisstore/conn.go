package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/replies"
)

// poolSize returns the maximum number of connections. It is enough for all script calls in flight
// and for the requests that have their own call.
func poolSize() int { return max(10*runtime.GOMAXPROCS(0), 2*maxInFlight) }

// clientFunc returns a function that makes clients. The options must be normalized.
func (o Options) clientFunc() (func() *redis.Client, error) {
	config, err := o.TLS.Config()
	if err != nil {
		return nil, err
	}
	options := &redis.UniversalOptions{
		Addrs: []string{o.Address}, Username: o.Username, Password: o.Password, DB: o.DB,
		Dialer: o.dialFunc(config), DialTimeout: o.DialTimeout, PoolSize: poolSize(),
		// Take has its own deadline, which comes first.
		ReadTimeout: 2 * o.Timeout, WriteTimeout: 2 * o.Timeout, PoolTimeout: 2 * o.Timeout,
		ContextTimeoutEnabled: true,
		// A command that charges is never sent twice: see [noRetryCmd].
		MaxRetries:               -1,
		DialerRetries:            1, // the next request is the next try
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.MasterName == "" {
		return func() *redis.Client { return recovering(redis.NewClient(options.Simple())) }, nil
	}
	options.Addrs, options.MasterName = o.hosts(), o.MasterName
	options.SentinelUsername, options.SentinelPassword = o.SentinelUsername, o.SentinelPassword
	return func() *redis.Client { return recovering(redis.NewFailoverClient(options.Failover())) }, nil
}

// connections are the connections of one client. Once retired, or once the store is closed, they
// close when no operation uses them.
type connections struct {
	*redis.Client
	inUse   int
	retired bool
}

// acquire returns the current connections. They stay open until release.
func (s *Store) acquire() *connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = &connections{Client: s.newClient()}
	}
	s.conns.inUse++
	return s.conns
}

func (s *Store) release(c *connections) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.inUse--
	s.closeIdleLocked(c)
}

// reconnect retires connections, so that the next operation gets new ones. Then a host name is
// resolved again, and a Sentinel is asked for the primary.
func (s *Store) reconnect(c *connections) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.retired = true
	if s.conns == c {
		s.conns = nil
	}
	s.closeIdleLocked(c)
}

// Close closes the connections when no operation uses them any more. The Store can still be used;
// it opens new connections then.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conns != nil {
		s.closeIdleLocked(s.conns)
	}
	return nil
}

func (s *Store) closeIdleLocked(c *connections) {
	if !s.closed && !c.retired || c.inUse > 0 {
		return
	}
	if s.conns == c {
		s.conns = nil
	}
	go c.Client.Close() // it may wait for a dial, and requests for the mutex
}

// Dialer opens connections, as a [net.Dialer] does.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// dialFunc returns a function that opens connections, encrypted if config is not nil.
func (o Options) dialFunc(config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	plain := o.Dialer
	if plain == nil {
		plain = &net.Dialer{Timeout: o.DialTimeout, KeepAlive: 5 * time.Minute}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
		defer cancel()
		conn, err := plain.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn = likeInner(&graceConn{Conn: conn}, conn)
		if config == nil {
			return likeInner(replies.Bound(conn), conn), nil
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
		return replies.Bound(encrypted), nil
	}
}

// graceConn is a connection that tries a read or write once more after its deadline. A busy process may read a reply long
// after its arrival, or write a message long after its deadline was set. In both cases Redis was not silent.
type graceConn struct {
	net.Conn
	// readLate reports whether a read was tried after the deadline that is set. A server that sends
	// without end has no second try.
	readLate bool
}

// ioGrace is the deadline of the second try.
const ioGrace = 5 * time.Millisecond

func (c *graceConn) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); n == 0 && isTimeout(err) && !c.readLate {
		c.readLate = true
		_ = c.Conn.SetReadDeadline(time.Now().Add(ioGrace))
		return c.Conn.Read(b)
	}
	return n, err
}

func (c *graceConn) SetReadDeadline(t time.Time) error {
	c.readLate = false
	return c.Conn.SetReadDeadline(t)
}

func (c *graceConn) Write(b []byte) (n int, err error) {
	if n, err = c.Conn.Write(b); n == 0 && isTimeout(err) {
		_ = c.SetWriteDeadline(time.Now().Add(ioGrace))
		return c.Conn.Write(b)
	}
	return n, err
}

// likeInner returns outer, as a [syscall.Conn] if inner is one. The client uses this to find
// connections that Redis has closed.
func likeInner(outer, inner net.Conn) net.Conn {
	if s, ok := inner.(syscall.Conn); ok {
		return rawConn{outer, s}
	}
	return outer
}

// rawConn is a connection that is a [syscall.Conn].
type rawConn struct {
	net.Conn
	raw syscall.Conn
}

func (c rawConn) SyscallConn() (syscall.RawConn, error) { return c.raw.SyscallConn() }

// recovering returns the client, with a hook that turns a panic of the client into the error of its
// commands. They may have run. The client closes the connection.
func recovering(c *redis.Client) *redis.Client {
	c.AddHook(recovery{})
	return c
}

type recovery struct{}

func (recovery) DialHook(next redis.DialHook) redis.DialHook { return next }

func (recovery) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) (err error) {
		defer failOnPanic(&err, command)
		return next(ctx, command)
	}
}

func (recovery) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) (err error) {
		defer failOnPanic(&err, commands...)
		return next(ctx, commands)
	}
}

// failOnPanic is deferred. If there is a panic, it ends, and err and the commands get an error instead.
func failOnPanic(err *error, commands ...redis.Cmder) {
	if p := recover(); p != nil {
		*err = wire.ReplyError(fmt.Sprintf("can't be read: %v", p))
		for _, command := range commands {
			command.SetErr(*err)
		}
	}
}
