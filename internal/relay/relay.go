// Package relay passes on TCP connections, and makes them bad. It is for tests and benchmarks.
package relay

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// Fault is something that happens to the bytes of all connections in one direction. The
// zero value passes them on as they come.
type Fault struct {
	Delay  time.Duration // between the arrival of bytes and their departure; nothing limits how many are under way
	Jitter time.Duration // a random part of up to so much is added to each delay, or taken off
	Piece  int           // bytes of each write
	Rate   int           // bytes per second of a connection, in ten writes a second
	Limit  int           // bytes of a connection, from the call of Set on; then it is closed
	Reset  bool          // the connection is reset instead, after the delay
	Silent bool          // the bytes are lost; the connection is closed at the next call of Set
}

// Relay accepts connections and passes on their bytes to another address, and back.
type Relay struct {
	// Addr is where clients connect.
	Addr string

	to       string
	listener net.Listener
	setting  atomic.Pointer[setting]
}

// setting is the faults of a time.
type setting struct {
	faults [2]Fault      // by direction
	over   chan struct{} // closed when there is another setting
}

const (
	up   = iota // from the client
	down        // to the client
)

// Start starts a relay to an address.
func Start(to string) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{Addr: l.Addr().String(), to: to, listener: l}
	r.setting.Store(&setting{over: make(chan struct{})})
	go r.accept()
	return r, nil
}

// Set replaces the faults: of bytes from the client, and of those to the client. Bytes that
// are waiting no longer do, unless the new fault has them wait.
func (r *Relay) Set(fromClient, toClient Fault) {
	old := r.setting.Swap(&setting{faults: [2]Fault{up: fromClient, down: toClient}, over: make(chan struct{})})
	close(old.over)
}

// Close accepts no more connections. Those that are open end when one of their sides ends them.
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
		go r.pass(far.(*net.TCPConn), near.(*net.TCPConn), up)
		go r.pass(near.(*net.TCPConn), far.(*net.TCPConn), down)
	}
}

// piece is bytes as they came.
type piece struct {
	came  time.Time
	bytes []byte
}

// read reads until the connection ends.
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

// pass passes on the bytes of a connection in one direction.
func (r *Relay) pass(to, from *net.TCPConn, direction int) {
	pieces := make(chan piece, 10_000)
	go read(from, pieces)
	defer func() { // what is left: nothing, unless passing on ended first
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
				set.swallow(pieces)
			case f.Reset:
				_ = to.SetLinger(0)
				_ = from.SetLinger(0)
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

// lasts waits, and reports whether the setting is the same after it.
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

// swallow takes pieces until the connection or the setting ends.
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
