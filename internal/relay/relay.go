// Package relay relays TCP connections, and makes them slow or faulty. It is for tests and benchmarks.
package relay

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// Fault is a fault of all connections in one direction. The zero value passes bytes on as they come.
type Fault struct {
	Delay  time.Duration // from the arrival of bytes to their departure, without a bound on the number of bytes
	Jitter time.Duration // each delay is longer or shorter by a random time up to Jitter
	Piece  int           // bytes of each write; 0 is no bound
	Rate   int           // bytes per second of a connection, in ten writes a second; 0 is no bound
	Limit  int           // bytes of a connection since the call of Set, after which it is closed; 0 is no bound
	Reset  bool          // the connection is reset after the delay, and the bytes are lost
	Silent bool          // the bytes are lost; the connection is closed at the next call of Set
}

// Relay accepts connections, and relays each to a connection to another address. All methods are safe for
// concurrent use.
type Relay struct {
	// Addr is the address for clients.
	Addr string

	to       string
	listener net.Listener
	setting  atomic.Pointer[setting]
	silenced atomic.Int64
}

// setting has the faults from one call of Set to the next.
type setting struct {
	faults [2]Fault      // by direction
	over   chan struct{} // closed by the next call of Set
}

const (
	up   = iota // from the client
	down        // to the client
)

// Start starts a Relay to an address, without faults.
func Start(to string) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := newRelay()
	r.Addr, r.to, r.listener = l.Addr().String(), to, l
	go r.accept()
	return r, nil
}

func newRelay() *Relay {
	r := new(Relay)
	r.setting.Store(&setting{over: make(chan struct{})})
	return r
}

// Set replaces the faults of both directions. They apply to bytes that wait already, too.
func (r *Relay) Set(fromClient, toClient Fault) {
	old := r.setting.Swap(&setting{faults: [2]Fault{up: fromClient, down: toClient}, over: make(chan struct{})})
	close(old.over)
}

// Silenced returns the number of connections, in one of their directions, of which bytes have been lost to Silent.
func (r *Relay) Silenced() int64 { return r.silenced.Load() }

// Close stops accepting connections. Open connections end when one of their sides ends.
func (r *Relay) Close() error { return r.listener.Close() }

func (r *Relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		r.relay(near, far)
	}
}

// relay relays between the connections to a client and to the other address.
func (r *Relay) relay(near, far net.Conn) {
	go r.pass(far, near, up)
	go r.pass(near, far, down)
}

// piece has the bytes of one read.
type piece struct {
	came  time.Time
	bytes []byte
}

// read reads pieces until the connection ends.
func read(from net.Conn, pieces chan<- piece) {
	defer close(pieces)
	for buffer := make([]byte, 64<<10); ; {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		pieces <- piece{time.Now(), slices.Clone(buffer[:n])}
	}
}

// pass relays a connection in one direction.
func (r *Relay) pass(to, from net.Conn, direction int) {
	pieces := make(chan piece, 10_000)
	go read(from, pieces)
	defer func() { // if pass ends before read, drop the remaining pieces
		for range pieces {
		}
	}()
	defer to.Close()
	var counted *setting
	var passed int
	for p := range pieces {
		for len(p.bytes) > 0 {
			set := r.setting.Load()
			if set != counted {
				counted, passed = set, 0
			}
			f, n := set.faults[direction], len(p.bytes)
			wait := time.Until(p.came.Add(f.Delay))
			if f.Jitter > 0 {
				wait += time.Duration(rand.Int64N(2*int64(f.Jitter))) - f.Jitter
			}
			if f.Piece > 0 {
				n = min(n, f.Piece)
			}
			if f.Rate > 0 {
				n = min(n, max(f.Rate/10, 1))
				wait = max(wait, time.Duration(n)*time.Second/time.Duration(f.Rate))
			}
			if f.Limit > 0 {
				n = min(n, f.Limit-passed)
			}
			if !set.lasts(wait) {
				continue
			}
			switch {
			case f.Silent:
				r.silenced.Add(1)
				set.swallow(pieces)
			case f.Reset:
				resetAtClose(to)
				resetAtClose(from)
			default:
				if _, err := to.Write(p.bytes[:n]); err == nil {
					p.bytes, passed = p.bytes[n:], passed+n
					if f.Limit == 0 || passed < f.Limit {
						continue
					}
				}
			}
			_ = from.Close()
			return
		}
	}
}

// resetAtClose makes the end of a TCP connection a reset.
func resetAtClose(c net.Conn) {
	if tcp, is := c.(*net.TCPConn); is {
		_ = tcp.SetLinger(0)
	}
}

// lasts waits, and reports whether the setting is still in force afterwards.
func (s *setting) lasts(wait time.Duration) bool {
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.over:
		return false
	}
}

// swallow drops pieces until the connection or the setting ends.
func (s *setting) swallow(pieces <-chan piece) {
	for {
		select {
		case _, more := <-pieces:
			if !more {
				return
			}
		case <-s.over:
			return
		}
	}
}
