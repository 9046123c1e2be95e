package simredis

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Network connects clients with servers. It resolves the names of hosts, so no look-up leaves the process. Its methods
// are safe for concurrent use.
type Network struct {
	mu      sync.Mutex
	servers map[string]*Server // by address
	links   []*link            // open connections
	random  *rand.Rand
}

// NewNetwork returns a network without servers.
func NewNetwork() *Network {
	return &Network{servers: make(map[string]*Server), random: rand.New(rand.NewPCG(1, 2))}
}

// Client is an end of a network from which connections are opened, such as an instance of Caddy. It implements
// redisstore.Dialer. The zero values of its fields stand for a perfect network.
type Client struct {
	network *Network

	mu     sync.Mutex
	delay  time.Duration   // of each direction, at least
	jitter time.Duration   // a packet takes up to so much longer
	silent map[string]bool // the addresses to and from which nothing arrives
	dead   bool
}

// NewClient returns a client of the network, whose packets take so long in each direction.
func (n *Network) NewClient(delay time.Duration) *Client {
	return &Client{network: n, delay: delay, silent: make(map[string]bool)}
}

// SetDelay changes how long later packets take in each direction. So a packet can overtake those of another connection.
func (c *Client) SetDelay(least, most time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay, c.jitter = least, most-least
}

// delayTo is how long a packet takes to or from a server. Sentinels are here: go-redis asks them with a mutex locked, and no
// simulated time passes while a goroutine waits for a mutex.
func (c *Client) delayTo(s *Server) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s != nil && s.sentinel != nil:
		return 0
	case c.jitter == 0:
		return c.delay
	}
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	return c.delay + time.Duration(c.network.random.Int64N(int64(c.jitter)))
}

// SetSilent decides whether packets between the client and an address arrive. Packets that did not arrive come
// when they can again, as TCP repeats them.
func (c *Client) SetSilent(address string, silent bool) {
	c.mu.Lock()
	c.silent[address] = silent
	c.mu.Unlock()
	for _, l := range c.network.linksOf(func(l *link) bool { return l.from == c && l.to.address == address }) {
		l.toServer.hold(silent)
		l.toClient.hold(silent)
	}
}

func (c *Client) isSilent(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.silent[address]
}

// SetDead breaks all connections of the client. It can open no other ones.
func (c *Client) SetDead() {
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	for _, l := range c.network.linksOf(func(l *link) bool { return l.from == c }) {
		l.reset()
	}
}

// DialContext opens a connection to the server at an address.
func (c *Client) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	c.mu.Lock()
	dead := c.dead
	c.mu.Unlock()
	if dead {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ENETUNREACH}
	}
	n := c.network
	n.mu.Lock()
	server := n.servers[address]
	n.mu.Unlock()
	if delay := c.delayTo(server); delay > 0 || c.isSilent(address) {
		roundTrip := time.NewTimer(2 * delay)
		defer roundTrip.Stop()
		arrives := roundTrip.C
		if c.isSilent(address) {
			arrives = nil
		}
		select {
		case <-arrives:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
		}
	}
	l := &link{from: c, to: server, toServer: newStream(), toClient: newStream()}
	if server == nil || !server.accept(l) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	return &conn{link: l, in: l.toClient, out: l.toServer}, nil
}

// linksOf returns the open connections that match.
func (n *Network) linksOf(match func(*link) bool) (found []*link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		if match(l) {
			found = append(found, l)
		}
	}
	return found
}

// CloseAll resets all connections, so that nothing is left running.
func (n *Network) CloseAll() {
	for _, l := range n.linksOf(func(*link) bool { return true }) {
		l.reset()
	}
}

// Cut resets all connections to a server.
func (n *Network) Cut(to *Server) {
	for _, l := range n.linksOf(func(l *link) bool { return l.to == to }) {
		l.reset()
	}
}

// link is a connection.
type link struct {
	from               *Client
	to                 *Server
	toServer, toClient *stream
	closed             int // how many of its two ends are closed; guarded by the mutex of the network
}

// reset ends the connection at once, with all that is on its way.
func (l *link) reset() {
	l.toServer.end(syscall.ECONNRESET)
	l.toClient.end(syscall.ECONNRESET)
}

// closeEnd closes one of the ends. The network forgets the connection when both are closed.
func (l *link) closeEnd() {
	n := l.from.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.closed++; l.closed == 2 {
		n.links = slices.DeleteFunc(n.links, func(other *link) bool { return other == l })
	}
}

// Connections returns how many connections are open at either end.
func (n *Network) Connections() int { return len(n.linksOf(func(*link) bool { return true })) }

// packet has the bytes of one write.
type packet struct {
	arrives time.Time
	bytes   []byte
}

// stream is one direction of a connection. It has one reader, and room for all that is written.
type stream struct {
	changed chan struct{} // receives a value when the reader may have something to do

	mu       sync.Mutex
	packets  []packet
	held     bool      // nothing arrives now
	err      error     // of the end: an io.EOF comes after all packets, a reset at once
	ends     time.Time // when the end arrives
	deadline time.Time // of the reader; zero: none
}

func newStream() *stream { return &stream{changed: make(chan struct{}, 1)} }

func (s *stream) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *stream) hold(held bool) {
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	s.wake()
}

// end ends the stream with an error.
func (s *stream) end(err error) {
	s.mu.Lock()
	if s.err == nil || err != io.EOF {
		s.err, s.ends = err, time.Now()
	}
	s.mu.Unlock()
	s.wake()
}

// write sends bytes. Like TCP it accepts them also if the other end has gone.
func (s *stream) write(b []byte, delay time.Duration) {
	s.mu.Lock()
	arrives := time.Now().Add(delay)
	if n := len(s.packets); n > 0 && s.packets[n-1].arrives.After(arrives) {
		arrives = s.packets[n-1].arrives // they come in order
	}
	s.packets = append(s.packets, packet{arrives, append([]byte(nil), b...)})
	s.mu.Unlock()
	s.wake()
}

// read waits for bytes, the end or the deadline.
func (s *stream) read(b []byte) (int, error) {
	for {
		n, wait, err := s.tryRead(b)
		if n > 0 || err != nil {
			return n, err
		}
		var timer *time.Timer
		var due <-chan time.Time
		if wait >= 0 {
			timer = time.NewTimer(wait)
			due = timer.C
		}
		select {
		case <-s.changed:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// tryRead reads what has arrived. If that is nothing, wait is how long to wait for the next event that is known, or
// below 0 if none is.
func (s *stream) tryRead(b []byte) (n int, wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	isReset := s.err != nil && s.err != io.EOF
	switch {
	case isReset:
		return 0, 0, &net.OpError{Op: "read", Net: "tcp", Err: s.err}
	case !s.deadline.IsZero() && !now.Before(s.deadline):
		return 0, 0, os.ErrDeadlineExceeded
	}
	wait = -1
	if !s.deadline.IsZero() {
		wait = s.deadline.Sub(now)
	}
	switch {
	case s.held:
	case len(s.packets) > 0 && !s.packets[0].arrives.After(now):
		p := &s.packets[0]
		n = copy(b, p.bytes)
		if p.bytes = p.bytes[n:]; len(p.bytes) == 0 {
			s.packets = s.packets[1:]
		}
	case len(s.packets) > 0:
		if until := s.packets[0].arrives.Sub(now); wait < 0 || until < wait {
			wait = until
		}
	case s.err != nil:
		return 0, 0, s.err
	}
	return n, wait, nil
}

// conn is an end of a connection.
type conn struct {
	*link
	in, out *stream

	mu            sync.Mutex
	closed        bool
	writeDeadline time.Time
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return c.in.read(b)
}

// Write implements [net.Conn]. It never waits.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case !c.writeDeadline.IsZero() && !time.Now().Before(c.writeDeadline):
		return 0, os.ErrDeadlineExceeded
	}
	c.in.mu.Lock()
	isReset := c.in.err != nil && c.in.err != io.EOF
	c.in.mu.Unlock()
	if isReset {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	c.out.write(b, c.from.delayTo(c.to))
	return len(b), nil
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	c.out.end(io.EOF)
	c.in.end(net.ErrClosed) // which ends a read of this end
	c.closeEnd()
	return nil
}

// SetReadDeadline implements [net.Conn].
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	c.in.deadline = t
	c.in.mu.Unlock()
	c.in.wake()
	return nil
}

// SetWriteDeadline implements [net.Conn].
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDeadline = t
	return nil
}

// SetDeadline implements [net.Conn].
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

// LocalAddr implements [net.Conn].
func (c *conn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }
